"""What the compiled core is told, and when: a graph, cuts of its operators, tables of how bundles are synchronised. Also which
problems it can hold, and which pieces and operators are alike, so that it asks about only one of them."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

from taskflow.graph import Node, OperatorGraph
from taskflow.machine import Machine
from taskflow.mapper import Sync
from taskflow.operators.operator import Reads, Spec
from taskflow.optimizer.cost import Costs, FromTasks
from taskflow.regions import Rect
from taskflow.rules import UpdateRule
from taskflow.tasks.lower import (
    ChunkPattern,
    SyncStep,
    first_repetition,
    first_root,
    gradient_flow,
    gradients_given,
    make_sync_table,
)

if TYPE_CHECKING:
    from taskflow.optimizer.evaluate._core import Core  # which may not be built


def shapes(rect: Rect, reads: Reads, writes: Sequence[Rect], saves: Sequence[Spec]) -> tuple[object, ...]:
    """Return everything that the cost of a piece depends on, besides its operator and flops (as in
    `operators.operator.cost_key`)."""
    places = (rect, *reads.inputs, *reads.weights, *writes)
    return tuple([r.shape for r in places]), tuple([spec.shape for spec in saves])


def first_equal(keys: Iterable[Hashable]) -> list[int]:
    """Return for each key the index of the first equal one."""
    first: dict[Hashable, int] = {}
    return [first.setdefault(key, i) for i, key in enumerate(keys)]


def alike(graph: OperatorGraph) -> list[int]:
    """Return for each node the first one that costs the same. They have equal operators, specs of inputs, numbers of
    parameters, and gradients, both those that backward tasks get and those that they compute. Gradients matter because bytes
    alone do not determine costs: a gradient that is not computed may have as many bytes as one that is added to."""
    active, needs, _ = gradient_flow(graph)
    first: dict[object, int] = {}
    return [
        first.setdefault(
            (
                node.operator, node.specs, len(node.parameters), node.of_weights,
                tuple((t.node, t.index) in needs for t in node.inputs), given,
            ),
            node.number,
        )
        for node, given in zip(graph, gradients_given(graph, active, needs))
    ]


def describe_model(
    core: Core, graph: OperatorGraph, rule: UpdateRule | None, clips: bool, layers: Mapping[str, int],
    region: Callable[[Rect], int], listed: Callable[[list[Rect]], int],
) -> None:
    """Tell the core the graph and the update rule. ``clips``: whether gradients are clipped; ``layers``: their numbers by name;
    ``region`` and ``listed`` give the core's numbers of a Rect and of a list of them."""
    if rule is None:
        core.rule(False, 0, 0, 0, clips)
    else:
        core.rule(True, rule.state_bytes(4), rule.state_bytes(8), rule.flops(1), clips)
    active, needs, trained = gradient_flow(graph)
    for parameter in graph.parameters:
        dtype = parameter.spec.dtype
        core.add_parameter(
            layers[parameter.layer], region(parameter.spec.rect), dtype.itemsize, parameter.name in trained, dtype.num,
        )
    numbers = {p.name: i for i, p in enumerate(graph.parameters)}
    for node in graph:
        keeps = node.operator.keeps(node.specs)
        core.add_node(
            [t.node for t in node.inputs],
            [t.index for t in node.inputs],
            [numbers[p.name] for p in node.parameters],
            [t.dtype.itemsize for t in node.outputs],
            [(t.node, t.index) in needs for t in node.outputs],
            [any(t is loss for loss in graph.losses) for t in node.outputs],
            node.operator.kind == "state",
            node.number in active,
            keeps.inputs, keeps.weights, keeps.outputs,
        )
    for loss in graph.losses:
        core.add_loss(loss.node, loss.index, listed([loss.spec.rect]))
    for state, becomes in graph.carries:
        core.add_carry(state.node, state.index, becomes.node, becomes.index)
    core.finish_model()


def describe_cut(core: Core, node: Node, rects: Sequence[Rect], local: bool, listed: Callable[[list[Rect]], int]) -> int:
    """Tell the core an operator's pieces, and return its number of the cut. ``local``: each is computed for what reads it on its
    own processor (`Piece.local`). ``listed`` gives the core's number of a list of Rects."""
    operator, specs = node.operator, node.specs
    reads, writes = [node.reads(rect) for rect in rects], [node.writes(rect) for rect in rects]
    saves = [operator.saves(specs, rect) for rect in rects]
    flops = [operator.flops(specs, rect) for rect in rects]
    backward = [operator.backward_flops(specs, rect) for rect in rects]
    return core.add_cut(
        len(rects),
        local,
        [listed([r.inputs[i] for r in reads]) for i in range(len(node.inputs))],
        [listed([r.weights[i] for r in reads]) for i in range(len(node.parameters))],
        [listed([w[i] for w in writes]) for i in range(len(node.outputs))],
        first_equal(zip(map(shapes, rects, reads, writes, saves), flops, backward)) if len(rects) > 1 else [0],
        flops,
        backward,
        [
            [_nbytes(r.inputs, specs) for r in reads],
            [_nbytes(r.weights, [p.spec for p in node.parameters]) for r in reads],
            [_nbytes(w, [t.spec for t in node.outputs]) for w in writes],
            [sum(spec.nbytes for spec in saved) for saved in saves],
        ],
    )


