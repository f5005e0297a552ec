"""Import of programs that `torch.export.export` returns, as modules that are recorded like any other."""

from taskflow.models.pytorch.exported.file import examples_of_batch, load_exported, why_not_exported
from taskflow.models.pytorch.exported.module import ExportedModule, exported_module, title_of
from taskflow.models.pytorch.exported.proof import difference_to_program
