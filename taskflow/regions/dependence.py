"""Dependence analysis over launches in program order: which launches each one waits for, and which data must move before it
runs.

Its semantics, which graph lowering must reproduce and traces may replay:

*Order* (`ordering`). Two launches conflict if some of their requirements do (`Requirement.conflicts`). Dependences lead from
earlier to later launches such that every conflicting pair is joined by a path; those that a newer epoch implies are not listed
again.

*Values* (`movement`). Each point of a region has an owner instance: the one that the latest write or sum went to (at first: the
region's initial contents, on processor INITIAL). A READ or READ_WRITE of Rect R on processor d uses an instance on d:

- ``exact=True`` (the rule of operator graphs): the owner instance, if it is on d and holds all of R (``contiguous=True``: as
  one run of memory). Otherwise the instance (region, R, d), shared by all launches on d that read exactly R.
- ``exact=False`` (iterative programs): of the instances on d that contain R, the one that misses the fewest points, of these
  the smallest (READ_WRITE: the largest); if none contains R, a new one of exactly R.

Points of R that are not valid there are copied from their owners: one copy per (launch that made the values, owner instance),
or a few if these points are no Rect. A WRITE of W goes to (region, W, d) if exact, otherwise to the largest instance on d that
contains W, or a new one. Writing makes an instance the owner of the points written and every other instance invalid there; an
instance with no valid point is dropped if exact, otherwise kept to be filled again.

*Reductions.* A REDUCE over R on d adds to the partial instance (region, R, d), in program order (kind ORDER), after its new
points were cleared. Partial instances of other processors or Rects are independent. A READ or READ_WRITE that overlaps pending
partial sums has them added, in the order of each partial instance's first launch, to the instance that it reads, which then
owns these points: the next reader copies from there. A WRITE discards what it covers.

*Steps.* With launches and movements (copies and sums, numbered) as nodes, any order is correct that keeps:

- ``earlier`` before ``later`` of every dependence
- ``source`` before its copy (if ``after`` is empty)
- the contributions' launches before their sum
- ``after`` before a movement
- a launch's copies, reductions and shares before the launch itself

Clears are part of the launch.
"""

from __future__ import annotations

from collections.abc import Collection, Hashable, Sequence
from dataclasses import dataclass

from taskflow.regions.check import check_privileges
from taskflow.regions.movement import RegionMemory
from taskflow.regions.needs import Clear, Contents, CopyNeed, Plan, ReduceNeed
from taskflow.regions.ordering import Dependence, DependenceKind, Ordering
from taskflow.regions.privilege import Privilege, Requirement
from taskflow.regions.region import Instance, LogicalRegion


@dataclass(frozen=True, slots=True)
class Launched:
    """Result of the analysis for one launch.

    ``shares``: numbers of the movements that earlier launches asked for and this one needs too. ``instances``: the memory of
    each requirement, in order; None for an empty Rect.
    """

    number: int
    processor: int
    dependences: tuple[Dependence, ...]
    copies: tuple[CopyNeed, ...]
    reductions: tuple[ReduceNeed, ...]
    shares: tuple[int, ...]
    clears: tuple[Clear, ...]
    instances: tuple[Instance | None, ...]

    @property
    def movements(self) -> tuple[CopyNeed | ReduceNeed, ...]:
        """Copies and reductions of the launch, sorted by number; they may be done in this order."""
        return tuple(sorted((*self.copies, *self.reductions), key=lambda movement: movement.number))

    def __str__(self) -> str:
        waits = ", ".join(str(n) for n in sorted({d.earlier for d in self.dependences}))
        return (
            f"launch {self.number} @ {self.processor}: waits for [{waits}], "
            f"{len(self.copies)} copies, {len(self.reductions)} sums"
        )


