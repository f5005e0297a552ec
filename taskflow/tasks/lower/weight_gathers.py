"""WeightGathers: weights that are kept as shares (ZeRO's stage 3, FSDP) are gathered for each pass that reads them.

A pass is a stage's forward or backward pass for one micro-batch; without a pipeline, the step's. The gathered weights live
until the pass's last task that reads them. Their all-gather waits only for the shares and for a layer some layers before, so
that not all weights are gathered at the beginning. Where blocks of layers are gathered at once (`gather_units`), a block is to
this what a layer is otherwise.

Late gathers (`Sync.late_gather`) are of whole weights, of which each holder has updated a share in the step before. They come
once a step, before the first task that reads the weights, in the same way.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from taskflow.graph import Node
from taskflow.operators.tensor import Parameter
from taskflow.regions import Rect
from taskflow.tasks.lower.emit import Emitter
from taskflow.tasks.lower.parameters import ParameterLayout
from taskflow.tasks.lower.part import NotAlikeError, StepPart
from taskflow.tasks.lower.shards import LateGather, Shards
from taskflow.tasks.task import Bundle, Part, Turn
from taskflow.tasks.topic import Purpose, Topic

GATHERED, SUMMED, ADDED = "gathered layer", "summed gradient", "added share"  # what a processor does in turn (`Turn`)
WeightUse = tuple[str, int, Rect]  # (parameter, processor, Rect read)


@dataclass(slots=True)
class _Visit:
    """A layer, or a block, whose weights a processor has for a pass. ``place``: how many there were before; ``last``: the task that
    came last of those that read them; ``awaited``: that task when another block's gather was told to wait for it."""

    place: int
    last: int | None = None
    awaited: int | None = None


