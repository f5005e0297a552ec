"""Pipeline: a step in micro-batches, its operators in stages, and the order in which each device runs its passes.

A micro-batch is a range of samples. So an operator that runs in micro-batches is one whose sample dimension is cut further. Its
pieces of all micro-batches are pieces like any others, and results are those of the whole batch. A pipeline only adds an order.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import chain, pairwise, product

from taskflow.graph import Node, OperatorGraph, integers_of_data
from taskflow.mapper.config import OpConfig
from taskflow.mapper.pipeline_schedules import Pass, PassKind, PipelineSchedule, rank_passes
from taskflow.operators.operator import Soap
from taskflow.partition import even_cuts, weighted_cuts
from taskflow.regions import Rect


@dataclass(frozen=True, slots=True)
class Pipeline:
    """Micro-batches, stages and schedule of a step. ``micro_batches``: the number of parts into which the samples of a step are
    divided. ``stages``: operator -> its stage, from 0 in the order of the graph (0 if it is not named). ``ranks``: the number
    of groups of devices; the schedule assigns stages to them (`PipelineSchedule.rank`). One stage means gradient accumulation.
    ``split``: the number of parts of a micro-batch that take turns in a pass, so that one is computed while messages of another
    are under way (dual-batch overlap). Raises ValueError for numbers that are inconsistent."""

    micro_batches: int
    stages: Mapping[str, int]
    ranks: int = 1
    schedule: PipelineSchedule = PipelineSchedule.ONE_F_ONE_B
    split: int = 1

    def __post_init__(self) -> None:
        for what, number in (("micro_batches", self.micro_batches), ("ranks", self.ranks), ("split", self.split)):
            if not isinstance(number, int) or isinstance(number, bool) or number < 1:
                raise ValueError(f"pipeline: {what} must be a positive integer, got {number!r}")
        for name, stage in self.stages.items():
            if not isinstance(stage, int) or isinstance(stage, bool) or stage < 0:
                raise ValueError(f"pipeline: the stage of {name} must be 0 or more, got {stage!r}")
        if self.count % self.ranks:
            raise ValueError(f"pipeline: {self.count} stages cannot be dealt to {self.ranks} ranks evenly")
        rank_passes(self.schedule, self.ranks, self.count // self.ranks, self.micro_batches, 0)

    @property
    def parts(self) -> int:
        """The number of ranges of samples that are computed one after the other: parts of all micro-batches."""
        return self.micro_batches * self.split

    @property
    def count(self) -> int:
        """The number of stages."""
        return max(self.stages.values(), default=0) + 1

    def stage(self, operator: str) -> int:
        """Return the stage of an operator."""
        return self.stages.get(operator, 0)

    def rank(self, operator: str) -> int:
        """Return the group of devices that runs an operator's stage."""
        return self.schedule.rank(self.stage(operator), self.ranks)

    def micro_batch(self, node: Node, config: OpConfig, piece: int) -> int | None:
        """Return the micro-batch of a piece; None for an operator whose samples are not cut into micro-batches."""
        return _range(node, config, piece, self.micro_batches)

    def part(self, node: Node, config: OpConfig, piece: int) -> int | None:
        """Return to which part of its micro-batch a piece belongs; None for an operator whose samples are not cut into parts."""
        number = _range(node, config, piece, self.parts)
        return None if number is None else number % self.split

    def all_parts(self, graph: OperatorGraph, configs: Mapping[str, OpConfig]) -> frozenset[int]:
        """Return the numbers of the operators that take all parts of a micro-batch together: they are not cut into parts, or read
        some of another part. All do if nothing is split."""
        if self.split == 1:
            return frozenset(range(len(graph)))
        fine, found = Pipeline(self.parts, {}), set[int]()
        known: dict[tuple[object, ...], bool] = {}
        for node in graph:
            if self.part(node, configs[node.name], 0) is None:
                found.add(node.number)
                continue
            for index, tensor in enumerate(node.inputs):
                source = graph.nodes[tensor.node]
                key = (*_cut_like(node, configs), index, *_cut_like(source, configs), tensor.index)
                if key not in known:
                    known[key] = fine.micro_batch(source, configs[source.name], 0) is None or _reads_its_own(
                        node, configs[node.name], fine, index, _apart(source, configs, fine, tensor.index)
                    )
                if not known[key]:
                    found.add(node.number)
        return frozenset(found)

    def last(self, graph: OperatorGraph, configs: Mapping[str, OpConfig]) -> frozenset[int]:
        """Return the numbers of the operators that run once all micro-batches are through. Their backward tasks come before all
        micro-batches. They take sums over the step's samples, such as losses, and their gradients do not depend on these, but
        perhaps on what is there from the start (`first`), such as the number of labels."""
        found: set[int] = set()
        given = integers_of_data(graph) if self.micro_batches > 1 else set()
        for node in graph if self.micro_batches > 1 else ():
            if self.micro_batch(node, configs[node.name], 0) is not None or node.parameters:
                continue
            keeps = node.operator.keeps(node.specs)
            if keeps.outputs or node.operator.saves(node.specs, node.space):
                continue
            after = [
                t.node in found or (self._divides(graph.nodes[t.node], configs) and t.node not in given) for t in node.inputs
            ]
            late = [tensor for tensor, is_late in zip(node.inputs, after) if is_late]
            unread = not keeps.inputs or (node.operator.linear and all(tensor.spec.differentiable for tensor in late))
            if unread and late and all(tensor.shape == () for tensor in late):
                found.add(node.number)
        for node in reversed(graph.nodes):  # whoever is read by others would have to run before them
            found -= {tensor.node for tensor in node.inputs if node.number not in found}
        return frozenset(found)

    def first(self, graph: OperatorGraph, last: Iterable[int]) -> frozenset[int]:
        """Return the numbers of the operators that run for all micro-batches before the first pass: inputs of integers, and what
        is made of these alone, where one of the ``last`` reads it."""
        found: set[int] = set()
        given = integers_of_data(graph)
        left = [tensor.node for number in last for tensor in graph.nodes[number].inputs]
        while left:
            number = left.pop()
            if number in given and number not in found:
                found.add(number)
                left += [tensor.node for tensor in graph.nodes[number].inputs]
        return frozenset(found)

    def _divides(self, node: Node, configs: Mapping[str, OpConfig]) -> bool:
        """True if an operator is taken in micro-batches."""
        return self.micro_batch(node, configs[node.name], 0) is not None

    def passes(self) -> list[Pass]:
        """Return all passes of a step, each after those that it needs, and on each rank in the schedule's order."""
        last = self.count - 1
        chunks = (last + 1) // self.ranks
        left = [rank_passes(self.schedule, self.ranks, chunks, self.micro_batches, r)[::-1] for r in range(self.ranks)]
        done: set[Pass] = set()
        found: list[Pass] = []
        while any(left):
            before = len(found)
            for queue in left:
                while queue and done.issuperset(_needs(queue[-1], last)):
                    done.add(queue[-1])
                    found.append(queue.pop())
            if len(found) == before:
                waiting = ", ".join(str(queue[-1]) for queue in left if queue)
                raise ValueError(f"pipeline: schedule {self.schedule.value} stops where each rank waits for another: {waiting}")
        return found

    def __str__(self) -> str:
        virtual = self.count // self.ranks
        interleaved = f", {virtual} a rank" if virtual > 1 else ""
        turns = f" of {self.split} parts that take turns" if self.split > 1 else ""
        return f"{self.schedule.value}: {self.micro_batches} micro-batches{turns}, {self.count} stages{interleaved}"


