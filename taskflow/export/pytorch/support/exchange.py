"""Tensors in another layout, by one message where one dimension of the mesh changes. DTensor's own way to other layouts takes its
thread several times as long as such a message."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch
import torch.distributed as dist

try:  # other files of this folder have these names from here
    from torch.distributed.tensor import DTensor as DTensor
    from torch.distributed.tensor import Partial as Partial
    from torch.distributed.tensor import Placement as Placement
    from torch.distributed.tensor import Replicate as Replicate
    from torch.distributed.tensor import Shard as Shard
except ImportError:  # before torch 2.5
    from torch.distributed._tensor import DTensor as DTensor
    from torch.distributed._tensor import Partial as Partial
    from torch.distributed._tensor import Placement as Placement
    from torch.distributed._tensor import Replicate as Replicate
    from torch.distributed._tensor import Shard as Shard

SLAB = 1 << 27  # bytes that are sent at once; as many are received
gather: Any = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor  # names before torch 2.14
reduce_scatter: Any = getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor


def placed(value: DTensor, placements: tuple[Placement, ...]) -> DTensor:
    """Return a DTensor in the wanted layout."""
    return value if value.placements == placements else BroughtPieces.apply(value, placements)  # type: ignore[no-any-return]


class BroughtPieces(torch.autograd.Function):
    """`brought`, and back for the gradient. The gradient of a sum is whole on every rank."""

    @staticmethod
    def forward(ctx: Any, value: DTensor, placements: tuple[Placement, ...]) -> DTensor:
        """Return a DTensor in the wanted layout."""
        ctx.before = value.placements
        return brought(value, placements)

    @staticmethod
    def backward(ctx: Any, gradient: DTensor) -> Any:  # type: ignore[override]
        """Return the gradient in the layout before."""
        wanted = tuple(
            Replicate() if isinstance(there, Partial) and not isinstance(here, Partial) else there
            for here, there in zip(gradient.placements, ctx.before)
        )
        return brought(gradient, wanted), None


def brought(value: DTensor, placements: tuple[Placement, ...]) -> DTensor:
    """Return a DTensor in the wanted layout, without a gradient."""
    if value.placements == placements:
        return value
    changed = [j for j, (here, there) in enumerate(zip(value.placements, placements)) if here != there]
    result = _by_one_message(value, changed[0], placements) if len(changed) == 1 else None
    return value.redistribute(placements=placements) if result is None else placed_piece(result, value, placements)


def placed_piece(result: torch.Tensor, value: DTensor, placements: tuple[Placement, ...]) -> DTensor:
    """This rank's piece as a DTensor with the shape of ``value``."""
    steps = torch.empty(value.shape, device="meta").stride()  # pieces are contiguous, whatever the value was
    return DTensor.from_local(result, value.device_mesh, placements, run_check=False, shape=value.shape, stride=steps)


def _by_one_message(value: DTensor, j: int, placements: tuple[Placement, ...]) -> torch.Tensor | None:
    """This rank's piece when dimension ``j`` of the mesh alone changes; None where pieces are unequal, or an axis is cut by several
    dimensions of the mesh."""
    here, there, mesh = value.placements[j], placements[j], value.device_mesh
    axes = [p.dim for p in (here, there) if type(p) is Shard]
    others = {p.dim for i, p in enumerate(placements) if i != j and isinstance(p, Shard)}
    count, group, local = mesh.size(j), mesh.get_group(j), value.to_local()
    if others.intersection(axes) or any(value.shape[axis] % count for axis in axes):
        return None
    match here, there:
        case Shard(), Shard() if len(axes) == 2:
            return exchanged(local, group, *axes)
        case Shard(), Replicate() if axes:
            return gathered(local, group, axes[0])
        case Partial(reduce_op="sum"), Shard() if axes:
            return scattered(local, group, axes[0])
        case Partial(reduce_op="sum"), Replicate():
            result = local.clone(memory_format=torch.contiguous_format)
            dist.all_reduce(result, group=group)
            return result
        case Replicate(), Shard() if axes:
            each = local.shape[axes[0]] // count
            piece = local.narrow(axes[0], mesh.get_local_rank(j) * each, each)
            return piece.clone(memory_format=torch.contiguous_format)
    return None


