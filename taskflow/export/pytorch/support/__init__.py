"""Support: code that every exported module contains: a plan's layers, stages and micro-batches on the ranks of torchrun.

These files are copied one after the other into the modules that `taskflow export --to torch` writes, so that they need nothing
but PyTorch. Layers that a plan cuts compute on their own pieces (local tensors); between them activations are DTensors, and
every redistribution is one that the plan asks for. Ranks ascend in the mesh, which PyTorch needs.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from taskflow.export.pytorch.support.exchange import (
        DTensor,
        Partial,
        Replicate,
        Shard,
        gather,
        placed,
        reduce_scatter,
    )
    from taskflow.export.pytorch.support.layers import cut_layers, divided
    from taskflow.export.pytorch.support.plan import LayerPlan

__all__ = [
    "DTensor", "LayerPlan", "Partial", "Replicate", "Shard", "cut_layers", "divided", "gather", "placed", "reduce_scatter",
]  # fmt: skip


def __getattr__(name: str) -> Any:
    """Import what the probe shares with exported modules when it is asked for: it needs PyTorch, which exporting does not."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from taskflow.export.pytorch.support import exchange, layers, plan

    return next(getattr(module, name) for module in (exchange, layers, plan) if hasattr(module, name))
