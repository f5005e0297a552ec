"""Recut: a tensor that all replicas write is cut anew among them, while only one of them is lowered.

Experts and the layers of a tensor-parallel group are divided among replicas as samples are. So each replica reads something of
what others have written. If all read the same, it is an all-gather, and their gradients are summed by a reduce-scatter. If each
gives each an equal part, it is an all-to-all in which all members do the same.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from taskflow.operators.tensor import Tensor
from taskflow.regions import Rect, tilings
from taskflow.tasks.lower.emit import Emitter
from taskflow.tasks.lower.part import NotAlikeError
from taskflow.tasks.task import Part
from taskflow.tasks.topic import Topic

Held = tuple[Rect, int, int]  # elements of a tensor, the processor where they are, and the buffer
Given = tuple[int, Rect, int]  # the same of a gradient


@dataclass(frozen=True, slots=True)
class Members:
    """The processors ``group``, ascending, in all replicas, among which a tensor is cut anew, and the Rect ``own`` that the one
    ``at`` has before. ``places``: what each has of what all read, if all read the same; else empty. ``given``: else what each
    reads of ``own``; these have as many elements."""

    group: tuple[int, ...]
    at: int
    own: Rect
    places: tuple[Rect, ...]
    given: tuple[Rect, ...]

    @property
    def far(self) -> int:
        """The number of elements that each gets from others in an all-to-all."""
        return (len(self.group) - 1) * self.given[0].volume


@dataclass(frozen=True, slots=True)
class Recut:
    """What one member gives of a tensor, and the instance that it gets for it."""

    tensor: Tensor
    members: Members
    given: Held
    got: Held


def members_of(at: int, wrote: Mapping[int, Rect], reads: Mapping[int, Rect]) -> Members:
    """Return among whom a tensor is cut anew. By processor, ascending: what each of those ``wrote`` of which processor ``at``
    reads some, and what each ``reads``. NotAlikeError unless each member gives each an equal part."""
    group, read = tuple(wrote), reads.get(at)
    if read is None or wrote.keys() != reads.keys() or len(group) == 1:
        raise NotAlikeError(f"{at} reads what is written by others than those that do the same")
    own, each = wrote[at], wrote[at].intersect(read).volume
    here, there = [wrote[p].intersect(read) for p in group], tuple([own.intersect(reads[p]) for p in group])
    if not each or {part.volume for part in (*here, *there)} != {each} or each * len(group) != read.volume:
        raise NotAlikeError(f"{read} is read, of which not all pieces are lowered")
    if set(reads.values()) == {read} and read.contains(own):
        return Members(group, at, own, tuple([part.relative_to(read) for part in here]), ())
    return Members(group, at, own, (), there)


def bring_recut(emit: Emitter, wanted: Sequence[Recut], topics: Sequence[Topic]) -> None:
    """Emit the collectives that fill instances."""
    by_tensor: dict[tuple[int, int], list[Recut]] = {}
    for one in wanted:
        by_tensor.setdefault((one.tensor.node, one.tensor.index), []).append(one)
    for (node, _), some in by_tensor.items():
        emit.topic = topics[node]
        exchanged: dict[tuple[int, ...], list[tuple[Part, list[Part], int]]] = {}
        for one in some:
            members, source, target = one.members, emit.whole(one.given[2]), emit.whole(one.got[2])
            if members.places:
                emit.gather_shares(f"{one.tensor.name}{one.got[0]}", [target], [source], members.places, members.group)
            else:
                exchanged.setdefault(members.group, []).append((source, [target], members.far))
        for group, among in exchanged.items():
            emit.exchange_alike(some[0].tensor.name, group, among)


def recut_gradients(
    emit: Emitter, tensor: Tensor, members: Mapping[tuple[int, Rect], Members], asked: Mapping[Rect, int],
    put: Mapping[tuple[int, Rect], int],
) -> dict[tuple[int, Rect], tuple[Rect, list[Given]]]:
    """Emit the collectives that bring gradients to the owners of the pieces ``asked``, from what each reader has put. Returns by
    reader the owning piece and what has arrived for it, to be added there."""
    name = f"d {tensor.name}"
    found: dict[tuple[int, Rect], tuple[Rect, list[Given]]] = {}
    exchanged: dict[tuple[int, ...], list[tuple[Part, list[Part], int]]] = {}
    for (processor, read), buffer in put.items():
        of = members[processor, read]
        if asked.get(of.own) != processor:
            continue
        if any(own == of.own for own, _ in found.values()):
            raise NotAlikeError(f"gradients of {tensor.name} come from several operators of all replicas")
        if of.places:
            into = emit.buffer(name, of.own, processor, tensor.dtype)
            emit.reduce_shares(f"{name}{read}", [emit.whole(buffer)], [emit.whole(into)], of.places, of.group)
            found[processor, read] = of.own, [(processor, of.own, into)]
        elif sum(part.volume for part in of.given) == of.own.volume:
            into = emit.buffer(name, of.own, processor, tensor.dtype)
            exchanged.setdefault(of.group, []).append((emit.whole(buffer), [emit.whole(into)], of.far))
            found[processor, read] = of.own, [(processor, of.own, into)]
        else:  # several give gradients of the same elements, which are added where they have come
            whole = {numbers[0]: numbers for numbers in tilings(of.given, of.own)}
            later = {i for numbers in whole.values() for i in numbers[1:]}
            come = []
            for i, (member, part) in enumerate(zip(of.group, of.given)):
                if i not in later:
                    part = of.own if i in whole else part
                    own = member == processor and i not in whole
                    come.append((processor, part, buffer if own else emit.buffer(name, part, processor, tensor.dtype)))
            targets = [emit.whole(into) for _, _, into in come if into != buffer]
            exchanged.setdefault(of.group, []).append((emit.whole(buffer), targets, of.far))
            found[processor, read] = of.own, come
    for group, among in exchanged.items():
        emit.exchange_alike(name, group, among)
    return found
