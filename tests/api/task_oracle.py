"""Random programs of launches for the generic task API, and their meaning on one numpy array per region.

Values are whole numbers, so sums are exact. Launches are the same for both: the oracle calls the functions on slices.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cache
from random import Random
from typing import Any

import numpy as np

import taskflow
from taskflow.partition import Image, Partition, Replicate, Tile
from taskflow.regions import LogicalRegion, Privilege, PrivilegeError, Rect, Requirement, check_index_launch
from taskflow.tasks.launch.function import TaskFunction

MODULUS = 10_007


class Pieces(Partition):
    """Any Rects, one a color."""

    def __init__(self, rects: list[Rect], space: Rect) -> None:
        self.space, self.colors, self._rects = space, (len(rects),), rects

    def rect(self, color):
        return self._rects[color[0]]

    def overlapping(self, rect):
        return iter((i,) for i, piece in enumerate(self._rects) if piece.overlaps(rect))

    disjoint = complete = False


@cache
def function(privileges: tuple[tuple[Privilege, ...], ...], listed: bool, returns: bool) -> TaskFunction:
    """A task whose results depend on everything that it reads, and on where each value lies."""
    names = [f"a{i}" for i in range(len(privileges))]
    kinds = [p[0] for p in privileges]

    def work(arrays, number, scalar, color):
        digest = number + 1 + int(scalar) % MODULUS + 17 * color[0]
        flat = [(kind, array) for kind, group in zip(kinds, arrays) for array in (group if listed else [group])]
        for kind, array in flat:
            if kind is Privilege.REDUCE:
                assert not array.any(), "a reduction must start from zero"
            elif kind.reads:
                weights = np.arange(1, array.size + 1).reshape(array.shape)
                digest = (digest * 31 + int((array % MODULUS * weights).sum())) % MODULUS
        for i, (kind, array) in enumerate(flat):
            cells = np.arange(array.size).reshape(array.shape)
            if kind is Privilege.WRITE:
                array[...] = (digest * (cells + 7) + i) % MODULUS
            elif kind is Privilege.READ_WRITE:
                array[...] = (array * 3 + digest + cells) % MODULUS
            elif kind is Privilege.REDUCE:
                array += (digest + cells * 5 + i) % 1009
        return digest if returns else None

    space: dict[str, Any] = {"work": work}
    exec(f"def drawn({', '.join(names)}, number, scalar, color): return work([{', '.join(names)}], number, scalar, color)", space)
    return taskflow.task(**dict(zip(names, kinds)))(space["drawn"])


@dataclass
class Call:
    """One launch. ``arguments``: per parameter the (region, pieces) of its list. ``scalar``: a number, or the launch of the
    program whose Future is used."""

    number: int
    arguments: list[list[tuple[int, list[Rect]]]]
    privileges: list[Privilege]
    listed: bool
    points: int
    places: list[int]
    reduce: str | None
    scalar: Call | int

    @property
    def task(self):
        return function(tuple((p,) for p in self.privileges), self.listed, self.reduce is not None)


class Case:
    """A body of launches, and others, over random regions."""

    def __init__(self, seed: int) -> None:
        self.random = random = Random(seed)
        self.shapes = [
            (random.randint(3, 14),) if random.random() < 0.6 else (random.randint(2, 6), random.randint(2, 6))
            for _ in range(random.randint(1, 3))
        ]
        self.regions = [LogicalRegion(f"r{i}", Rect.of(s), np.dtype(np.int64)) for i, s in enumerate(self.shapes)]
        self.calls = 0
        self.body = self._launches(random.randint(1, 5))
        self.others = self._launches(random.randint(1, 4))

    def _launches(self, count: int) -> list[Call]:
        made: list[Call] = []
        while len(made) < count:
            call = self._draw([c for c in made if c.reduce])
            points = {
                (i,): [
                    Requirement(self.regions[r], rects[i], p)
                    for p, group in zip(call.privileges, call.arguments) for r, rects in group
                ]
                for i in range(call.points)
            }
            try:
                check_index_launch("drawn", points)
            except PrivilegeError:
                continue
            made.append(call)
        return made

    def _draw(self, futures: list[Call]) -> Call:
        random, points = self.random, self.random.randint(1, 5)
        listed = random.random() < 0.3
        count = random.randint(1, 3)
        arguments = [
            [self._piece(points) for _ in range(random.randint(1, 2) if listed else 1)] for _ in range(count)
        ]
        self.calls += 1
        return Call(
            self.calls, arguments, [random.choice(list(Privilege)) for _ in range(count)], listed, points,
            [random.randrange(1000) for _ in range(points)], random.choice([None, None, "sum", "min", "max"]),
            random.choice(futures) if futures and random.random() < 0.5 else random.randrange(100),
        )

    def _piece(self, points: int) -> tuple[int, list[Rect]]:
        random, r = self.random, self.random.randrange(len(self.regions))
        space, shape = self.regions[r].rect, self.shapes[r]
        kind = random.random()
        cut = random.randrange(len(shape))
        tiles = Tile(shape, [points if i == cut else 1 for i in range(len(shape))])
        if kind < 0.5:
            return r, tiles.rects()
        if kind < 0.8:
            w = random.randint(1, 2)
            wide = Image(tiles, lambda q: Rect(tuple(x - w for x in q.lo), tuple(x + w for x in q.hi)), space)
            return r, wide.rects()
        if kind < 0.9:
            return r, Replicate(shape, points).rects()
        ends = [[sorted(random.randint(0, s) for _ in range(2)) for s in shape] for _ in range(points)]
        return r, [Rect(tuple(a for a, _ in e), tuple(b for _, b in e)) for e in ends]


class Oracle:
    """The meaning of a case."""

    def __init__(self, case: Case) -> None:
        self.arrays = [np.zeros(s, np.int64) for s in case.shapes]
        self.values: dict[int, float] = {}

    def run(self, calls: list[Call]) -> None:
        for call in calls:
            scalar = self.values[call.scalar.number] if isinstance(call.scalar, Call) else call.scalar
            results = []
            for i in range(call.points):
                groups = [
                    [self.arrays[r][rects[i].slices(Rect.of(self.arrays[r].shape))] for r, rects in group]
                    for group in call.arguments
                ]
                # A reduction adds to zeros.
                own = [
                    [np.zeros_like(a) for a in group] if p is Privilege.REDUCE else group
                    for p, group in zip(call.privileges, groups)
                ]
                results.append(call.task(*(g if call.listed else g[0] for g in own), call.number, scalar, (i,)))
                for p, group, added in zip(call.privileges, groups, own):
                    if p is Privilege.REDUCE:
                        for array, addition in zip(group, added):
                            array += addition
            if call.reduce:
                self.values[call.number] = float({"sum": sum, "min": min, "max": max}[call.reduce](results))


class Runner:
    """The same on a Tasks."""

    def __init__(self, case: Case, processors: int, transport=None, mapper=None) -> None:
        self.tasks = taskflow.TaskRuntime(processors, transport=transport, mapper=mapper)
        self.regions = [self.tasks.region(s, "int64", name=f"r{i}") for i, s in enumerate(case.shapes)]
        self.values: dict[int, Any] = {}
        self.body = case.body
        self.shared = np.zeros((), np.int64)  # passed with another value by many launches
        self.step = self.tasks.trace(lambda: self.run(self.body))

    def run(self, calls: list[Call]) -> None:
        for call in calls:
            given = [
                [(self.regions[r], Pieces(rects, self.regions[r].rect)) for r, rects in group] for group in call.arguments
            ]
            scalar = self.values[call.scalar.number] if isinstance(call.scalar, Call) else call.scalar
            if not isinstance(call.scalar, Call) and call.number % 2:
                self.shared[...] = scalar
                scalar = self.shared
            future = self.tasks.launch(
                call.task, over=call.points, place=lambda c, call=call: call.places[c[0]] % self.tasks.processors,
                reduce=call.reduce, number=call.number, scalar=scalar,
                **{f"a{i}": g if call.listed else g[0] for i, g in enumerate(given)},
            )
            if future is not None:
                self.values[call.number] = future


def changed(body: list[Call], random: Random) -> list[Call]:
    """The same launches with other numbers; now and then fewer of them, or one in other places."""
    found = [replace(call, scalar=call.scalar if isinstance(call.scalar, Call) else random.randrange(1000)) for call in body]
    if random.random() < 0.1:
        found = found[: random.randrange(len(found) + 1)]
    if found and random.random() < 0.1:
        i = random.randrange(len(found))
        found[i] = replace(found[i], places=[random.randrange(1000) for _ in found[i].places])
    return found


def compare(seed: int, processors: int, transport=None, iterations: int = 9, changing: bool = False) -> Runner:
    """Run a case on both; every region after every iteration, and every Future, must be the same. ``changing``: the body
    differs from iteration to iteration."""
    case = Case(seed)
    random = Random(seed + 1)
    oracle, runner = Oracle(case), Runner(case, processors, transport)
    for iteration in range(iterations):
        if random.random() < 0.2:
            oracle.run(case.others)
            runner.run(case.others)
        if random.random() < 0.2:
            r = random.randrange(len(case.shapes))
            value = np.arange(100, 100 + oracle.arrays[r].size).reshape(case.shapes[r])
            oracle.arrays[r][...] = value
            runner.tasks.write(runner.regions[r], value)
        runner.body = body = changed(case.body, random) if changing else case.body
        oracle.run(body)
        runner.step()
        looks = random.random() < 0.7
        if looks or iteration == iterations - 1:
            for region, wanted in zip(runner.regions, oracle.arrays):
                np.testing.assert_array_equal(runner.tasks.read(region), wanted, f"{region}, iteration {iteration}")
            for call in body:
                if call.reduce:
                    assert runner.values[call.number].get() == oracle.values[call.number]
    return runner
