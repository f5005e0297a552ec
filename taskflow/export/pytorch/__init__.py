"""Plans as modules for PyTorch: DTensors and FSDP2 on a mesh, stages and micro-batches by torch.distributed.pipelining.

`torch_plan` says how a plan is expressed, and what of it cannot be; `torch_code` writes the module. `support` is what every
such module has in it, and needs torch.
"""

from taskflow.export.pytorch.code import torch_code
from taskflow.export.pytorch.plan import TorchPlan, torch_plan

__all__ = ["TorchPlan", "torch_code", "torch_plan"]
