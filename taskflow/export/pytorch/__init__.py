"""Plans as modules for PyTorch: DTensors and FSDP2 on a mesh, stages and micro-batches by torch.distributed.pipelining.

`torch_plan` expresses a plan, and lists what cannot be expressed; `torch_code` writes the module. `without_numbers` computes its
step without numbers, and `support` is the code that every such module contains; both need torch when they are imported.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from taskflow.export.pytorch.code import joined_code, torch_code
from taskflow.export.pytorch.plan import TorchPlan, torch_plan

if TYPE_CHECKING:
    from taskflow.export.pytorch.without_numbers import require_running

__all__ = ["TorchPlan", "joined_code", "require_running", "torch_code", "torch_plan"]


def __getattr__(name: str) -> Any:
    """Import what needs PyTorch when it is asked for: exporting does not."""
    if name != "require_running":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from taskflow.export.pytorch import without_numbers

    return without_numbers.require_running
