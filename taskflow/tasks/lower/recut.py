"""Recut: a tensor that all replicas write is cut anew among them, while only one of them is lowered.

Experts are divided among replicas as samples are. So each replica reads something of what each has written, and gives each
an equal part: an all-to-all in which all members do the same.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from taskflow.operators.tensor import Tensor
from taskflow.regions import Rect
from taskflow.tasks.lower.emit import Emitter
from taskflow.tasks.lower.part import NotAlikeError
from taskflow.tasks.topic import Topic

Held = tuple[Rect, int, int]  # elements of a tensor, the processor where they are, and the buffer


@dataclass(frozen=True, slots=True)
class Members:
    """The processors, in all replicas, among which a tensor is cut anew; and the Rect ``own`` that one of them has before."""

    group: tuple[int, ...]
    own: Rect


@dataclass(frozen=True, slots=True)
class Recut:
    """What one member gives of a tensor, and the instance that it gets for it."""

    tensor: Tensor
    members: Members
    given: Held
    got: Held


def members_of(read: Rect, own: Sequence[Rect], group: tuple[int, ...]) -> Members:
    """Return among whom a tensor is cut anew. ``read``: what one of the ``group`` reads, which together write it; ``own``: the
    Rects that it wrote itself of that. NotAlikeError unless each member gives each an equal part."""
    if len(own) == 1 and len(group) * own[0].intersect(read).volume == own[0].volume == read.volume:
        return Members(group, own[0])
    raise NotAlikeError(f"{read} is read, of which not all pieces are lowered")


def bring_recut(emit: Emitter, wanted: Sequence[Recut], topics: Sequence[Topic]) -> None:
    """Emit the all-to-alls that fill instances."""
    by_tensor: dict[tuple[int, int], list[Recut]] = {}
    for one in wanted:
        by_tensor.setdefault((one.tensor.node, one.tensor.index), []).append(one)
    for (node, _), some in by_tensor.items():
        emit.topic = topics[node]
        _exchange(emit, some[0].tensor.name, [(one.members.group, one.given, one.got) for one in some])


def recut_gradients(
    emit: Emitter, tensor: Tensor, members: Mapping[tuple[int, Rect], Members], asked: Mapping[Rect, int],
    put: Mapping[tuple[int, Rect], int], taken: Callable[[int, Rect], object],
) -> dict[tuple[Rect, int], int]:
    """Emit the all-to-alls that bring gradients to the owners of the pieces ``asked``, from what each reader has put. Returns the
    buffers by Rect and owner. ``taken``: told what was used."""
    gathered: dict[tuple[Rect, int], int] = {}
    exchanged: list[tuple[tuple[int, ...], Held, Held]] = []
    for (processor, read), buffer in put.items():
        if (processor, read) not in members:
            raise NotAlikeError(f"{tensor.name} is read by replicas in two ways")
        of = members[processor, read]
        if asked.get(of.own) != processor:
            continue
        if (of.own, processor) in gathered:
            raise NotAlikeError(f"gradients of {tensor.name} come from several operators of all replicas")
        into = gathered[of.own, processor] = emit.buffer(f"d {tensor.name}", of.own, processor, tensor.dtype)
        exchanged.append((of.group, (read, processor, buffer), (of.own, processor, into)))
        taken(processor, read)
    if len(gathered) < len(asked):
        raise NotAlikeError(f"not every replica gives a gradient of {tensor.name}")
    _exchange(emit, f"d {tensor.name}", exchanged)
    return gathered


def _exchange(emit: Emitter, name: str, exchanged: Sequence[tuple[tuple[int, ...], Held, Held]]) -> None:
    groups: dict[tuple[int, ...], list[tuple[Held, Held]]] = {}
    for group, given, got in exchanged:
        groups.setdefault(group, []).append((given, got))
    for group, some in groups.items():
        emit.exchange_alike(name, group, [
            (emit.whole(given[2]), emit.whole(got[2]), given[0].intersect(got[0]).volume) for given, got in some
        ])
