"""Random programs of launches, their meaning on one array per region, and their execution on separate instances in
any order that the analysis allows. Values are integers, so sums are exact; memory starts as garbage, so nothing is
right by chance."""

from __future__ import annotations

from dataclasses import dataclass, field
from random import Random

import numpy as np

from taskflow.partition import Image, Partition, Tile
from taskflow.regions import (
    Analysis,
    CopyNeed,
    Instance,
    Launched,
    LogicalRegion,
    Privilege,
    Rect,
    ReduceNeed,
    Requirement,
)

MODULUS = 1_000_003
PRIVILEGES = tuple(Privilege)


@dataclass
class Program:
    """Launches in program order: requirements and processor."""

    regions: list[LogicalRegion]
    launches: list[tuple[list[Requirement], int]] = field(default_factory=list)
    processors: int = 1


def random_program(seed: int, count: int) -> Program:
    """``count`` launches, then one that reads everything; a program of fewer launches is a prefix of a longer one."""
    random = Random(seed)
    regions = [_random_region(random, f"r{i}") for i in range(random.randint(1, 3))]
    program = Program(regions, processors=random.randint(1, 4))
    pools = {region: _random_pool(random, region) for region in regions}
    while len(program.launches) < count:
        if random.random() < 0.4:
            _index_launch(random, program, pools)
        else:
            _single_launch(random, program, pools)
    del program.launches[count:]
    whole = [Requirement(region, region.rect, Privilege.READ) for region in regions]
    program.launches.append((whole, seed % program.processors))
    return program


def _random_region(random: Random, name: str) -> LogicalRegion:
    shape = (random.randint(3, 12),) if random.random() < 0.6 else (random.randint(2, 6), random.randint(2, 6))
    return LogicalRegion(name, Rect.of(shape), np.dtype(np.int64))


def halo(tiles: Partition, space: Rect, width: int) -> Image:
    """The pieces of ``tiles``, wider by ``width`` on every side."""
    return Image(tiles, lambda r: Rect(tuple(x - width for x in r.lo), tuple(x + width for x in r.hi)), space)


def _random_pool(random: Random, region: LogicalRegion) -> list[Partition]:
    shape = region.rect.shape
    pool: list[Partition] = []
    for _ in range(random.randint(1, 2)):
        tiles = Tile(shape, [random.randint(1, 4) for _ in shape])
        pool += [tiles, halo(tiles, region.rect, random.randint(1, 2))]
    return pool


def _random_rect(random: Random, region: LogicalRegion, pool: list[Partition]) -> Rect:
    if random.random() < 0.75:
        return random.choice(random.choice(pool).rects())
    ends = [sorted(random.randint(0, size) for _ in range(2)) for size in region.rect.shape]
    return Rect(tuple(a for a, _ in ends), tuple(b for _, b in ends))


def _single_launch(random: Random, program: Program, pools: dict[LogicalRegion, list[Partition]]) -> None:
    requirements: list[Requirement] = []
    for _ in range(random.randint(1, 3)):
        region = random.choice(program.regions)
        new = Requirement(region, _random_rect(random, region, pools[region]), random.choice(PRIVILEGES))
        if not any(old.conflicts(new) for old in requirements):
            requirements.append(new)
    program.launches.append((requirements, random.randrange(program.processors)))


def _index_launch(random: Random, program: Program, pools: dict[LogicalRegion, list[Partition]]) -> None:
    """A point task per tile of one region, which it touches, reading or reducing another region through one of its
    pieces."""
    region, other = random.choice(program.regions), random.choice(program.regions)
    tiles, pieces = pools[region][0], random.choice(pools[other])
    privilege = random.choice(PRIVILEGES)
    second = random.choice((Privilege.READ, Privilege.REDUCE))
    colors = list(pieces)
    for i, color in enumerate(tiles):
        requirements = [Requirement(region, tiles.rect(color), privilege)]
        new = Requirement(other, pieces.rect(colors[i % len(colors)]), second)
        if not requirements[0].conflicts(new):
            requirements.append(new)
        program.launches.append((requirements, i % program.processors))


Views = list[np.ndarray]  # type: ignore[type-arg]


def run_task(number: int, requirements: list[Requirement], views: Views) -> int:
    """The task of launch ``number``: returns a digest of what it read; what it writes and reduces depends on it."""
    digest = number + 1
    for requirement, view in zip(requirements, views):
        if requirement.privilege.reads:
            weights = np.arange(1, view.size + 1).reshape(view.shape)
            digest = (digest * 31 + int((view % MODULUS * weights).sum())) % MODULUS
    for i, (requirement, view) in enumerate(zip(requirements, views)):
        cells = np.arange(view.size).reshape(view.shape)
        if requirement.privilege is Privilege.WRITE:
            view[...] = (digest * (cells + 7) + i) % MODULUS
        elif requirement.privilege is Privilege.READ_WRITE:
            view[...] = (view * 3 + digest + cells) % MODULUS
        elif requirement.privilege is Privilege.REDUCE:
            view += (digest + cells * 5 + i) % 1009
    return digest


def initial(region: LogicalRegion) -> np.ndarray:  # type: ignore[type-arg]
    """A region's initial contents."""
    return np.arange(100, 100 + region.rect.volume).reshape(region.rect.shape)


