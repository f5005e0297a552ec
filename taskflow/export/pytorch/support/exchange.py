"""Tensors in another layout. What is cut along another axis is exchanged a slab at a time, without copies of the whole."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.tensor import DTensor, Shard

from taskflow.export.pytorch.support.plan import Placements

SLAB = 1 << 27  # bytes that are sent at once; as many are received


def placed(value: DTensor, placements: Placements) -> DTensor:
    """Return a DTensor in the wanted layout. DTensor's own all-to-all holds three copies of a rank's piece beside it, which for
    scores of large vocabularies is more than the rest of a step needs."""
    if value.placements == placements:
        return value
    changed = [j for j, (here, there) in enumerate(zip(value.placements, placements)) if here != there]
    here, there = value.placements[changed[0]], placements[changed[0]]
    if len(changed) > 1 or not (isinstance(here, Shard) and isinstance(there, Shard)):
        return value.redistribute(placements=placements)
    mesh, axes = value.device_mesh, (here.dim, there.dim)
    others = {p.dim for j, p in enumerate(placements) if j != changed[0] and isinstance(p, Shard)}
    if others.intersection(axes) or any(value.shape[axis] % mesh.size(changed[0]) for axis in axes):
        return value.redistribute(placements=placements)
    found = ExchangedPieces.apply(value.to_local(), mesh.get_group(changed[0]), *axes)
    return DTensor.from_local(found, mesh, placements, run_check=False)


class ExchangedPieces(torch.autograd.Function):
    """`exchanged`, and back for the gradient."""

    @staticmethod
    def forward(ctx: Any, value: torch.Tensor, group: Any, gathered: int, cut: int) -> torch.Tensor:
        """Return the rank's piece along ``cut`` of what the ranks have together along ``gathered``."""
        ctx.group, ctx.axes = group, (gathered, cut)
        return exchanged(value, group, gathered, cut)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> Any:  # type: ignore[override]
        """Return the gradient of the rank's own piece."""
        gathered, cut = ctx.axes
        return exchanged(gradient, ctx.group, cut, gathered), None, None, None


def exchanged(value: torch.Tensor, group: Any, gathered: int, cut: int) -> torch.Tensor:
    """Exchange pieces among the ranks of a group: each has a piece along the axis ``gathered`` and gets one along the axis
    ``cut``, in the order of ranks."""
    count = dist.get_world_size(group)
    each = value.shape[cut] // count
    sizes = list(value.shape)
    sizes[gathered], sizes[cut] = count * sizes[gathered], each
    made = value.new_empty(sizes)
    given = value.unflatten(cut, (count, each)).movedim(cut, 0)
    taken = made.unflatten(gathered, (count, value.shape[gathered])).movedim(gathered, 0)
    width = max(1, min(each, each * SLAB // max(1, value.nbytes)))
    for begin in range(0, each, width):
        part = min(width, each - begin)
        sent = given.narrow(cut + 1, begin, part).contiguous()
        received = torch.empty_like(sent)
        dist.all_to_all_single(received, sent, group=group)
        taken.narrow(cut + 1, begin, part).copy_(received)
    return made
