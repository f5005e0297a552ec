"""Exchange: resharding of a tensor between processors that cut it differently, found in the copies that it takes.

Copies connect processors. Processors that are connected, directly or through others, form a group, and what they give each
other is one exchange. If all of a group have some of the tensor, or all of them need some, it is resharded within the group by
one collective (`Strategy.exchange`). That is an all-gather if all need the same, a reduce-scatter (with sums) if all give the
same, and else an all-to-all. If some only give and others only take, as between the stages of a pipeline, copies remain copies.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

from taskflow.collector import quick
from taskflow.operators.tensor import Tensor
from taskflow.regions import Rect, tilings
from taskflow.tasks.lower.emit import Emitter
from taskflow.tasks.lower.ring_pass import add_on_the_way, goes_around, pass_on
from taskflow.tasks.task import Part

Held = tuple[Rect, int, int]  # elements of a tensor, the processor where they are, and the buffer
Item = TypeVar("Item")
Given = tuple[int, Rect, int]  # the same of a reader's gradient, in the order that the backward pass has it in


@quick
@dataclass(frozen=True, slots=True)
class Wanted:
    """Instance of ``rect`` on ``processor`` that is to be filled from ``sources``, which are disjoint and cover it."""

    tensor: Tensor
    rect: Rect
    processor: int
    buffer: int
    sources: tuple[Held, ...]


def exchange_values(emit: Emitter, wanted: Sequence[Wanted], reading: set[int], ring: bool = False) -> list[Wanted]:
    """Emit the collectives that fill instances of one tensor; return the instances that are left for copies. ``reading``: all
    processors that read the tensor now, including those that already hold what they need. ``ring``: whole pieces that several
    processors want go around a ring."""
    left: list[Wanted] = []
    groups = _groups((giver, one.processor) for one in wanted for _, giver, _ in one.sources)
    for members, some in zip(groups, _sorted(wanted, [one.processor for one in wanted], groups)):
        readers = reading & members
        givers = {giver for one in some for _, giver, _ in one.sources} | readers - {one.processor for one in some}
        if len(members) == 1 or members not in (givers, readers):
            left += some
        elif (share := _shares_of_all(some, members)) is not None:
            name, rect = f"{some[0].tensor.name}{some[0].rect}", some[0].rect
            gather(emit, name, rect, share, {one.processor: one.buffer for one in some})
        elif ring and goes_around(some):
            pass_on(emit, members, some)
        else:
            emit.all_to_all(some[0].tensor.name, [
                (emit.part(buffer, shared), emit.part(one.buffer, shared)) for one in some for shared, _, buffer in one.sources
            ])
    return left


def _shares_of_all(wanted: Sequence[Wanted], members: set[int]) -> dict[int, Held] | None:
    """By member what it has of the Rect that all members want; None unless all want one (not a scalar: it has no shares)."""
    first = wanted[0]
    shares = {held[1]: held for held in first.sources}
    if not first.rect.ndim or len(shares) < len(first.sources) or len({one.processor for one in wanted}) < len(wanted):
        return None
    if any(one.rect != first.rect or one.sources != first.sources for one in wanted):
        return None
    for member in members - {one.processor for one in wanted}:  # who has it all does not want it
        if shares[member][0] != first.rect:
            return None
    return shares


Places = tuple[tuple[int, ...], tuple[Rect, ...]]  # the processors of a group, some of which are not lowered, and their shares


def gather(
    emit: Emitter, name: str, rect: Rect, shares: Mapping[int, Held], into: Mapping[int, int], places: Places | None = None
) -> None:
    """Fill buffers of ``rect`` (by processor) with the shares (by processor) of all. A processor that is not in ``into`` has
    all of it."""
    group = sorted(shares.keys() | into.keys())
    parts = [emit.part(into[p] if p in into else shares[p][2], rect) for p in group]
    among, at = places or (None, [
        shares[p][0].relative_to(rect) if p in shares else _nothing(part).rect for p, part in zip(group, parts)
    ])
    emit.gather_shares(
        name, parts, [emit.part(shares[p][2], shares[p][0]) if p in shares else _nothing(part) for p, part in zip(group, parts)],
        at, among,
    )


def reduce(
    emit: Emitter, name: str, rect: Rect, parts: Mapping[int, Part], shares: Mapping[int, Held], places: Places | None = None
) -> None:
    """Add up parts (by processor), all of ``rect``; each processor gets its share of the sum, if it has one."""
    group = sorted(parts)
    among, at = places or (None, [
        shares[p][0].relative_to(rect) if p in shares else _nothing(parts[p]).rect for p in group
    ])
    emit.reduce_shares(
        name, [parts[p] for p in group],
        [emit.part(shares[p][2], shares[p][0]) if p in shares else _nothing(parts[p]) for p in group], at, among,
    )


def exchange_gradients(
    emit: Emitter, tensor: Tensor, owners: Mapping[Rect, int], given: Mapping[Rect, Sequence[Given]],
    ring: bool = False,
) -> dict[Rect, list[Given]]:
    """Emit the collectives that bring gradients to the owners of a tensor's pieces. ``given``: for each piece, the gradients
    from readers that overlap it. ``ring``: gradients of whole pieces that several processors have read travel back around the
    ring. Returns the same table, with gradients that have arrived at the owner in place of those that were sent."""
    found = {rect: list(parts) for rect, parts in given.items()}
    meets: dict[Given, list[Rect]] = {}
    for rect, parts in given.items():
        for part in parts:
            meets.setdefault(part, []).append(rect)
    groups = _groups((part[0], owners[rect]) for part, rects in meets.items() for rect in rects)
    for members, some in zip(groups, _sorted(list(meets), [part[0] for part in meets], groups)):
        owning = {owners[rect] for part in some for rect in meets[part]}
        if len(members) == 1 or members not in ({part[0] for part in some}, owning):
            continue
        far = [part for part in some if any(owners[rect] != part[0] for rect in meets[part])]
        around: dict[Rect, list[Given]] = {}
        for part in far if ring else ():
            around.setdefault(part[1], []).append(part)
        if any(len(parts) > 1 for parts in around.values()) and all(meets[part] == [part[1]] for part in far):
            for rect, come in add_on_the_way(emit, tensor, members, owners, around).items():
                _replace(found[rect], around[rect], come)
            continue
        for read in dict.fromkeys(read for _, read, _ in far):
            parts = [part for part in some if part[1] == read]
            rects = meets[parts[0]]
            # Copies have one gradient between them, of which each owner takes the nearest: they must not all be added.
            alike = all(meets[part] == rects for part in parts)
            if alike and _all_of(read, parts, rects, owners, members):
                _reduce_gradients(emit, tensor, read, parts, {owners[rect]: rect for rect in rects}, found)
                far = [part for part in far if part[1] != read]
        if far:
            _exchange_parts(emit, tensor, far, owners, meets, found)
    return found


def _all_of(
    read: Rect, parts: Sequence[Given], rects: Sequence[Rect], owners: Mapping[Rect, int], members: set[int]
) -> bool:
    """True if every member has put one gradient of ``read``, which consists of whole pieces of different owners."""
    whole = all(read.contains(rect) for rect in rects) and sum(rect.volume for rect in rects) == read.volume
    once = len(parts) == len(members) == len({processor for processor, *_ in parts})
    return read.ndim > 0 and whole and once and len({owners[rect] for rect in rects}) == len(rects)


def _reduce_gradients(
    emit: Emitter, tensor: Tensor, read: Rect, parts: Sequence[Given], shares: Mapping[int, Rect], found: dict[Rect, list[Given]]
) -> None:
    into: dict[int, Held] = {}
    added = set(parts)  # a sum of others that came before may be of this Rect too
    for owner, rect in shares.items():
        buffer = emit.buffer(f"d {tensor.name}", rect, owner, tensor.dtype)
        into[owner] = rect, owner, buffer
        _replace(found[rect], [part for part in found[rect] if part in added], (owner, rect, buffer))
    reduce(emit, f"d {tensor.name}{read}", read, {p: emit.whole(buffer) for p, _, buffer in parts}, into)


def _exchange_parts(
    emit: Emitter, tensor: Tensor, parts: Sequence[Given], owners: Mapping[Rect, int], meets: Mapping[Given, Sequence[Rect]],
    found: dict[Rect, list[Given]],
) -> None:
    """Bring parts of gradients to owners by an all-to-all: those that together are a piece into one buffer (`tilings`), and others
    each into its own, to be added there."""
    blocks: list[tuple[Part, Part]] = []
    by_owner: dict[Rect, list[Given]] = {}
    for part in parts:
        for rect in meets[part]:
            by_owner.setdefault(rect, []).append(part)
    for rect, here in by_owner.items():
        owner, shared = owners[rect], [read.intersect(rect) for _, read, _ in here]
        together = tilings(shared, rect)
        for numbers in together:
            some, buffer = [here[i] for i in numbers], emit.buffer(f"d {tensor.name}", rect, owner, tensor.dtype)
            blocks += [(emit.part(part[2], shared[i]), emit.part(buffer, shared[i])) for i, part in zip(numbers, some)]
            _replace(found[rect], some, (owner, rect, buffer))
        alone = set(range(len(here))).difference(*together)
        for part, s in [(here[i], shared[i]) for i in sorted(alone)]:
            if part[0] != owner:
                buffer = emit.buffer(f"d {tensor.name}", s, owner, tensor.dtype)
                blocks.append((emit.part(part[2], s), emit.whole(buffer)))
                _replace(found[rect], [part], (owner, s, buffer))
    emit.all_to_all(f"d {tensor.name}", blocks)


def _replace(parts: list[Given], old: Sequence[Given], new: Given) -> None:
    """``new`` in place of the first of ``old``, and no other of them."""
    parts[parts.index(old[0])] = new
    for part in old[1:]:
        parts.remove(part)


def _nothing(like: Part) -> Part:
    return Part(like.buffer, Rect((0,) * like.rect.ndim, (0,) * like.rect.ndim))


def _sorted(items: Sequence[Item], processors: Sequence[int], groups: Sequence[set[int]]) -> list[list[Item]]:
    """The items of each group, by the processor of each."""
    place = {processor: number for number, members in enumerate(groups) for processor in members}
    found: list[list[Item]] = [[] for _ in groups]
    for item, processor in zip(items, processors):
        found[place[processor]].append(item)
    return found


def _groups(pairs: Iterable[tuple[int, int]]) -> list[set[int]]:
    """The sets of processors that pairs connect, in the order in which they come."""
    group: dict[int, set[int]] = {}
    for one, other in pairs:
        first, second = group.setdefault(one, {one}), group.setdefault(other, {other})
        if first is not second:
            small, large = sorted((first, second), key=len)
            large |= small
            group.update(dict.fromkeys(small, large))
    return list({id(members): members for members in group.values()}.values())
