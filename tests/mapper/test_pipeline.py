"""Schedules of pipelines against their closed forms (Qi et al., "Zero bubble pipeline parallelism", arXiv 2401.10241, and
Narayanan et al., arXiv 2104.04473, section 2.2), by simulating networks of equal stages without transfer times."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from fractions import Fraction
from itertools import accumulate

import pytest

import taskflow
from taskflow.graph import OperatorGraph
from taskflow.machine import host
from taskflow.mapper import (
    OpConfig,
    Pass,
    PassKind,
    Pipeline,
    PipelineSchedule,
    Strategy,
    in_micro_batches,
    rank_passes,
)
from taskflow.mapper.pipeline import _needs
from taskflow.optimizer.explain import closed_form
from taskflow.rules import SGD
from taskflow.tasks import Compute, Kind, Task, TaskGraph, Timeline, simulate
from taskflow.tasks.lower import lower
from taskflow.tasks.simulate import Span

GPIPE, ONE_F_ONE_B, ZERO_BUBBLE, ZBV = PipelineSchedule


def pipelined(ranks: int, micro_batches: int, schedule: PipelineSchedule, virtual: int = 1) -> tuple[OperatorGraph, Strategy]:
    """A layer a stage, each of equal work; what else there is costs nothing (`cost`)."""
    graph = OperatorGraph("float32", "stages")
    x = taskflow.add_weight(taskflow.input(graph, (micro_batches, 2), name="x"), (2,), name="first")  # so that x needs a gradient
    count = ranks * virtual
    for stage in range(count):
        x = taskflow.linear(x, 2, bias=False, name=f"layer{stage}")
    graph.minimize(taskflow.mse_loss(x, taskflow.input(graph, (micro_batches, 2), name="y"), name="loss"))
    stages = {node.name: 0 for node in graph} | {f"layer{s}": s for s in range(count)} | {"loss": count - 1}
    configs = {
        node.name: in_micro_batches(
            node, OpConfig((1,) * len(node.dims), (schedule.rank(stages[node.name], ranks),)), micro_batches
        )
        for node in graph
    }
    return graph, Strategy(ranks, configs, pipeline=Pipeline(micro_batches, stages, ranks, schedule))


def cost(task: Task) -> float:
    """A unit for the forward task of a layer, and one each for the gradients of its inputs and of its weights."""
    if not isinstance(task.work, Compute) or task.work.node.operator.kind != "linear":
        return 0.0
    return 1.0 if task.kind is Kind.FORWARD or task.work.other is not None else 2.0


def simulated(graph: OperatorGraph, strategy: Strategy) -> tuple[TaskGraph, Timeline]:
    tasks = lower(graph, strategy, SGD(0.1))
    return tasks, simulate(tasks, host(strategy.processors), cost)


def most_kept(tasks: TaskGraph, timeline: Timeline) -> dict[int, int]:
    """The most inputs of layers that each rank keeps at once: from a forward task's start to the end of the last backward task."""
    ends: defaultdict[int, dict[tuple[str, object], float]] = defaultdict(dict)
    starts: defaultdict[int, dict[tuple[str, object], float]] = defaultdict(dict)
    for task in tasks:
        if isinstance(task.work, Compute) and task.work.node.operator.kind == "linear":
            key, span = (task.work.node.name, task.work.piece), timeline.spans[task.number]
            if task.kind is Kind.FORWARD:
                starts[task.processor][key] = span.start
            else:
                ends[task.processor][key] = max(ends[task.processor].get(key, 0.0), span.end)
    found = {}
    for rank in starts:
        events = sorted([(at, 1) for at in starts[rank].values()] + [(at, -1) for at in ends[rank].values()])
        # At one time, what ends comes first.
        found[rank] = max(accumulate(change for _, change in events))
    return found


def check(ranks: int, micro_batches: int, schedule: PipelineSchedule, virtual: int = 1) -> None:
    """The step's length, and with it the share that is bubble, and the activations kept on each rank."""
    p, m, v = ranks, micro_batches, virtual
    tasks, timeline = simulated(*pipelined(p, m, schedule, v))
    work = 3 * m * v  # of a rank
    idle = Fraction(timeline.makespan) - work
    if schedule is ZERO_BUBBLE:
        assert idle == p - 1  # a third of 1F1B's
    elif schedule is ZBV:
        assert idle == p - 1  # until the first micro-batch has come down the V, in units of half a stage
        own: defaultdict[int, list[Span]] = defaultdict(list)
        for task in tasks:
            if cost(task):
                own[task.processor].append(timeline.spans[task.number])
        for rank in range(p):  # no bubble between its passes
            assert max(s.end for s in own[rank]) - min(s.start for s in own[rank]) == work
    else:
        assert idle == 3 * (p - 1)  # each unit is the v-th part of a rank's stage
        assert idle / (work + idle) == Fraction(p - 1, v * m + p - 1)
    most = most_kept(tasks, timeline)
    for rank in range(p):
        kept = most[rank]
        if schedule is GPIPE:
            assert kept == m * v
        elif schedule is ZERO_BUBBLE:
            assert kept == min(p, m)
        elif schedule is ZBV:
            assert kept == 2 * p  # halves of stages: what 1F1B keeps at most, on every rank
        elif v == 1:
            assert kept == min(p - rank, m)
        else:
            assert kept == min(p * v + p - 1 - 2 * rank, m * v)  # rank 0: p (1 + (p - 1) / (p v)) stages


