"""Places of tokens with experts, and slots as rows of the part of these places that a piece holds."""

from __future__ import annotations

from typing import Any

import numpy as np

from taskflow.operators.operator import Array, Call, Spec, positive


def rows_of(call: Call, slots: Array, first: int, last: int, capacity: int) -> Array:
    """Convert slots (G, S, k), expert * capacity + place, to rows (G S k) of an array (G, experts from ``first`` to below
    ``last``, capacity); -1 for slots outside it."""
    groups, held = slots.shape[0], (last - first) * capacity
    number = call.kernels.constant(("groups of slots", groups, held), lambda: _starts(groups, held))
    here = (slots >= first * capacity) & (slots < last * capacity)
    return call.kernels.xp.where(here, slots - first * capacity + number, -1).reshape(-1)


def _starts(groups: int, held: int) -> Array:
    return (np.arange(groups) * held).reshape(-1, 1, 1)


def next_places(xp: Any, chosen: Array, taken: Array) -> Array:
    """Return the place (G, S) of each token with the expert that it takes, in the order of tokens; -1 if it takes none. ``chosen``
    (G, S, E): 1 or True at that expert; ``taken`` (G, E): places that are taken already."""
    place: Array = ((xp.cumsum(chosen, axis=1) + taken[:, None]) * chosen).sum(axis=-1) - 1
    return place


def check_slots(kind: str, slots: Spec, groups: int, experts: int, capacity: int) -> None:
    """Raise ValueError unless slots are integers (groups, tokens, k)."""
    positive(kind, experts=experts, capacity=capacity)
    if len(slots.shape) != 3 or slots.shape[0] != groups or slots.dtype.kind not in "iu":
        raise ValueError(f"{kind}: slots must be integers (groups, tokens, k) with {groups} groups, got {slots}")