@dataclass(slots=True)
class WeightGathers:
    """Weights that are gathered at present. ``shares``: by bundle and processor, the persistent buffer of its share, where that
    is not empty."""

    emit: Emitter
    shards: Mapping[str, Shards]
    layout: ParameterLayout
    part: StepPart | None = None  # what of the step is lowered; None: all
    turns: list[Turn] | None = None
    """Where only some passes are lowered: takes what gathers wait for in the passes before (`StepPart`)."""
    shares: dict[tuple[str, int], int] = field(default_factory=dict)
    uses: list[WeightUse] = field(default_factory=list)
    """What tasks of this pass read of gathered weights."""
    units: set[str] = field(default_factory=set)  # layers and blocks that have weights as shares
    late: Mapping[str, LateGather] = field(default_factory=dict)
    _arrived: set[tuple[str, int]] = field(default_factory=set)  # of these, the bundles and processors
    _gathered: dict[tuple[str, int], int] = field(default_factory=dict)
    _now: dict[tuple[str, int], _Visit] = field(default_factory=dict)  # by unit and processor, in this pass
    _visits: dict[int, list[_Visit]] = field(default_factory=dict)

    def keep(self, bundle: Bundle, processor: int) -> None:
        """Make the buffer of a share."""
        self.units.add(bundle.unit)
        span = self.shards[bundle.name].span(processor)
        if not span.empty:
            self.shares[bundle.name, processor] = self.emit.buffer(bundle.name, span, processor, bundle.dtype, kept=True)

    def __contains__(self, bundle: str) -> bool:
        """Return whether a bundle's weights are kept as shares."""
        return bundle in self.shards and self.shards[bundle].zero == 3

    def any_of(self, parameters: Sequence[Parameter]) -> bool:
        """True if some of these belong to a layer that keeps weights as shares."""
        return bool(self.units) and any(self.layout.unit(parameter) in self.units for parameter in parameters)

    def later(self, bundles: Iterable[Bundle]) -> bool:
        """True if what these bundles' tasks wait for is found when all layers are known: with blocks it is two blocks before, which
        the few layers that are lowered do not show."""
        return any(self._later(self.shards[bundle.name]) for bundle in bundles)

    def _later(self, shards: Shards) -> bool:
        return self.turns is not None and shards.in_blocks

    def weights(self, bundle: Bundle, processor: int) -> int:
        """Return the buffer of all weights of a bundle in this pass; they are gathered when first asked for."""
        if (bundle.name, processor) not in self._gathered:
            self._gather(bundle, self.shards[bundle.name], self.shards[bundle.name].group(processor))
        return self._gathered[bundle.name, processor]

    def arrive(self, bundle: Bundle, flat: Mapping[tuple[str, int], int], processor: int) -> None:
        """Gather the weights of a bundle that is gathered late, if this has not been done. ``flat``: where they are."""
        if bundle.name not in self.late or (bundle.name, processor) in self._arrived:
            return
        emit, late = self.emit, self.late[bundle.name]
        shards, stages = late.shards, late.stages.get(processor)
        group = shards.group(processor)
        lowered = group if self.part is None else self.part.lowered(group, bundle.name, bundle.group)
        self._arrived.update((bundle.name, p) for p in lowered)
        here = [p for p in lowered if late.stages.get(p) == stages]  # others read it in the pass of another stage
        waits = [(p, *self._before(bundle, p, shards)) for p in here]
        before, emit.topic = emit.topic, Topic(Purpose.NEW_WEIGHTS, bundle.unit)
        parts = [emit.whole(flat[bundle.name, p]) for p in lowered]
        gather = emit.all_gather(
            f"weights {bundle.name}", parts, shards.cuts, group, [task for _, tasks, _ in waits for task in tasks]
        )
        if self.turns is not None:
            self.turns += [Turn(GATHERED, p, gather, *back) for p, _, back in waits if back]
        emit.topic = before

    def ran(self, node: Node, processor: int, task: int) -> None:
        """Record that a task of an operator is emitted."""
        if self._now:
            for parameter in node.parameters:
                if visit := self._now.get((self.layout.unit(parameter), processor)):
                    visit.last = task

    def end_pass(self, over: bool) -> list[WeightUse]:
        """Forget what was gathered; return which uses end with it. ``over``: False between the passes of a step that has no others,
        whose turns are counted through."""
        if self.turns is not None and over:
            for processor, visits in self._visits.items():
                if any(visit.last is None for visit in visits):
                    raise NotAlikeError("a processor gathers weights of which it reads none")
                self.turns += [
                    Turn(GATHERED, processor, visit.last, seen=visit.awaited) for visit in visits if visit.last is not None
                ]
            self._visits.clear()
        ended = list(self.uses)
        self.uses.clear()
        self._gathered.clear()
        self._now.clear()
        return ended

    def _gather(self, bundle: Bundle, shards: Shards, group: Sequence[int]) -> None:
        emit, whole = self.emit, Rect((0,), (bundle.size,))
        before, emit.topic = emit.topic, Topic(Purpose.UNSHARDED, bundle.unit)
        late: list[int] = []
        missing: list[tuple[int, int | None, tuple[int, int | None]]] = []  # processor, its share's move, and how far back (`Turn`)
        lowered = group if self.part is None else self.part.lowered(group, bundle.name, bundle.group)
        for processor in lowered:
            full = self._gathered[bundle.name, processor] = emit.buffer(bundle.name, whole, processor, bundle.dtype)
            waits, back = self._before(bundle, processor, shards)
            share, move = self.shares.get((bundle.name, processor)), None
            if share is None:
                late += waits
            else:
                span = shards.span(processor)
                move = emit.transfer(f"weights {bundle.name}{span}", emit.whole(share), Part(full, span), also_after=waits)
            if back:
                missing.append((processor, move, back))
        parts = [emit.whole(self._gathered[bundle.name, processor]) for processor in lowered]
        gather = emit.all_gather(f"weights {bundle.name}", parts, shards.cuts, group, late)
        if self.turns is not None:
            self.turns += [Turn(GATHERED, p, gather if move is None else move, *back) for p, move, back in missing]
        emit.topic = before

    def _before(self, bundle: Bundle, processor: int, shards: Shards) -> tuple[list[int], tuple[int, int | None] | None]:
        """Return what a gather for the next layer on a processor waits for: the last task of the layer `Shards.ahead` + 1 before
        it. Layers of which it computes nothing do not count. If that is none of this pass, or is to be found later, how many
        layers it is before the pass or the layer (`Turn`)."""
        visits = self._visits.setdefault(processor, [])
        visit = self._now.get((bundle.unit, processor))
        if visit is None:
            visit = self._now[bundle.unit, processor] = _Visit(len(visits))
            visits.append(visit)
        ahead = shards.ahead
        place = visit.place - 1 - ahead
        if self._later(shards):
            if place >= 0:
                other = visits[place]
                if other.last is None or other.awaited not in (None, other.last):
                    raise NotAlikeError("gathers wait for other tasks of a block than its last one so far")
                other.awaited = other.last
            return [], (1 + ahead, visit.place)
        back = None if place >= 0 else (-place, None)
        while place >= 0:
            if (last := visits[place].last) is not None:
                return [last], None
            place -= 1
        return [], back