def _range(node: Node, config: OpConfig, piece: int, count: int) -> int | None:
    """In which of ``count`` equal ranges of samples a piece lies; None if an operator's samples are not cut so."""
    if count == 1:
        return 0
    dim = sample_dim(node)
    if dim is None or config.degrees[dim] % count:
        return None
    piece //= config.copies
    for degree in reversed(config.degrees[dim + 1 :]):
        piece //= degree
    return piece % config.degrees[dim] * count // config.degrees[dim]


def sample_dim(node: Node) -> int | None:
    """Return the index of the sample dimension in an operator's iteration space; None if it has none that can be cut, as what is
    made of constants alone has none."""
    return next((i for i, dim in enumerate(node.dims) if dim.soap is Soap.SAMPLE and dim.divisible), None)


def in_micro_batches(node: Node, config: OpConfig, micro_batches: int) -> OpConfig:
    """Return the configuration for all micro-batches, given ``config`` for one: samples are first cut into micro-batches, and
    each of these like ``config``. An operator without samples keeps ``config``. Raises ValueError if there are too few samples."""
    dim = sample_dim(node)
    if dim is None or micro_batches == 1:
        return config
    size, degree = node.dims[dim].size, config.degrees[dim]
    if size < micro_batches * degree:
        read = max((tensor.shape[0] for tensor in node.inputs if tensor.shape), default=0)
        together = f", of which each takes {read // size} of its input's together (a group of gating: take smaller groups)"
        raise ValueError(
            f"operator {node.name}: {micro_batches} micro-batches, each cut in {degree}, need {micro_batches * degree} "
            f"samples, got {size}{together if read > size else ''}; take fewer micro-batches or fewer replicas, or "
            "keep samples in the first dimension of what it makes"
        )
    degrees = (*config.degrees[:dim], degree * micro_batches, *config.degrees[dim + 1 :])
    weights = config.weights
    unequal = weights[dim] if weights else ()
    if unequal or size % (micro_batches * degree):  # else even cuts of all are even cuts of each
        outer = even_cuts(size, micro_batches)
        each = (weighted_cuts(high - low, unequal) if unequal else even_cuts(high - low, degree) for low, high in pairwise(outer))
        sizes = [b - a for cuts in each for a, b in pairwise(cuts)]
        if min(sizes) < 1:
            raise ValueError(
                f"operator {node.name}: {micro_batches} micro-batches of {size} samples, each cut as "
                f"{':'.join(f'{w:g}' for w in unequal)}, leave a piece empty; use fewer micro-batches"
            )
        weights = tuple(tuple(map(float, sizes)) if i == dim else w for i, w in enumerate(weights or ((),) * len(degrees)))
    inner, outer_count = config.copies, 1
    for d in config.degrees[dim:]:
        inner *= d
    for d in config.degrees[:dim]:
        outer_count *= d
    rows = (config.processors[i * inner : (i + 1) * inner] * micro_batches for i in range(outer_count))
    return OpConfig(degrees, tuple(chain.from_iterable(rows)), weights, config.copies)


