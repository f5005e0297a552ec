"""Places: the devices of a plan's groups on a machine of unequal devices, and the orders of devices worth trying.

A group is the t x c devices that share the layers of one stage and replica. It is as fast as its slowest device, and has as
much memory as its smallest one. Either every rank of the pipeline is on devices of one kind, or every replica is.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import permutations

from taskflow.machine import Machine
from taskflow.mapper import HybridPlan

MOST_KINDS = 3  # whose orders are all tried; of more kinds only the machine's and the one from behind

Group = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Places:
    """``groups``: the devices, by rank and replica. ``kinds`` and ``memory``: for each group, the number of its slowest kind
    and the bytes of its smallest device."""

    groups: tuple[tuple[Group, ...], ...]
    kinds: tuple[tuple[int, ...], ...]
    memory: tuple[tuple[int, ...], ...]

    @property
    def classes(self) -> list[list[int]]:
        """Return sets of replicas that have the same kinds and memory."""
        found: dict[object, list[int]] = {}
        for number, key in enumerate(zip(zip(*self.kinds), zip(*self.memory))):
            found.setdefault(key, []).append(number)
        return list(found.values())


class PlacesOf:
    """Places of plans on one machine. ``kinds``: its devices by kind, the fastest kind first."""

    def __init__(self, machine: Machine, kinds: Sequence[Sequence[int]]) -> None:
        self.machine, self.members = machine, [tuple(of) for of in kinds]
        self.kind = {p: number for number, of in enumerate(kinds) for p in of}
        self._known: dict[object, Places] = {}

    def of(self, plan: HybridPlan) -> Places:
        """Return the places of a plan with ``data`` set, or ``shares``."""
        size, data = plan.tensor * plan.context, plan.data or len(plan.shares) or 1
        key = plan.devices, size, plan.pipeline, data
        if key not in self._known:
            order = tuple(int(p) for p in plan.devices) or tuple(range(len(self.machine.processors)))
            groups = [order[at : at + size] for at in range(0, len(order), size)]
            self._known[key] = self._placed([groups[r * data : (r + 1) * data] for r in range(plan.pipeline)])
        return self._known[key]

    def named(self, places: Places) -> tuple[int, ...]:
        """Return the devices as a plan names them: empty for all of them in order."""
        order = tuple(p for rank in places.groups for group in rank for p in group)
        return () if order == tuple(range(len(self.machine.processors))) else order

    def layouts(self, size: int, ranks: int) -> Iterator[Places]:
        """Yield the orders of devices worth trying for groups of ``size`` devices in this many ranks: of all devices, or of one
        kind."""
        every = range(len(self.members))
        orders = list(permutations(every)) if len(every) <= MOST_KINDS else [tuple(every), tuple(reversed(every))]
        seen: set[object] = set()
        for order in dict.fromkeys([*orders, *((kind,) for kind in every)]):
            groups = self._groups([p for kind in order for p in self.members[kind]], size)
            if groups is None or len(groups) % ranks:
                continue
            data = len(groups) // ranks
            by_rank = [groups[r * data : (r + 1) * data] for r in range(ranks)]
            by_replica = [groups[r::ranks] for r in range(ranks)]
            for found in (self._placed(by_rank), self._placed(by_replica)):
                if (key := tuple(sorted(zip(zip(*found.kinds), zip(*found.memory))))) not in seen:
                    seen.add(key)
                    yield found

    def _groups(self, order: Sequence[int], size: int) -> list[Group] | None:
        """Consecutive groups, each within a node; None if they do not divide so."""
        groups = [tuple(order[at : at + size]) for at in range(0, len(order), size)]
        inside = all(len({self.machine.processors[p].node for p in group}) == 1 for group in groups)
        return groups if len(order) % size == 0 and inside else None

    def _placed(self, groups: Sequence[Sequence[Group]]) -> Places:
        memory = [[min(self.machine.processors[p].memory_bytes for p in group) for group in rank] for rank in groups]
        kinds = [[max(self.kind[p] for p in group) for group in rank] for rank in groups]
        return Places(tuple(map(tuple, groups)), tuple(map(tuple, kinds)), tuple(map(tuple, memory)))