SOME = [(p, m) for p in (2, 3, 4, 7) for m in (p, p + 1, 2 * p, 3 * p + 2)] + [(4, 32), (16, 16)]


def counts(ranks: int, least: int) -> list[int]:
    """Numbers of micro-batches: each of them until passes have come round as often as a schedule has ways to begin and to end (a
    rank begins with fewer than two micro-batches a rank), and one far beyond, which adds more of what is between."""
    return [*range(least, 4 * ranks + 1), 8 * ranks]


@pytest.mark.parametrize("schedule", [GPIPE, ONE_F_ONE_B, ZERO_BUBBLE])
@pytest.mark.parametrize(("ranks", "micro_batches"), SOME)
def test_bubbles_and_activations_are_those_of_the_closed_form(ranks: int, micro_batches: int, schedule: PipelineSchedule) -> None:
    check(ranks, micro_batches, schedule)


@pytest.mark.parametrize("virtual", [2, 3])
@pytest.mark.parametrize(("ranks", "micro_batches"), [(2, 2), (2, 8), (3, 6), (4, 4), (4, 16), (8, 16)])
def test_interleaved_stages_divide_the_bubble(ranks: int, micro_batches: int, virtual: int) -> None:
    check(ranks, micro_batches, ONE_F_ONE_B, virtual)


@pytest.mark.parametrize(("ranks", "micro_batches"), [
    (2, 3), (2, 4), (2, 9), (3, 6), (4, 7), (4, 8), (4, 17), (7, 14), (16, 32),
])
def test_zero_bubble_in_a_v_has_no_bubble(ranks: int, micro_batches: int) -> None:
    check(ranks, micro_batches, ZBV, 2)


@pytest.mark.parametrize("schedule", list(PipelineSchedule))
@pytest.mark.parametrize("ranks", [2, 3, 5, pytest.param(8, marks=pytest.mark.slow)])
def test_the_closed_form_that_is_explained_is_that_of_few_micro_batches_too(ranks: int, schedule: PipelineSchedule) -> None:
    for micro_batches in range(1, 2 * ranks + 2):
        graph, strategy = pipelined(ranks, micro_batches, schedule, schedule.chunks or 1)
        _, timeline = simulated(graph, strategy)
        assert strategy.pipeline is not None
        work = 3 * micro_batches * (schedule.chunks or 1)
        assert closed_form(strategy.pipeline) == float(1 - Fraction(work) / Fraction(timeline.makespan))


@pytest.mark.slow
@pytest.mark.timeout(3000)
@pytest.mark.parametrize("ranks", range(2, 17))
def test_every_closed_form_of_zero_bubble_in_a_v(ranks: int) -> None:
    for micro_batches in counts(ranks, 2 * ranks - 1):
        check(ranks, micro_batches, ZBV, 2)


@pytest.mark.slow
@pytest.mark.timeout(3000)
@pytest.mark.parametrize("schedule", [GPIPE, ONE_F_ONE_B, ZERO_BUBBLE])
@pytest.mark.parametrize("ranks", range(2, 17))
def test_every_closed_form(ranks: int, schedule: PipelineSchedule) -> None:
    for micro_batches in counts(ranks, ranks):
        check(ranks, micro_batches, schedule)


@pytest.mark.slow
@pytest.mark.parametrize("ranks", range(2, 17))
def test_every_closed_form_of_interleaved_stages(ranks: int) -> None:
    for micro_batches in range(ranks, 8 * ranks + 1, ranks):
        check(ranks, micro_batches, ONE_F_ONE_B, 2)


def numbers(passes: Iterable[Pass]) -> str:
    return " ".join(f"{one.kind.value}{one.micro_batch}" for one in passes)


def test_the_order_of_passes_is_the_papers() -> None:
    # Qi et al., figure 3 (top): ZB-H1 on four ranks.
    assert numbers(rank_passes(ONE_F_ONE_B, 4, 1, 5, 3)) == "F0 B0 F1 B1 F2 B2 F3 B3 F4 B4"
    assert numbers(rank_passes(ONE_F_ONE_B, 4, 1, 5, 1)) == "F0 F1 F2 B0 F3 B1 F4 B2 B3 B4"
    assert numbers(rank_passes(ZERO_BUBBLE, 4, 1, 4, 0)) == "F0 F1 F2 F3 B0 W0 B1 W1 B2 W2 B3 W3"
    assert numbers(rank_passes(ZERO_BUBBLE, 4, 1, 4, 2)) == "F0 F1 B0 F2 B1 F3 B2 W0 B3 W1 W2 W3"
    assert numbers(rank_passes(GPIPE, 2, 1, 2, 0)) == "F0 F1 B0 B1"
    # Figure 6: ZB-V, the last rank of four, whose stages are 3 and 4.
    assert " ".join(map(str, rank_passes(ZBV, 4, 2, 8, 3))).startswith(
        "F0.3 F0.4 F1.3 F1.4 F2.3 F2.4 F3.3 F3.4 B0.4 W0.4 F4.3 B0.3 W0.3 F4.4 "
    )
    assert numbers(rank_passes(ZBV, 2, 2, 3, 0)) == "F0 F1 F2 F0 B0 W0 F1 B1 W1 B0 W0 F2 B2 W2 B1 W1 B2 W2"
    assert str(rank_passes(ONE_F_ONE_B, 2, 2, 2, 1)[1]) == "F1.1"