class Analysis:
    """State of all regions after the launches so far. The module's docstring defines it.

    Args: ``exact``: use the operator graphs' rule for instances, instead of reusing instances that contain a Rect.
    ``contiguous`` (with ``exact``): an owner's piece serves a smaller Rect only if the Rect is contiguous in it.
    """

    def __init__(self, *, exact: bool = False, contiguous: bool = False) -> None:
        if contiguous and not exact:
            raise ValueError("Analysis: contiguous=True is a part of the exact rule, it needs exact=True")
        self._exact = exact
        self._contiguous = contiguous
        self._regions: dict[LogicalRegion, tuple[Ordering, RegionMemory]] = {}
        self._launches = 0
        self._movements = 0

    @property
    def launches(self) -> int:
        """Number of launches so far, which is the number of the next one."""
        return self._launches

    def launch(self, requirements: Sequence[Requirement], processor: int) -> Launched:
        """Add the next launch in program order, and return what it needs. Raises ValueError, and changes nothing, if a Rect is
        outside its region, the processor is negative, or the requirements conflict with each other."""
        self._check(requirements, processor)
        plan = Plan(self._launches, processor, self._movements)
        dependences: list[Dependence] = []
        instances: list[Instance | None] = []
        for requirement in requirements:
            if requirement.rect.empty:
                instances.append(None)
                continue
            ordering, memory = self._of(requirement.region)
            dependences += ordering.record(plan.launch, requirement)
            instances.append(_touch(memory, plan, requirement))
        dependences += [Dependence(who, plan.launch, region, rect, DependenceKind.ORDER) for who, region, rect in plan.orders]
        self._launches += 1
        self._movements = plan.next
        return Launched(
            plan.launch, processor, tuple(dependences), tuple(plan.copies), tuple(plan.reductions),
            tuple(sorted(plan.shares)), tuple(plan.clears), tuple(instances),
        )

    def snapshot(self, only: Collection[LogicalRegion] | None = None) -> Hashable:
        """Return owners, valid points and pending partial sums of every region (or of ``only`` these), without launch numbers.
        If two snapshots of one Analysis are equal, the same launches would need the same copies and sums after either, up to
        the numbers of launches and movements. Regions that no launch has touched are left out."""
        return frozenset(
            (region, memory.state()) for region, (_, memory) in self._regions.items() if only is None or region in only
        )

    def contents(self, region: LogicalRegion) -> Contents:
        """Return where the current values of a region are. Changes nothing: no launch is added and nothing is copied."""
        return self._of(region)[1].contents()

    def initialise(self, region: LogicalRegion) -> None:
        """Give the region new initial contents: every earlier value and partial sum of it becomes void."""
        self._of(region)[1].initialise()

    def forget(self, below: int) -> None:
        """Forget launches numbered below ``below``, which have ended: later launches do not wait for them. Values stay where
        they are. Without this, a region that is only read or only reduced keeps the number of every launch that did so."""
        for ordering, _ in self._regions.values():
            ordering.forget(below)

    def _of(self, region: LogicalRegion) -> tuple[Ordering, RegionMemory]:
        found = self._regions.get(region)
        if found is None:
            found = (Ordering(region), RegionMemory(region, self._exact, self._contiguous))
            self._regions[region] = found
        return found

    def _check(self, requirements: Sequence[Requirement], processor: int) -> None:
        if processor < 0:
            raise ValueError(f"launch {self._launches}: processor must be 0 or more, got {processor}")
        for requirement in requirements:
            region, rect = requirement.region, requirement.rect
            if rect.ndim != region.rect.ndim or not region.rect.contains(rect):
                raise ValueError(
                    f"launch {self._launches}: {requirement} is not in its region {region}; clip the Rect to it"
                )
        check_privileges(f"launch {self._launches}", requirements)


def _touch(memory: RegionMemory, plan: Plan, requirement: Requirement) -> Instance:
    match requirement.privilege:
        case Privilege.READ:
            return memory.read(plan, requirement.rect)
        case Privilege.READ_WRITE:
            return memory.read_write(plan, requirement.rect)
        case Privilege.WRITE:
            return memory.write(plan, requirement.rect)
        case Privilege.REDUCE:
            return memory.reduce(plan, requirement.rect)
