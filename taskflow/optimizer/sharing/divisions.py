"""Divisions: the ways to give every job a group of a machine's devices. Those that differ only by a renumbering of nodes count
once.

Devices are assigned in units: single ones, or equal parts of nodes, or whole nodes, so that there are few units. A group's
*shape* says how many units it has on how many nodes of each kind. Groups of one shape are worth the same to a job that is
alone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations_with_replacement, product
from math import gcd

from taskflow.machine import Cluster

MOST_UNITS = 8  # and jobs

Division = tuple[tuple[int, ...], ...]  # by job: its units on each place
Shape = tuple[tuple[str, int], ...]  # (kind of place, units there) of the places that a group has some of, in order


@dataclass(frozen=True, slots=True)
class Units:
    """Units of a machine. ``places``: for each node (if units are nodes, for each kind of node), its units, each a list of
    processors. ``kinds``: the kind of each place; places of one kind are interchangeable."""

    places: tuple[tuple[tuple[int, ...], ...], ...]
    kinds: tuple[str, ...]

    @property
    def count(self) -> int:
        """Number of units."""
        return sum(map(len, self.places))


def units(machine: Cluster, jobs: int) -> Units:
    """Return at most MOST_UNITS units with equal numbers of devices, and at least as many as there are jobs: parts of nodes, or
    whole nodes. If no such size divides all nodes, use the largest that makes enough units. Raises ValueError for more jobs
    than MOST_UNITS, or than devices."""
    count, most = len(machine.processors), MOST_UNITS
    if jobs > most:
        raise ValueError(f"share: takes {most} jobs at most, got {jobs}")
    if jobs > count:
        raise ValueError(f"share: {jobs} jobs need as many devices, {machine.name} has {count}")
    nodes: dict[int, list[int]] = {}
    for processor in machine.processors:
        nodes.setdefault(processor.node, []).append(processor.number)
    names = [name for name, many in machine.layout for _ in range(many)]
    kinds = [f"{names[node]} x {len(there)}" for node, there in nodes.items()]  # a last node may be used in part
    sizes = [len(node) for node in nodes.values()]
    if len(nodes) <= most:
        size = _unit(gcd(*sizes), lambda size: sum(n // size for n in sizes), jobs, most)
        if len(set(sizes)) > 1 or size < sizes[0]:
            places = tuple(tuple(tuple(node[i : i + size]) for i in range(0, len(node), size)) for node in nodes.values())
            return Units(places, tuple(kinds))
    many = [kinds.count(kind) for kind in dict.fromkeys(kinds)]
    each = _unit(gcd(*many), lambda each: sum(n // each for n in many), jobs, most)
    return _whole_nodes(kinds, list(nodes.values()), each)


def _unit(common: int, count: Callable[[int], int], jobs: int, most: int) -> int:
    """The smallest divisor of ``common`` with which there are ``most`` units or fewer, but enough for the jobs; else the largest
    with which there are enough; else 1."""
    enough = [size for size in range(1, common + 1) if common % size == 0 and count(size) >= jobs]
    return next((size for size in enough if count(size) <= most), max(enough, default=1))


def _whole_nodes(kinds: Sequence[str], nodes: Sequence[Sequence[int]], each: int) -> Units:
    """Whole nodes of a kind, ``each`` neighbours a unit: where they are does not matter."""
    blocks: dict[str, list[list[int]]] = {}
    for kind, node in zip(kinds, nodes):
        there = blocks.setdefault(kind, [[]])
        if len(there[-1]) >= each * len(node):
            there.append([])
        there[-1].extend(node)
    return Units(tuple(tuple(map(tuple, there)) for there in blocks.values()), tuple(blocks))


def divisions(of: Units, jobs: int) -> Iterator[Division]:
    """Return every way to assign all units to this many jobs, each of which gets some; of those that differ only by the order
    of places of one kind, the first. It does not matter which units of a place a job gets: the first ones go to the first job."""
    kinds: dict[str, list[int]] = {}
    for i, kind in enumerate(of.kinds):
        kinds.setdefault(kind, []).append(i)
    ways = [
        combinations_with_replacement(list(_dealt(len(of.places[there[0]]), jobs)), len(there)) for there in kinds.values()
    ]
    order = [i for there in kinds.values() for i in there]
    for chosen in product(*ways):
        by_place = dict(zip(order, (column for some in chosen for column in some)))
        rows = tuple(zip(*(by_place[i] for i in range(len(of.places)))))
        if all(map(any, rows)):
            yield rows


def _dealt(count: int, jobs: int) -> Iterator[tuple[int, ...]]:
    if jobs == 1:
        yield (count,)
        return
    for own in range(count, -1, -1):
        for rest in _dealt(count - own, jobs - 1):
            yield (own, *rest)


def equal_division(of: Units, jobs: int) -> Division:
    """Divide the units among the jobs as equally as possible, one place after the other."""
    owed = [of.count // jobs + (job < of.count % jobs) for job in range(jobs)]
    rows = [[0] * len(of.places) for _ in range(jobs)]
    job = 0
    for i, place in enumerate(of.places):
        left = len(place)
        while left:
            while not owed[job]:
                job += 1
            some = min(left, owed[job])
            rows[job][i] += some
            owed[job] -= some
            left -= some
    return tuple(map(tuple, rows))


def shape_of(of: Units, row: Sequence[int]) -> Shape:
    """Return the shape of a job's group."""
    return tuple(sorted((kind, some) for kind, some in zip(of.kinds, row) if some))


def members(of: Units, division: Division) -> tuple[tuple[int, ...], ...]:
    """Return by job the processors of its group, place by place in the order of the shape, so that groups of one shape match."""
    taken = [0] * len(of.places)
    found = []
    for row in division:
        own: list[int] = []
        for i in sorted(range(len(row)), key=lambda i: (of.kinds[i], row[i], i)):
            for unit in of.places[i][taken[i] : taken[i] + row[i]]:
                own.extend(unit)
            taken[i] += row[i]
        found.append(tuple(own))
    return tuple(found)


def inside(of: Units, small: Shape, large: Shape) -> tuple[int, ...] | None:
    """Return how a group of one shape fits into a group of another: for each processor of the small one, numbered from 0 as in
    `members`, its number in the large one. None if it does not fit."""
    sizes = {kind: len(place[0]) for kind, place in zip(of.kinds, of.places)}
    first: list[int] = []
    at = 0
    for kind, some in large:
        first.append(at)
        at += some * sizes[kind]
    free, found = set(range(len(large))), list[int]()
    placed: dict[int, int] = {}
    for s in sorted(range(len(small)), key=lambda s: -small[s][1]):
        fits = [e for e in free if large[e][0] == small[s][0] and large[e][1] >= small[s][1]]
        if not fits:
            return None
        placed[s] = min(fits, key=lambda e: (large[e][1], e))
        free.remove(placed[s])
    for s, (kind, some) in enumerate(small):
        found += range(first[placed[s]], first[placed[s]] + some * sizes[kind])
    return tuple(found)