def _nbytes(rects: Sequence[Rect], specs: Sequence[Spec]) -> int:
    return sum([rect.volume * spec.dtype.itemsize for rect, spec in zip(rects, specs)])


STEPS = {step: number for number, step in enumerate(SyncStep)}  # as in sync_table.h
MOST_PATTERNS, MOST_CHUNKS = 4096, 1_000_000  # that the core keeps


class CoreTables:
    """Tables that one core has been given. ``repeats``: number of repetitions of its plan (`Repetition`)."""

    def __init__(self, core: Core, repeats: int = 1) -> None:
        self._core, self._repeats = core, repeats
        self._ways: dict[Sync, int] = {}
        self._syncs: list[Sync] = []
        self._patterns: dict[ChunkPattern, int] = {}
        self._chunks = 0

    def way(self, sync: Sync) -> tuple[int, bool]:
        """Return the number by which the core refers to a `Sync`, and whether its first root differs between bundles."""
        number = self._ways.get(sync)
        if number is None:
            number = self._ways[sync] = len(self._syncs)
            self._syncs.append(sync)
        return number, first_root(sync, 1, 2) == 1

    def chunks(self, way: int, giving: tuple[bool, ...], size: int, itemsize: int) -> list[tuple[int, int, int, int]]:
        """Return (low, high, root, number of the pattern) of each chunk of a bundle, as in `SyncTable`."""
        table = make_sync_table(self._syncs[way], giving * self._repeats, size, itemsize)
        if self._repeats > 1:
            table = first_repetition(table, len(giving))
        self._chunks += len(table.chunks)
        if len(self._patterns) > MOST_PATTERNS or self._chunks > MOST_CHUNKS:
            self._core.forget_sync_tables()
            self._patterns.clear()
            self._chunks = len(table.chunks)
        return [(chunk.low, chunk.high, chunk.root, self._number(chunk.pattern)) for chunk in table.chunks]

    def _number(self, pattern: ChunkPattern) -> int:
        number = self._patterns.get(pattern)
        if number is None:
            number = self._patterns[pattern] = self._core.add_sync_pattern(
                [
                    (STEPS[row.step], row.place, row.source, row.parts, -1 if row.share is None else row.share, row.sums)
                    for row in pattern.rows
                ],
                [(row.after, row.gradients, row.readers) for row in pattern.rows],
                [(stage.phase.value, stage.order.value, stage.first, stage.last) for stage in pattern.stages],
                [-1 if row is None else row for row in pattern.sums],
            )  # fmt: skip
        return number


MOST_PROCESSORS = 4096  # that the compiled core numbers
MOST_SIZE, MOST_BYTES = 2**31 - 1, 2**63 - 1  # of a dimension, of a tensor


def unsupported(graph: OperatorGraph, machine: Machine, costs: Costs, rule: UpdateRule | None) -> str | None:
    """Return why the compiled core cannot evaluate this exactly as `lower` and `simulate` would; None if it can."""
    if isinstance(costs, FromTasks):
        return "the cost function needs whole tasks"
    if len(machine.processors) > MOST_PROCESSORS:
        return f"more than {MOST_PROCESSORS} processors"
    if any(graph.producer(becomes).operator.kind == "state" for _, becomes in graph.carries):
        return "a state that becomes another state"
    if rule is not None and any(rule.flops(n) != n * rule.flops(1) for n in (2, 1000)):
        return "an update rule whose flops are not proportional to the elements"
    if any(len(node.dims) > 8 or any(len(s.shape) > 8 for s in node.specs) for node in graph):
        return "more than 8 dimensions"
    if any(not _small(node) for node in graph):
        return "sizes that need more than 31 bits, or bytes that need more than 63"
    return None


def _small(node: Node) -> bool:
    """True if the core's integers can hold all sizes."""
    specs = [*node.specs, *(t.spec for t in node.outputs), *(p.spec for p in node.parameters)]
    sizes = (*(dim.size for dim in node.dims), *(size for spec in specs for size in spec.shape))
    return max(sizes, default=0) <= MOST_SIZE and all(spec.nbytes <= MOST_BYTES for spec in specs)
