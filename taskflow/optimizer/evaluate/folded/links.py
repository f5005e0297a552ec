"""What tasks occupy where replicas are alike: one of each set of links that replicas use in the same way."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from itertools import pairwise
from typing import Any

import numpy as np

from taskflow.machine import Around, Link, Machine, between_nodes, collective
from taskflow.tasks import AllToAll, Collective, Task, resources
from taskflow.tasks.lower import NotAlikeError


class FoldedResources:
    """`resources` of tasks of the first replica, each thing by its first image. Replica k's links are those of the routes between
    the k-th images. NotAlikeError where they are not a set of their own: what replicas share, one of them does not show."""

    def __init__(
        self, machine: Machine, images: dict[int, tuple[int, ...]],
        around: Callable[[Machine, Sequence[int]], Around] = collective, blocks: Sequence[int] = (),
    ) -> None:
        """``around`` says what a collective among processors of a machine occupies. ``blocks`` as of `Replicas`."""
        self._machine, self._first, self._around = machine, len(machine.processors), around
        self._count = len(next(iter(images.values())))
        self._blocks = (1, *(blocks or (self._count,)))
        self._orders: dict[int, list[int]] = {}
        if self._count == 1:  # a replica may send its loss to a processor that it does not use otherwise
            images = {processor: (processor,) for processor in range(self._first)} | images
        self._place = {image: (of, k) for of in images.values() for k, image in enumerate(of)}
        self._known = {image: p for p, of in images.items() for image in of}
        self._least: dict[int, int] = {}  # link -> one that is used alike, at last the least
        self._joined: set[tuple[int, int]] = set()
        self._done: set[tuple[tuple[int, ...], bool]] = set()
        self._occupied: dict[tuple[object, ...], tuple[int, ...]] = {}

    def join(self, task: Task) -> None:
        """Note the links that a task of the first replica uses. All tasks come before `of`."""
        if task.kind.travels:
            self.join_ends(task.processors, isinstance(task.work, Collective))

    def join_ends(self, members: tuple[int, ...], together: bool) -> None:
        """Note the links of a message from one processor to another, or of a collective of all (``together``)."""
        if (members, together) in self._done:
            return
        self._done.add((members, together))
        ends = [*zip(members, (*members[1:], members[0]))] if together else [members]
        for source, target in ends:
            if (source, target) not in self._joined:
                self._join(source, target)
        if together and between_nodes(self._machine, members):
            for member in members:  # all cards of a node send
                if (member, -1) not in self._joined:
                    of, _ = self._place[member]
                    self._joined.update((image, -1) for image in of)
                    self._join_ways(of, f"ways of {member} and its images to the network")

    def _join(self, source: int, target: int) -> None:
        if source not in self._place or target not in self._place:
            raise NotAlikeError(f"{source} sends to {target}, of which one is of no replica")
        (a, i), (b, j) = self._place[source], self._place[target]
        ends = [(a[k], b[n]) for k, n in zip(self._from(i), self._from(j))]
        self._joined.update(ends)
        machine = self._machine
        columns = machine.alike_routes(*zip(*ends)) if hasattr(machine, "alike_routes") else None
        if columns is None:
            self._same([machine.route(p, q) for p, q in ends], f"routes from {source} to {target} and from their images")
        else:
            self._join_all(columns, machine.route(source, target))

    def _from(self, first: int) -> list[int]:
        """All replicas, each as far from the ``first`` one as that is from number 0, block by block."""
        if first not in self._orders:
            number, found = np.arange(self._count), np.zeros(self._count, np.int64)
            for small, large in pairwise(self._blocks):
                found += (number // small + first // small) % (large // small) * small
            self._orders[first] = found.tolist()
        return self._orders[first]

    def join_ways(self) -> None:
        """Note the links between all processors and the network, which replicas may share: for collectives of all of them, in whose
        price that is. Nothing on one node."""
        if len({processor.node for processor in self._machine.processors}) > 1:
            for images in dict.fromkeys(images for images, _ in self._place.values()):
                self._join_ways(images, f"ways of {images[0]} and its images to the network", shared=True)

    def _join_ways(self, images: tuple[int, ...], what: str, shared: bool = False) -> None:
        """Note the links between processors that do the same and the network."""
        machine: Any = self._machine
        for out, way in ((True, machine.way_out), (False, machine.way_in)):
            columns = machine.alike_ways(images, out) if hasattr(machine, "alike_ways") else None
            if columns is None:
                self._same([way(image) for image in images], what, shared)
            else:
                self._join_all(columns, way(images[0]), shared)

    def _join_all(self, columns: list[list[int]], links: tuple[Link, ...], shared: bool = False) -> None:
        """Note that replicas use routes in the same way, given by the links' numbers. ``links``: of one of the routes."""
        for numbers, link in zip(columns, links):
            self._join_links(set(numbers), link.name, shared)

    def _same(self, routes: list[tuple[Link, ...]], what: str, shared: bool = False) -> None:
        """Note that replicas use these routes, one each, in the same way."""
        if len(set(map(len, routes))) > 1:
            raise NotAlikeError(f"{what} differ")
        for links in zip(*routes):
            if len({(x.bytes_per_second, x.latency_seconds, x.occupies_endpoints) for x in links}) > 1:
                raise NotAlikeError(f"{what} differ")
            self._join_links({link.number for link in links}, links[0].name, shared)

    def _join_links(self, numbers: set[int], name: str, shared: bool = False) -> None:
        """Note that replicas use these links, one each, in the same way. ``name``: of one of them."""
        if len(numbers) < self._count and not shared:
            raise NotAlikeError(f"replicas share the link {name}")
        if self._least.keys().isdisjoint(numbers):
            self._least.update(dict.fromkeys(numbers, min(numbers)))
            return
        roots = {self._find(number) for number in numbers}
        for root in roots:
            self._least[root] = min(roots)

    def _find(self, link: int) -> int:
        while (up := self._least.setdefault(link, link)) != link:
            self._least[link] = link = self._least[up]
        return link

    def links(self) -> list[tuple[int, int]]:
        """All links that are used, each with the first of those that are used alike."""
        return [(link, self._find(link)) for link in list(self._least)]

    def of(self, task: Task) -> tuple[int, ...]:
        """Return what the task occupies, one thing after another."""
        among = isinstance(task.work, Collective) and not isinstance(task.work, AllToAll)
        ends = Collective if among else type(task.work), task.source, task.processors
        if ends not in self._occupied:
            self._occupied[ends] = self._occupies(task)
        return self._occupied[ends]

    def _occupies(self, task: Task) -> tuple[int, ...]:
        if isinstance(task.work, Collective) and not isinstance(task.work, AllToAll):
            return self.images(self._around(self._machine, task.work.group).resources)
        return self.images(resources(task, self._machine))

    def images(self, occupied: Iterable[int]) -> tuple[int, ...]:
        """Return what replicas occupy, numbered as in `resources`: each thing by its first image, and once."""
        found: dict[int, None] = {}
        for r in occupied:
            found[self._known[r] if r < self._first else self._first + self._find(r - self._first)] = None
        return tuple(found)
