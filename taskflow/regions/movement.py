"""Physical half of the dependence analysis: where the values of a region are, and what must move.

The state of a region says which instance owns each point: the one that the latest write or sum went to. It also says which
points of each instance are valid (equal to the owner's), and which partial sums (REDUCE) are still to be added to each point.
Movements (copies and sums) are numbered in program order, so that a later launch that uses one can name it.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from dataclasses import dataclass

from taskflow.regions.needs import INITIAL, Clear, Contents, Contribution, CopyNeed, Plan, ReduceNeed
from taskflow.regions.rect import Rect
from taskflow.regions.region import Instance, LogicalRegion
from taskflow.regions.segments import DisjointMap, RectIndex, canonical


@dataclass(frozen=True, slots=True)
class _Owner:
    """``launch`` made these values in ``instance``; ``movement`` is the sum that did if it was not the task itself,
    else -1."""

    launch: int
    instance: Instance
    movement: int = -1


@dataclass(slots=True)
class _ValidInstance:
    """A value instance; ``valid`` maps its valid points to the movement that brought them, -1 for a task that wrote
    them."""

    instance: Instance
    valid: DisjointMap[int]

    def missing(self, rect: Rect) -> int:
        """Return the number of points of ``rect`` that are not valid."""
        return sum(gap.volume for gap in self.valid.gaps(rect))


_Partial = tuple[Instance, tuple[int, ...]]  # a partial instance and the launches that added to it


class RegionMemory:
    """The instances of one region. ``exact`` and ``contiguous`` are the policies of `Analysis`."""

    __slots__ = ("_contiguous", "_exact", "_home", "_instances", "_owners", "_pending", "_region")

    def __init__(self, region: LogicalRegion, exact: bool, contiguous: bool) -> None:
        self._region = region
        self._exact = exact
        self._contiguous = contiguous
        self._home = _Owner(INITIAL, Instance(region, region.rect, INITIAL))
        self._owners: DisjointMap[_Owner] = DisjointMap()
        self._pending: DisjointMap[tuple[_Partial, ...]] = DisjointMap()
        self._instances: RectIndex[dict[int, _ValidInstance]] = RectIndex()

    def read(self, plan: Plan, rect: Rect) -> Instance:
        """Make ``rect`` valid on the plan's processor; return the instance to read."""
        return self._fill(plan, rect, writing=False).instance

    def read_write(self, plan: Plan, rect: Rect) -> Instance:
        """Make ``rect`` valid on the plan's processor and make the instance there its owner; return the instance."""
        held = self._fill(plan, rect, writing=True)
        self._own(plan, rect, held)
        return held.instance

    def write(self, plan: Plan, rect: Rect) -> Instance:
        """Give the plan's launch an instance on its processor in which to fill ``rect``; return the instance."""
        held = self._largest(rect, plan.processor) or self._at(rect, plan.processor)
        self._pending.carve(rect)
        self._own(plan, rect, held)
        return held.instance

    def reduce(self, plan: Plan, rect: Rect) -> Instance:
        """Let the plan's launch add to a partial instance of exactly ``rect`` on its processor; return the instance."""
        partial = Instance(self._region, rect, plan.processor, partial=True)
        fresh: list[Rect] = []
        waits: dict[int, list[Rect]] = {}

        def change(part: Rect, old: tuple[_Partial, ...] | None) -> tuple[_Partial, ...]:
            for i, (instance, launches) in enumerate(old or ()):
                if instance == partial:
                    if launches[-1] == plan.launch:
                        return old or ()
                    waits.setdefault(launches[-1], []).append(part)
                    return (*(old or ())[:i], (instance, (*launches, plan.launch)), *(old or ())[i + 1 :])
            fresh.append(part)
            return (*(old or ()), (partial, (plan.launch,)))

        self._pending.update(rect, change)
        plan.clears += [Clear(part, partial) for part in canonical(fresh)]
        plan.orders += [(who, self._region, part) for who, parts in sorted(waits.items()) for part in canonical(parts)]
        return partial

    def state(self) -> Hashable:
        """Return owners, valid points and partial sums, without launch or movement numbers."""
        owners: dict[_Owner, list[Rect]] = {}  # one entry is one copy, so launches count, though their numbers do not
        for rect, owner in self._owners.items():
            owners.setdefault(owner, []).append(rect)
        pending = tuple((c.instance, c.rect) for c in _contributions(self._pending.items()))
        held = [held for _, on in self._instances.items() for held in on.values()]
        return (
            frozenset((owner.instance, canonical(rects)) for owner, rects in owners.items()),
            pending,
            frozenset((h.instance, canonical(rect for rect, _ in h.valid.items())) for h in held),
        )

    # -- values ------------------------------------------------------------------------------------------------------

    def contents(self) -> Contents:
        """Return where every point's value is, and which partial sums are still to be added."""
        owners = [(rect, owner.instance) for rect, owner in self._owners.items()]
        owners += [(rect, self._home.instance) for rect in self._owners.gaps(self._region.rect)]
        return Contents(tuple(sorted(owners, key=lambda part: part[0])), _contributions(self._pending.items()))

    def initialise(self) -> None:
        """Forget all values and partial sums; the instances stay, to be filled again."""
        self._owners.carve(self._region.rect)
        self._pending.carve(self._region.rect)
        for _, on in self._instances.items():
            for held in on.values():
                held.valid.carve(held.instance.rect)

    def _fill(self, plan: Plan, rect: Rect, writing: bool) -> _ValidInstance:
        held = self._to_read(rect, plan.processor, writing)
        plan.shares.update(m for _, m in held.valid.within(rect) if 0 <= m < plan.first)
        gaps = held.valid.gaps(rect)
        if gaps:
            self._copy(plan, gaps, held)
        pending = self._pending.within(rect)
        if pending:
            self._sum(plan, rect, pending, held)
        return held

    def _copy(self, plan: Plan, gaps: Iterable[Rect], held: _ValidInstance) -> None:
        """Copy each gap from its owners, one copy per owner."""
        found: dict[_Owner, list[Rect]] = {}
        for gap in gaps:
            left = gap.volume
            for part, owner in self._owners.within(gap):
                found.setdefault(owner, []).append(part)
                left -= part.volume
            if left:
                found.setdefault(self._home, []).extend(self._owners.gaps(gap))
        for owner, parts in found.items():
            after = () if owner.movement < 0 else (owner.movement,)
            for part in canonical(parts):
                copy = CopyNeed(plan.next, part, owner.launch, owner.instance, held.instance, after)
                plan.copies.append(copy)
                held.valid.assign(part, copy.number)

    def _sum(self, plan: Plan, rect: Rect, pending: Iterable[tuple[Rect, tuple[_Partial, ...]]], held: _ValidInstance) -> None:
        """Add what is pending over ``rect`` to the instance, which becomes the owner of these points."""
        after: set[int] = set()
        number = plan.next
        for part, _ in pending:
            after.update(m for _, m in held.valid.within(part) if m >= 0)
        for part in canonical(part for part, _ in pending):
            self._invalidate(part, held)
            self._owners.assign(part, _Owner(plan.launch, held.instance, number))
            held.valid.assign(part, number)
            self._pending.carve(part)
        plan.reductions.append(
            ReduceNeed(number, rect, held.instance, _contributions(pending), tuple(sorted(after)))
        )

    def _own(self, plan: Plan, rect: Rect, held: _ValidInstance) -> None:
        """The launch's task writes ``rect`` in this instance: it owns these points, and no other instance is valid
        there."""
        self._invalidate(rect, held)
        self._owners.assign(rect, _Owner(plan.launch, held.instance))
        held.valid.assign(rect, -1)

    def _invalidate(self, rect: Rect, keep: _ValidInstance) -> None:
        for where, on in self._instances.overlapping(rect):
            for processor, held in list(on.items()):
                if held is not keep and held.valid.carve(rect) and self._exact and not len(held.valid):
                    del on[processor]
            if not on:
                del self._instances[where]

    # -- which instance ----------------------------------------------------------------------------------------------

    def _at(self, rect: Rect, processor: int) -> _ValidInstance:
        """The instance of exactly this Rect, made if there is none."""
        on = self._instances.setdefault(rect, dict)
        held = on.get(processor)
        if held is None:
            held = on[processor] = _ValidInstance(Instance(self._region, rect, processor), DisjointMap())
        return held

    def _containing(self, rect: Rect, processor: int) -> list[_ValidInstance]:
        return [
            on[processor]
            for where, on in self._instances.overlapping(rect)
            if processor in on and where.contains(rect)
        ]

    def _largest(self, rect: Rect, processor: int) -> _ValidInstance | None:
        """Instance for a write: the largest that contains it, so that later reads of any Rect in it find it there."""
        if self._exact:
            return None
        found = self._containing(rect, processor)
        return max(found, key=lambda h: (h.instance.rect.volume, h.instance.rect), default=None)

    def _to_read(self, rect: Rect, processor: int, writing: bool) -> _ValidInstance:
        """The instance from which to read ``rect`` (and to which to write it)."""
        if self._exact:
            return self._owned(rect, processor) or self._at(rect, processor)
        if not writing:
            held = (self._instances.get(rect) or {}).get(processor)
            if held is not None and not held.valid.gaps(rect):
                return held
        sign = -1 if writing else 1  # a write goes to the largest, see above
        found = self._containing(rect, processor)
        key = {id(h): (h.missing(rect), sign * h.instance.rect.volume, h.instance.rect) for h in found}
        return min(found, key=lambda h: key[id(h)], default=None) or self._at(rect, processor)

    def _owned(self, rect: Rect, processor: int) -> _ValidInstance | None:
        """The instance on ``processor`` that owns every point of ``rect``, if there is one (and it is contiguous, if
        asked)."""
        parts = self._owners.within(rect)
        if not parts or sum(part.volume for part, _ in parts) < rect.volume:
            return None
        instance = parts[0][1].instance
        if instance.processor != processor or any(owner.instance != instance for _, owner in parts):
            return None
        if self._contiguous and not _contiguous(rect, instance.rect):
            return None
        return (self._instances.get(instance.rect) or {}).get(processor)


def _contiguous(inner: Rect, outer: Rect) -> bool:
    """True if ``inner`` is one run of memory in a C-ordered array of ``outer``, which contains it."""
    shape = inner.shape
    cut = [i for i, (a, b) in enumerate(zip(shape, outer.shape)) if a != b]
    return not cut or all(size == 1 for size in shape[: cut[-1]])


def _contributions(pending: Iterable[tuple[Rect, tuple[_Partial, ...]]]) -> tuple[Contribution, ...]:
    """Pending contributions: each partial instance's points together, by first launch; those of one launch by instance, so that
    the order never depends on how points were split."""
    found: dict[_Partial, list[Rect]] = {}
    for part, partials in pending:
        for partial in partials:
            found.setdefault(partial, []).append(part)
    ranked = sorted(found, key=lambda p: (p[1][0], p[0].rect, p[0].processor, p[1]))
    return tuple(Contribution(part, *partial) for partial in ranked for part in canonical(found[partial]))
