"""Whole tensors between groups: what each of a group has whole and each of another group wants whole, as between stages whose
layers tensor groups share without cutting what lies between these layers.

Each sends one share to one of the others, and these put the shares together. So the links between the groups carry the tensor once,
and not once for each of a group. Narayanan et al., "Efficient large-scale language model training on GPU clusters using
Megatron-LM", arXiv 2104.04473, section 4.1.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from taskflow.partition import even_cuts
from taskflow.regions import Rect
from taskflow.tasks.lower.emit import Emitter
from taskflow.tasks.lower.exchange import Wanted, gather

Sources = Mapping[int, tuple[int, int]]
"""By processor that wants a Rect, a processor that has it, and the buffer there."""


def bring_whole(emit: Emitter, wanted: Sequence[Wanted]) -> list[Wanted]:
    """Fill the instances of one tensor that groups want whole from other groups; return those that are left."""
    left: list[Wanted] = []
    by_rect: dict[Rect, list[Wanted]] = {}
    for one in wanted:
        by_rect.setdefault(one.rect, []).append(one)
    for rect, some in by_rect.items():
        whole = all(len(one.sources) == 1 and one.sources[0][0] == rect for one in some)
        sources = {one.processor: one.sources[0][1:] for one in some} if whole else {}
        if len(sources) == len(some) and can_bring(rect, sources):
            bring_in_shares(emit, some[0].tensor.name, rect, sources, {one.processor: one.buffer for one in some})
        else:
            left += some
    return left


def can_bring(rect: Rect, sources: Sources) -> bool:
    """Whether a Rect may come in shares: as many processors have it as want it, none does both, and it can be cut."""
    givers = {giver for giver, _ in sources.values()}
    return 1 < len(givers) == len(sources) and givers.isdisjoint(sources) and _cut_dim(rect, len(sources)) is not None


def bring_in_shares(emit: Emitter, name: str, rect: Rect, sources: Sources, into: Mapping[int, int]) -> None:
    """Fill buffers of ``rect``, by processor: each gets a share from its source, and all gather the shares."""
    takers = sorted(into)
    shares = {taker: share for taker, share in zip(takers, _shares(rect, len(takers)))}
    dtype = emit.graph.buffers[into[takers[0]]].dtype
    held = {taker: emit.buffer(name, share, taker, dtype) for taker, share in shares.items()}
    emit.transfers([
        (f"{name}{share}", emit.part(sources[taker][1], share), emit.whole(held[taker])) for taker, share in shares.items()
    ])  # fmt: skip
    gather(emit, f"{name}{rect}", rect, {taker: (share, taker, held[taker]) for taker, share in shares.items()}, into)


def _cut_dim(rect: Rect, count: int) -> int | None:
    """The first dimension that can be cut into so many shares, of which each is in one piece of memory if it is the very first."""
    return next((dim for dim, size in enumerate(rect.shape) if size >= count), None)


def _shares(rect: Rect, count: int) -> list[Rect]:
    dim = _cut_dim(rect, count)
    assert dim is not None
    cuts = [rect.lo[dim] + cut for cut in even_cuts(rect.shape[dim], count)]
    return [
        Rect((*rect.lo[:dim], low, *rect.lo[dim + 1 :]), (*rect.hi[:dim], high, *rect.hi[dim + 1 :]))
        for low, high in zip(cuts, cuts[1:])
    ]