MOST_RIGHT = 10_000
_RIGHT: set[tuple[object, ...]] = set()
"""Pairs of operators, and how they are cut, of which each piece reads its own micro-batch only: layers are alike, and there may be
a hundred; and a plan is verified more than once."""


def verify_pipeline(graph: OperatorGraph, configs: Mapping[str, OpConfig], pipeline: Pipeline) -> None:
    """Raise ValueError that names the operator if a pipeline's passes cannot run in its order: an operator comes before one
    that it reads from, or it takes several micro-batches together."""
    if unknown := set(pipeline.stages) - {node.name for node in graph}:
        raise ValueError(f"pipeline: unknown operators have stages: {', '.join(sorted(unknown)[:5])}")
    if missing := set(range(pipeline.count)) - {pipeline.stage(node.name) for node in graph}:
        raise ValueError(f"pipeline: stage {min(missing)} has no operators")
    whole: set[int] = set()  # nodes that are not taken in micro-batches
    for node in graph:
        if pipeline.micro_batch(node, configs[node.name], 0) is None:
            whole.add(node.number)
        for tensor in node.inputs:
            source = graph.nodes[tensor.node]
            if pipeline.stage(source.name) > pipeline.stage(node.name):
                raise ValueError(
                    f"pipeline: operator {node.name} is in stage {pipeline.stage(node.name)}, but reads {source.name} of stage "
                    f"{pipeline.stage(source.name)}; stages must not fall along the graph"
                )
    if pipeline.micro_batches == 1:
        return
    last = pipeline.last(graph, configs)
    found: dict[tuple[object, ...], _Apart | None] = {}
    for node in graph:
        for index, tensor in enumerate(node.inputs):
            if tensor.node in whole or node.number in last:
                continue
            source = graph.nodes[tensor.node]
            of_source = (*_cut_like(source, configs), tensor.index)
            if (both := (pipeline.micro_batches, *_cut_like(node, configs), index, *of_source)) in _RIGHT:
                continue
            if of_source not in found:
                found[of_source] = _apart(source, configs, pipeline, tensor.index)
            if not _reads_its_own(node, configs[node.name], pipeline, index, found[of_source]):
                raise ValueError(
                    f"pipeline: operator {node.name} ({node.operator.kind}) takes several of the {pipeline.micro_batches} "
                    f"micro-batches of {source.name} together, so that they cannot go through one after the other; cut both by "
                    "samples alike, or use one micro-batch (batch normalisation takes its statistics over the whole batch)"
                )
            if len(_RIGHT) > MOST_RIGHT:
                _RIGHT.clear()
            _RIGHT.add(both)


