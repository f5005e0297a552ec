"""Support: code that every exported module contains: a plan's layers, stages and micro-batches on the ranks of torchrun.

These files are copied one after the other into the modules that `taskflow export --to torch` writes, so that they need nothing
but PyTorch. Layers that a plan cuts compute on their own pieces (local tensors); between them activations are DTensors, and
every redistribution is one that the plan asks for. Ranks ascend in the mesh, which PyTorch needs.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from taskflow.export.pytorch.support.exchange import gather, placed, reduce_scatter

__all__ = ["gather", "placed", "reduce_scatter"]


def __getattr__(name: str) -> Any:
    """Import what the probe shares with exported modules when it is asked for: it needs PyTorch, which exporting does not."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from taskflow.export.pytorch.support import exchange

    return getattr(exchange, name)
