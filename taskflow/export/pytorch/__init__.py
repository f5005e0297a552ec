"""Plans as modules for PyTorch: DTensors and FSDP2 on a mesh, stages and micro-batches by torch.distributed.pipelining.

`torch_plan` expresses a plan, and lists what cannot be expressed; `torch_code` writes the module. `without_numbers` computes its
step without numbers, and `support` is the code that every such module contains; both need torch when they are imported.
"""

from taskflow.export.pytorch.code import joined_code, torch_code
from taskflow.export.pytorch.plan import TorchPlan, torch_plan

__all__ = ["TorchPlan", "joined_code", "torch_code", "torch_plan"]