def _cut_like(node: Node, configs: Mapping[str, OpConfig]) -> tuple[object, ...]:
    """Key that pieces of operators share if they are cut alike."""
    config = configs[node.name]
    return node.operator, node.specs, config.degrees, config.weights, config.copies


def _outer(node: Node, config: OpConfig) -> list[tuple[int, Rect]]:
    """The pieces of all ranges of samples that are first or last along the other dimensions, with their numbers (that of the first
    copy). What is read and written grows with a piece, so that what holds for these holds for those between."""
    grid, dim = config.partition(node), sample_dim(node)
    ends = [range(d) if i == dim else sorted({0, d - 1}) for i, d in enumerate(config.degrees)]
    found = []
    for color in product(*ends):
        number = 0
        for at, degree in zip(color, config.degrees):
            number = number * degree + at
        found.append((number * config.copies, grid.rect(color)))
    return found


def _together(node: Node, config: OpConfig, pipeline: Pipeline) -> list[tuple[int, Rect]]:
    """Return, by micro-batch, all of its samples in one Rect that is first or last along the other dimensions: the union of the
    `_outer` pieces of all replicas, of which there may be tens of thousands. Empty if it is not cut into micro-batches."""
    grid, dim, count = config.partition(node), sample_dim(node), pipeline.micro_batches
    if dim is None or pipeline.micro_batch(node, config, 0) is None:
        return []
    each = config.degrees[dim] // count
    cuts = [c[::each] if i == dim else c for i, c in enumerate(grid.cuts)]
    ends = [range(count) if i == dim else sorted({0, d - 1}) for i, d in enumerate(config.degrees)]
    return [
        (color[dim], Rect(tuple(c[i] for c, i in zip(cuts, color)), tuple(c[i + 1] for c, i in zip(cuts, color))))
        for color in product(*ends)
    ]


def _reads_its_own(node: Node, config: OpConfig, pipeline: Pipeline, index: int, apart: _Apart | None) -> bool:
    """True if each piece reads no samples of an input but those of its own micro-batch. ``apart``: how those of the input lie."""
    together = _together(node, config, pipeline)
    if together and apart is not None and all(
        read.empty or apart.holds(read, mine)
        for mine, read in ((mine, node.reads(piece).inputs[index]) for mine, piece in together)
    ):
        return True  # and so does a part of them
    for number, piece in _outer(node, config):
        read = node.reads(piece).inputs[index]
        mine = pipeline.micro_batch(node, config, number)
        if not read.empty and (mine is None or apart is None or not apart.holds(read, mine)):
            return False
    return True


@dataclass(frozen=True, slots=True)
class _Apart:
    """Along which axis of a tensor micro-batches lie apart, and where each begins and ends there."""

    axis: int
    spans: list[tuple[int, int]]

    def holds(self, rect: Rect, micro_batch: int) -> bool:
        low, high = self.spans[micro_batch]
        return low <= rect.lo[self.axis] and rect.hi[self.axis] <= high


def _apart(node: Node, configs: Mapping[str, OpConfig], pipeline: Pipeline, output: int) -> _Apart | None:
    """Distance between an output's micro-batches; None if they share elements."""
    config = configs[node.name]
    found: list[list[Rect]] = [[] for _ in range(pipeline.micro_batches)]
    for micro, piece in _together(node, config, pipeline):
        found[micro].append(node.writes(piece)[output])
    if not found[0]:
        return None
    for axis in range(found[0][0].ndim):
        spans = [(min(r.lo[axis] for r in rects), max(r.hi[axis] for r in rects)) for rects in found]
        if all(a[1] <= b[0] for a, b in pairwise(spans)):
            return _Apart(axis, spans)
    return None


def _needs(one: Pass, last: int) -> list[Pass]:
    """The passes whose results a pass takes; ``last``: the number of the last stage."""
    m, s = one.micro_batch, one.stage
    if one.kind is PassKind.FORWARD:
        return [Pass(PassKind.FORWARD, m, s - 1)] if s else []
    if one.kind is PassKind.WEIGHTS:
        return [Pass(PassKind.BACKWARD, m, s)]
    return [Pass(PassKind.FORWARD, m, s), *([Pass(PassKind.BACKWARD, m, s + 1)] if s < last else [])]