@pytest.mark.parametrize("schedule", list(PipelineSchedule))
def test_every_pass_comes_once_and_after_what_it_needs(schedule: PipelineSchedule) -> None:
    for ranks, micro_batches in ((1, 3), (3, 1), (3, 7), (5, 5)):
        chunks = schedule.chunks or 1
        pipeline = Pipeline(micro_batches, {f"layer{s}": s for s in range(ranks * chunks)}, ranks, schedule)
        passes = pipeline.passes()
        phases = set(PassKind) if schedule in (ZERO_BUBBLE, ZBV) else {PassKind.FORWARD, PassKind.BACKWARD}
        assert set(passes) == {Pass(f, m, s) for f in phases for m in range(micro_batches) for s in range(ranks * chunks)}
        place = {one: i for i, one in enumerate(passes)}
        assert len(place) == len(passes)
        for one in passes:
            assert all(place[before] < place[one] for before in _needs(one, pipeline.count - 1))
        for rank in range(ranks):
            own = [one for one in passes if pipeline.rank(f"layer{one.stage}") == rank]
            assert own == rank_passes(schedule, ranks, chunks, micro_batches, rank)
            assert sorted({one.stage for one in own}) == schedule.stages(rank, ranks, chunks)


def test_wrong_numbers_are_refused() -> None:
    for arguments, message in (
        ((0, {}), "micro_batches must be a positive integer, got 0"),
        ((2, {"a": -1}), "the stage of a must be 0 or more, got -1"),
        ((2, {"a": 0, "b": 2}, 2), "3 stages cannot be dealt to 2 ranks evenly"),
        ((3, {"a": 3}, 2), "interleaved 1f1b needs micro-batches in multiples of the 2 ranks, got 3"),
        ((4, {"a": 3}, 2, ZERO_BUBBLE), "zb-h1 has one stage a rank, got 2"),
        ((4, {"a": 1}, 2, ZBV), "zbv has 2 stages a rank, got 1"),
    ):
        with pytest.raises(ValueError, match=message):
            Pipeline(*arguments)


def changed(graph: OperatorGraph, strategy: Strategy, stages: dict[str, int], ranks: int = 2) -> Strategy:
    assert strategy.pipeline is not None
    pipeline = Pipeline(strategy.pipeline.micro_batches, {**strategy.pipeline.stages, **stages}, ranks)
    return Strategy(strategy.processors, strategy.configs, pipeline=pipeline)


def test_stages_that_do_not_fit_the_graph_are_refused() -> None:
    graph, strategy = pipelined(2, 2, GPIPE)
    strategy.verify(graph)
    for stages, message in (
        ({"nobody": 1}, "unknown operators have stages: nobody"),
        ({"layer0": 1, "layer1": 0}, "operator layer1 is in stage 0, but reads layer0 of stage 1; stages must not fall"),
        ({"loss": 3}, "stage 2 has no operators"),
    ):
        with pytest.raises(ValueError, match=message):
            changed(graph, strategy, stages).verify(graph)


def test_operators_that_take_several_micro_batches_together_are_named() -> None:
    graph = OperatorGraph("float64", "normalised")
    x = taskflow.batch_norm(taskflow.input(graph, (4, 3, 2, 2), name="x"), name="bn")
    graph.minimize(taskflow.mean(taskflow.relu(x, name="relu"), name="loss"))
    configs = {n.name: in_micro_batches(n, OpConfig((1,) * len(n.dims), (0,)), 2) for n in graph}
    strategy = Strategy(1, configs, pipeline=Pipeline(2, {}))
    with pytest.raises(ValueError, match=r"operator bn.* takes several of the 2 micro-batches of .* together.*batch normalisation"):
        strategy.verify(graph)


def test_too_few_samples_are_named() -> None:
    graph = OperatorGraph("float64", "few")
    x = taskflow.input(graph, (3, 2), name="x")
    with pytest.raises(ValueError, match="operator x: 2 micro-batches, each cut in 2, need 4 samples, got 3; take fewer micro"):
        in_micro_batches(graph.node("x"), OpConfig((2, 1), (0, 1)), 2)
    assert x.shape == (3, 2)
    groups = taskflow.reshape(taskflow.input(graph, (8, 6), name="words"), (2, 24), name="groups")
    with pytest.raises(ValueError, match=r"operator groups: 4 .* got 2, of which each takes 4 of its input.* smaller groups"):
        in_micro_batches(graph.nodes[groups.node], OpConfig((1, 1), (0,)), 4)
