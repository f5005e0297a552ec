"""Padding: with a number, by reflection, by the elements at the edges, or going round; and by widths below 0, which cut."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from torch import nn

from taskflow import operators as ops
from taskflow.models.pytorch.registry import stands_for
from taskflow.models.pytorch.site import Site, require
from taskflow.operators.tensor import Tensor

ORDERS: dict[str, Any] = {"reflect": "reflect", "replicate": "edge", "circular": "wrap"}
"""What numpy calls the modes that repeat elements."""
MOST_RUNS = 64  # of elements that lie side by side: each becomes an operator


def padded(name: str, x: Tensor, widths: Sequence[int], mode: str = "constant", value: float | None = None) -> Tensor:
    """Pad the last dimensions by widths before and behind each, in the order of torch.nn.functional.pad."""
    require(mode == "constant" or mode in ORDERS, f"mode {mode!r}; only constant, {', '.join(ORDERS)}")
    pairs = [(x.ndim - 1 - i, int(widths[2 * i]), int(widths[2 * i + 1])) for i in range(len(widths) // 2)]
    if mode != "constant":
        for dim, before, behind in pairs:
            x = _repeated(f"{name}.dim{dim}", x, dim, before, behind, mode)
        return x
    for dim, before, behind in pairs:
        if before < 0 or behind < 0:
            first, size = max(0, -before), x.shape[dim] + min(0, before) + min(0, behind)
            x = ops.narrow(x, dim, first, size, name=f"{name}.cut{dim}")
    wider = [max(0, width) for width in widths]
    return ops.pad(x, wider, float(value or 0), name=name) if any(wider) else x


def _repeated(name: str, x: Tensor, dim: int, before: int, behind: int, mode: str) -> Tensor:
    """The elements of one dimension and some of them again, as joined runs of elements that lie side by side."""
    size = x.shape[dim]
    kept = np.arange(max(0, -before), size - max(0, -behind))
    places = np.pad(kept, (max(0, before), max(0, behind)), ORDERS[mode])
    starts = [0, *(np.flatnonzero(np.diff(places) != 1) + 1).tolist(), len(places)]
    require(len(starts) <= MOST_RUNS, f"{mode} by {before} and {behind} elements; at most {MOST_RUNS} together")
    runs = [(int(places[low]), high - low) for low, high in zip(starts, starts[1:])]
    if runs == [(0, size)]:
        return x
    known: dict[tuple[int, int], Tensor] = {}
    for number, (first, count) in enumerate(runs):
        if (first, count) not in known:
            whole = (first, count) == (0, size)
            known[first, count] = x if whole else ops.narrow(x, dim, first, count, name=f"{name}.run{number}")
    parts = [known[run] for run in runs]
    return parts[0] if len(parts) == 1 else ops.concat(parts, dim, name=name)


@stands_for("pad")
def pad(name: str, input: Tensor, pad: Sequence[int], mode: str = "constant", value: float | None = None) -> Any:
    """Pad a tensor."""
    return padded(name, input, pad, mode, value)


def _layer(mode: str) -> Callable[..., Any]:
    def built(site: Site, m: Any, x: Tensor) -> Any:
        return padded(site.name, x, m.padding, mode, getattr(m, "value", None))

    return built


KINDS = {"constant": "ConstantPad", "reflect": "ReflectionPad", "replicate": "ReplicationPad", "circular": "CircularPad"}
PADDING: dict[type[nn.Module], Callable[..., Any]] = {
    getattr(nn, f"{kind}{dims}d"): _layer(mode) for mode, kind in KINDS.items() for dims in (1, 2, 3)
}