def gathered(value: torch.Tensor, group: Any, axis: int) -> torch.Tensor:
    """Return the pieces of all ranks of a group along an axis, in the order of ranks."""
    result = value.new_empty((dist.get_world_size(group), *value.shape))
    gather(result.flatten(0, 1), value.contiguous(), group=group)
    return result.movedim(0, axis).flatten(axis, axis + 1)


def scattered(value: torch.Tensor, group: Any, axis: int) -> torch.Tensor:
    """Return this rank's piece along an axis of the sum over a group."""
    count = dist.get_world_size(group)
    given = value.unflatten(axis, (count, value.shape[axis] // count)).movedim(axis, 0).contiguous()
    result = given.new_empty(given.shape[1:])
    reduce_scatter(result, given.flatten(0, 1), group=group)
    return result


def brought_together(
    values: Sequence[DTensor], layouts: Sequence[tuple[Placement, ...]]
) -> Iterator[DTensor]:
    """Return each DTensor in its wanted layout. Those that are summed over the same ranks are so by one message for all of a type,
    of `SLAB` bytes or one array at most: DTensor sends one for each."""
    sums: dict[tuple[Any, int, torch.dtype], list[int]] = {}
    for number, (value, placements) in enumerate(zip(values, layouts)):
        match [(j, here, there) for j, (here, there) in enumerate(zip(value.placements, placements)) if here != there]:
            case [(j, Partial(reduce_op="sum"), Replicate())]:
                sums.setdefault((value.device_mesh, j, value.dtype), []).append(number)
    found: dict[int, DTensor] = {}
    for (mesh, j, _), numbers in sums.items():
        for slab in _slabs(values, numbers):
            pieces = [values[number].to_local() for number in slab]
            flat = torch.cat([piece.flatten() for piece in pieces])
            dist.all_reduce(flat, group=mesh.get_group(j))
            for number, piece, result in zip(slab, pieces, flat.split([piece.numel() for piece in pieces])):
                found[number] = placed_piece(result.view(piece.shape), values[number], layouts[number])
    for number, value in enumerate(values):
        yield found[number] if number in found else brought(value, layouts[number])


def _slabs(values: Sequence[DTensor], numbers: Sequence[int]) -> Iterator[list[int]]:
    """The numbers of the arrays that are sent at once."""
    slab, nbytes = list[int](), 0
    for number in numbers:
        more = values[number].to_local().nbytes
        if slab and nbytes + more > SLAB:
            yield slab
            slab, nbytes = [], 0
        slab.append(number)
        nbytes += more
    yield slab


def exchanged(value: torch.Tensor, group: Any, gathered: int, cut: int) -> torch.Tensor:
    """Exchange pieces among the ranks of a group: each has a piece along the axis ``gathered`` and gets one along the axis
    ``cut``, in the order of ranks. They are sent a slab at a time, without copies of the whole: for scores of large vocabularies
    these would take more memory than the rest of a step."""
    count = dist.get_world_size(group)
    each = value.shape[cut] // count
    sizes = list(value.shape)
    sizes[gathered], sizes[cut] = count * sizes[gathered], each
    result = value.new_empty(sizes)
    given = value.unflatten(cut, (count, each)).movedim(cut, 0)
    taken = result.unflatten(gathered, (count, value.shape[gathered])).movedim(gathered, 0)
    width = max(1, min(each, each * SLAB // max(1, value.nbytes)))
    for begin in range(0, each, width):
        part = min(width, each - begin)
        sent = given.narrow(cut + 1, begin, part).contiguous()
        received = torch.empty_like(sent)
        dist.all_to_all_single(received, sent, group=group)
        taken.narrow(cut + 1, begin, part).copy_(received)
    return result