def run_sequentially(program: Program) -> list[int]:
    """Every launch's digest, run in program order on one array per region."""
    arrays = {region: initial(region) for region in program.regions}
    return [
        run_task(n, requirements, [arrays[q.region][q.rect.slices(q.region.rect)] for q in requirements])
        for n, (requirements, _) in enumerate(program.launches)
    ]


def analyse(program: Program, exact: bool, contiguous: bool = False) -> list[Launched]:
    analysis = Analysis(exact=exact, contiguous=contiguous)
    return [analysis.launch(requirements, processor) for requirements, processor in program.launches]


Node = tuple[str, int]
Access = tuple[Instance, Rect, bool]  # memory, where, is it changed


class Steps:
    """Launches and movements as the nodes of a graph, with the edges that `taskflow.regions.dependence` documents."""

    def __init__(self, program: Program, launched: list[Launched]) -> None:
        self.program, self.launched = program, launched
        self.moves: dict[int, CopyNeed | ReduceNeed] = {m.number: m for x in launched for m in x.movements}
        self.before: dict[Node, set[Node]] = {}
        for x in launched:
            for move in x.movements:
                self.before[("move", move.number)] = self._before_move(move)
            self.before[("launch", x.number)] = (
                {("launch", d.earlier) for d in x.dependences}
                | {("move", m.number) for m in x.movements}
                | {("move", m) for m in x.shares}
            )

    @staticmethod
    def _before_move(move: CopyNeed | ReduceNeed) -> set[Node]:
        nodes: set[Node] = {("move", m) for m in move.after}
        if isinstance(move, ReduceNeed):
            nodes |= {("launch", n) for c in move.contributions for n in c.launches}
        elif move.source >= 0 and not move.after:
            nodes.add(("launch", move.source))
        return nodes

    def accesses(self, node: Node) -> list[Access]:
        """The memory that a node touches."""
        kind, number = node
        if kind == "launch":
            requirements, _ = self.program.launches[number]
            return [
                (instance, q.rect, q.privilege is not Privilege.READ)
                for q, instance in zip(requirements, self.launched[number].instances)
                if instance is not None
            ]
        move = self.moves[number]
        if isinstance(move, CopyNeed):
            return [(move.origin, move.rect, False), (move.target, move.rect, True)]
        parts = [(c.instance, c.rect, False) for c in move.contributions]
        return parts + [(move.target, c.rect, True) for c in move.contributions]

    def races(self) -> list[tuple[Node, Node]]:
        """Pairs of nodes that no edge orders and that touch the same memory, one of them changing it."""
        position = {node: i for i, node in enumerate(self.before)}
        above: dict[Node, int] = {}
        for node, before in self.before.items():  # movements come before their launch, so this is a topological order
            above[node] = 1 << position[node]
            for other in before:
                above[node] |= above[other]
        nodes = list(self.before)
        touched = {node: self.accesses(node) for node in nodes}
        return [
            (a, b)
            for j, b in enumerate(nodes)
            for i, a in enumerate(nodes[:j])
            if not above[b] >> i & 1 and _clash(touched[a], touched[b])
        ]

    def random_order(self, random: Random) -> list[Node]:
        left = {node: len(before) for node, before in self.before.items()}
        after: dict[Node, list[Node]] = {node: [] for node in left}
        for node, before in self.before.items():
            for other in before:
                after[other].append(node)
        ready = [node for node, count in left.items() if count == 0]
        order: list[Node] = []
        while ready:
            node = ready.pop(random.randrange(len(ready)))
            order.append(node)
            for later in after[node]:
                left[later] -= 1
                if left[later] == 0:
                    ready.append(later)
        assert len(order) == len(left), "the analysis asks for a circle"
        return order


def _clash(one: list[Access], two: list[Access]) -> bool:
    return any(
        a == b and (changes_a or changes_b) and ra.overlaps(rb)
        for a, ra, changes_a in one
        for b, rb, changes_b in two
    )


def run_on_instances(steps: Steps, order: list[Node]) -> list[int]:
    """Every launch's digest when the nodes run in this order, each on the memory that the analysis names."""
    memory: dict[Instance, np.ndarray] = {}  # type: ignore[type-arg]
    garbage = Random(len(order))

    def view(instance: Instance, rect: Rect) -> np.ndarray:  # type: ignore[type-arg]
        array = memory.get(instance)
        if array is None:
            home = instance.processor < 0
            array = initial(instance.region) if home else np.full(instance.rect.shape, garbage.randrange(10**6))
            memory[instance] = array
        assert instance.rect.contains(rect)
        return array[rect.slices(instance.rect)]

    digests = [-1] * len(steps.launched)
    for kind, number in order:
        if kind == "move":
            move = steps.moves[number]
            if isinstance(move, CopyNeed):
                view(move.target, move.rect)[...] = view(move.origin, move.rect)
            else:
                for part in move.contributions:
                    view(move.target, part.rect)[...] += view(part.instance, part.rect)
            continue
        requirements, processor = steps.program.launches[number]
        launched = steps.launched[number]
        for clear in launched.clears:
            view(clear.instance, clear.rect)[...] = 0
        views = []
        for requirement, instance in zip(requirements, launched.instances):
            if instance is None:
                views.append(np.zeros(requirement.rect.shape, np.int64))
            else:
                assert instance.processor == processor
                views.append(view(instance, requirement.rect))
        digests[number] = run_task(number, requirements, views)
    return digests
