"""Plans as modules for PyTorch: DTensors and FSDP2 on a mesh, stages and micro-batches by torch.distributed.pipelining.

`torch_plan` expresses a plan, and lists what cannot be expressed; `torch_code` writes the module, and `require_running` calls it
without numbers. `support` is the code that every such module contains; it needs torch.
"""

from taskflow.export.pytorch.code import joined_code, torch_code
from taskflow.export.pytorch.plan import TorchPlan, torch_plan
from taskflow.export.pytorch.without_numbers import require_running

__all__ = ["TorchPlan", "joined_code", "require_running", "torch_code", "torch_plan"]
