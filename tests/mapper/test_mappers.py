"""The built-in mappers, the choice by name, and mappers that a user writes, good and bad."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
from language_model import CONFIG, feeds, model

import taskflow
from taskflow.graph import Node
from taskflow.machine import Machine, host
from taskflow.mapper import (
    MAPPERS,
    CopyRequest,
    DataParallel,
    Expert,
    Mapper,
    Megatron,
    ModelParallel,
    Profile,
    RandomMapper,
    RoundRobin,
    Strategy,
    choose,
    depths,
    map_graph,
    save,
)
from taskflow.models import build
from taskflow.operators.linear import Linear
from taskflow.operators.operator import Work

BATCH_8 = replace(CONFIG, batch=8)
HERE = "test_mappers"  # this module's name, as choose() imports it


def losses(mapper: Mapper | str, processors: int = 4, steps: int = 3) -> list[float | None]:
    """A short training run of the small language model."""
    graph, machine = model(), taskflow.host(processors)
    if isinstance(mapper, str):
        strategy, mapper = choose(mapper, graph, machine)
    else:
        strategy = map_graph(mapper, graph, machine)
    run = taskflow.Executor(graph, strategy, taskflow.SGD(0.5), seed=3, clip_norm=1.0, machine=machine, mapper=mapper)
    return [run.train(feeds(step)) for step in range(steps)]


@pytest.fixture(scope="module")
def reference() -> list[float | None]:
    return losses("data", 1)


# ---- choosing --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name,kind", [
    ("data", DataParallel), ("model", ModelParallel), ("expert", Expert), ("round-robin", RoundRobin),
    ("random", RandomMapper), ("megatron", Megatron),
])
def test_built_in(name: str, kind: type[Mapper]) -> None:
    assert set(MAPPERS) == {"data", "model", "expert", "megatron", "round-robin", "random"}
    strategy, mapper = choose(name, model(), taskflow.host(3))
    assert type(mapper) is kind and mapper.name == name == strategy.name
    strategy.verify(model())


def test_random_depends_on_the_seed_only() -> None:
    found = [choose("random", model(), taskflow.host(4), seed=seed)[0] for seed in (1, 1, 2)]
    assert found[0] == found[1] != found[2]


def test_a_file(tmp_path: Path) -> None:
    graph = model()
    strategy, _ = choose("random", graph, taskflow.host(3), seed=5)
    save(strategy, graph, "host-3", tmp_path / "plan.json")
    read, mapper = choose(str(tmp_path / "plan.json"), model(), taskflow.host(3))
    assert read == strategy
    assert not (mapper.wants_profiling or mapper.orders_tasks or mapper.selects_sources)


class Mine(Mapper):
    """Everything whole; operators dealt to the processors."""

    name = "mine"

    def slice_task(self, node: Any, machine: Any) -> Sequence[int]:
        return (1,) * len(node.dims)

    def map_task(self, node: Any, piece: int, degrees: Sequence[int], machine: Any) -> int:
        return node.number % len(machine.processors)


class Unfinished(Mapper):
    def slice_task(self, node: Any, machine: Any) -> Sequence[int]:
        return (1,) * len(node.dims)


class Demanding(Mine):
    def __init__(self, book: str) -> None:
        self.book = book


NOT_A_CLASS = Mine()


class NotAMapper:
    pass


def test_a_class_of_ones_own(reference: list[float | None]) -> None:
    strategy, mapper = choose(f"{HERE}:Mine", model(), taskflow.host(3))
    assert type(mapper).__name__ == "Mine" and strategy["tokens"].processors == (0,)
    np.testing.assert_allclose(losses(f"{HERE}:Mine", 3), reference, rtol=1e-10)


def test_a_module_in_the_current_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = "from taskflow.mapper import DataParallel\nclass Plan(DataParallel):\n    name = 'plan'\n"
    (tmp_path / "my_own_mapper.py").write_text(source)
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.chdir(tmp_path)
    assert choose("my_own_mapper:Plan", model(), taskflow.host(2))[1].name == "plan"


@pytest.mark.parametrize("name,error,message", [
    ("fastest", ValueError, r"no mapper 'fastest'; use data, model, expert, megatron, round-robin, random, a plan such as "
     r"'t2 p2 mb1', a strategy file FILE"),
    ("", ValueError, r"no mapper ''"),
    ("plan.txt", ValueError, r"no mapper 'plan.txt'"),
    ("nothing.json", FileNotFoundError, r"nothing.json does not exist"),
    ("no_such_module:Mine", ImportError, r"mapper no_such_module:Mine: cannot import no_such_module: No module named"),
    (f"{HERE}:Nothing", ValueError, r"test_mappers has no class Nothing that is a taskflow.Mapper"),
    (f"{HERE}:NotAMapper", ValueError, r"test_mappers has no class NotAMapper that is a taskflow.Mapper"),
    (f"{HERE}:NOT_A_CLASS", ValueError, r"test_mappers has no class NOT_A_CLASS"),
    (f"{HERE}:Unfinished", ValueError, r"mapper test_mappers:Unfinished: Unfinished lacks map_task"),
    (f"{HERE}:Demanding", ValueError, r"Demanding must be callable without arguments, but missing a required argument: 'book'"),
    (f"{HERE}:", ValueError, r"test_mappers has no class "),
])
def test_names_that_stand_for_nothing(name: str, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        choose(name, model(), taskflow.host(2))


# ---- answers that are none -------------------------------------------------------------------------------------------


def answering(**answers: Any) -> Mapper:
    """A mapper that gives these answers for softmax (select_reduction: for its layer), good ones elsewhere."""

    class Nonsense(DataParallel):
        name = "nonsense"

        def slice_task(self, node: Any, machine: Any) -> Any:
            if node.name == "softmax" and "slice_task" in answers:
                return answers["slice_task"]
            return super().slice_task(node, machine)

        def map_task(self, node: Any, piece: int, degrees: Any, machine: Any) -> Any:
            return answers["map_task"] if node.name == "softmax" and "map_task" in answers else piece

        def select_reduction(self, layer: str, nbytes: int, holders: Any, machine: Any) -> Any:
            if layer == "softmax" and "select_reduction" in answers:
                return answers["select_reduction"]
            return super().select_reduction(layer, nbytes, holders, machine)

    return Nonsense()


@pytest.mark.parametrize("answers,message", [
    ({"slice_task": (2, 1)}, r"one degree .* for each of \['n', 'a1', 'c', 'k'\], got \(2, 1\)"),
    ({"slice_task": (0, 1, 1, 1)}, r"one degree \(1 or more\)"),
    ({"slice_task": (1.0, 1, 1, 1)}, r"one degree .* got \(1.0, 1, 1, 1\)"),
    ({"slice_task": "many"}, r"one degree .* got \('m', 'a', 'n', 'y'\)"),
    ({"slice_task": None}, r"one degree"),
    ({"slice_task": 2}, r"one degree"),
    ({"slice_task": (7, 1, 1, 1)}, r"degree of n must be 1 to 6, got 7"),
    ({"slice_task": (10**12, 1, 1, 1)}, r"degree of n must be 1 to 6, got 1000000000000"),
    ({"map_task": 99}, r"processor 99 does not exist; there are 0 to 1"),
    ({"map_task": -1}, r"processor -1 does not exist"),
    ({"map_task": "1"}, r"processor '1' does not exist"),
    ({"map_task": None}, r"processor None does not exist"),
    ({"select_reduction": "ring"}, r"select_reduction of softmax must return a Sync, got 'ring'"),
    ({"select_reduction": None}, r"select_reduction of softmax must return a Sync, got None"),
])
def test_nonsense_names_mapper_and_operator(answers: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message) as caught:
        map_graph(answering(**answers), model(), taskflow.host(2))
    assert "mapper nonsense" in str(caught.value) and "softmax" in str(caught.value)


def test_a_dimension_that_cannot_be_cut_is_named() -> None:
    graph = model()
    node = next(n for n in graph if any(not d.divisible and d.size > 1 for d in n.dims))
    index = next(i for i, d in enumerate(node.dims) if not d.divisible and d.size > 1)

    class Cutter(DataParallel):
        def slice_task(self, other: Any, machine: Any) -> Sequence[int]:
            return [2 if other is node and i == index else 1 for i in range(len(other.dims))]

    with pytest.raises(ValueError, match=f"operator {node.name}: dimension {node.dims[index].name} cannot be cut"):
        map_graph(Cutter(), graph, taskflow.host(2))


# ---- placements ------------------------------------------------------------------------------------------------------

DEPTH = {"tokens": 0, "targets": 0, "embedding": 0, "lstm0": 1, "lstm1": 2, "softmax": 3, "loss": 3, "mean": 3}


def layers(graph: taskflow.OperatorGraph) -> dict[str, list[str]]:
    """The operators of each layer: ``softmax`` has ``softmax`` and ``softmax.1``."""
    return {layer: [n.name for n in graph if n.name.split(".")[0] == layer] for layer in DEPTH}


def test_depths_of_the_language_model() -> None:
    graph = model()
    found = depths(graph)
    for layer, names in layers(graph).items():
        assert names, layer
        assert {found[name] for name in names} == {DEPTH[layer]}, layer
    assert len(layers(graph)["lstm0"]) > 1, "the recurrent layers must consist of several operators for this to say anything"


def test_depths_take_the_longest_path() -> None:
    graph = taskflow.OperatorGraph()
    x = taskflow.input(graph, (4, 3), name="x")
    a = taskflow.linear(x, 3, name="a")
    b = taskflow.relu(taskflow.linear(a, 3, name="b"), name="relu")
    taskflow.add(a, b, name="sum")
    taskflow.linear(taskflow.add(x, x, name="early"), 2, name="side")
    assert depths(graph) == {"x": 0, "a": 0, "b": 1, "relu": 1, "sum": 1, "early": 0, "side": 0}


def test_data_parallel_cuts_samples_over_all() -> None:
    graph = model(config=BATCH_8)
    strategy, _ = choose("data", graph, taskflow.host(8))
    for node in graph:
        has_samples = bool(node.dims) and node.dims[0].name == "n" and node.dims[0].divisible
        wanted = "n/8 @ 0-7" if has_samples else "whole @ 0"
        assert strategy[node.name].describe(node) == wanted


@pytest.mark.parametrize("mapper", [DataParallel(), Expert()])
def test_state_without_samples_takes_turns(mapper: Mapper) -> None:
    """Running statistics of a layer lie where their next value is made, those of the next layer on the next processor."""
    graph = build("ResNet-101", devices=4, image=64)
    strategy = map_graph(mapper, graph, taskflow.host(4))
    places = [strategy[node.name].processors for node in graph if node.operator.kind == "running_statistics"]
    assert places == [(i % 4,) for i in range(104)]
    for carried, becomes in graph.carries:
        assert strategy[graph.producer(carried).name].processors == strategy[graph.producer(becomes).name].processors


def test_state_of_samples_lies_with_its_samples() -> None:
    graph = taskflow.OperatorGraph()
    x = taskflow.input(graph, (8, 4), name="x")
    last = taskflow.state(graph, (8, 4), name="last")
    graph.carry(last, taskflow.add(x, last))
    strategy = map_graph(DataParallel(), graph, taskflow.host(4))
    assert {strategy[node.name].processors for node in graph} == {(0, 1, 2, 3)}


def test_data_parallel_with_fewer_samples_than_processors() -> None:
    strategy, _ = choose("data", model(), taskflow.host(16))
    assert strategy["softmax"].degrees == (6, 1, 1, 1) and strategy["softmax"].processors == tuple(range(6))


@pytest.mark.parametrize("processors,place", [(1, [0, 0, 0, 0]), (2, [0, 0, 1, 1]), (4, [0, 1, 2, 3]), (8, [0, 1, 2, 3])])
def test_model_parallel_gives_each_depth_a_processor(processors: int, place: list[int]) -> None:
    graph = model()
    strategy, _ = choose("model", graph, taskflow.host(processors))
    for layer, names in layers(graph).items():
        for name in names:
            assert strategy[name].processors == (place[DEPTH[layer]],), name


def test_expert_for_recurrent_networks() -> None:
    """Wu et al.: data parallel between the two nodes of four, one processor a depth within each."""
    graph = model(config=BATCH_8)
    strategy = map_graph(Expert(per_node=4), graph, taskflow.host(8))
    for layer in ("embedding", "lstm0", "lstm1", "softmax"):
        for name in layers(graph)[layer]:
            node = graph.node(name)
            assert strategy[name].processors == (DEPTH[layer], 4 + DEPTH[layer])
            assert strategy[name].degrees == (2, *(1,) * (len(node.dims) - 1))


def test_expert_takes_the_largest_node_that_divides_the_machine() -> None:
    graph = model()
    strategy = map_graph(Expert(per_node=4), graph, taskflow.host(6))  # nodes of three
    assert strategy["lstm0"].processors == (0, 3) and strategy["softmax"].processors == (2, 5)
    with pytest.raises(ValueError, match="per_node must be at least 1, got 0"):
        Expert(per_node=0)


def test_expert_for_other_networks() -> None:
    """Krizhevsky: data parallelism, but dense layers cut in the channel dimension."""
    graph = taskflow.OperatorGraph()
    x = taskflow.input(graph, (8, 12), name="x")
    taskflow.relu(taskflow.linear(x, 16, name="dense"), name="relu")
    strategy, _ = choose("expert", graph, taskflow.host(4))
    assert strategy.describe(graph).splitlines() == ["x: n/4 @ 0-3", "dense: c/4 @ 0-3", "relu: n/4 @ 0-3"]


def test_round_robin_starts_one_further_on_each_time() -> None:
    graph = model()
    strategy, _ = choose("round-robin", graph, taskflow.host(3))
    for node in graph:
        wanted = [(node.number + piece) % 3 for piece in range(len(strategy[node.name].processors))]
        assert list(strategy[node.name].processors) == wanted


# ---- what the runtime asks -------------------------------------------------------------------------------------------


def test_profiling_is_reported_every_step(reference: list[float | None]) -> None:
    class Watcher(DataParallel):
        def __init__(self) -> None:
            self.profiles: list[Profile] = []

        def report_profiling(self, profile: Profile) -> None:
            self.profiles.append(profile)

    watcher = Watcher()
    np.testing.assert_allclose(losses(watcher), reference, rtol=1e-10)
    assert [(p.rank, p.step) for p in watcher.profiles] == [(0, 0), (0, 1), (0, 2)]
    for profile in watcher.profiles:
        assert all(task.start <= task.end for task in profile.tasks)
        assert all(a.end <= b.start for a, b in zip(profile.tasks, profile.tasks[1:]))
        assert {"forward", "backward", "copy", "sum", "norm", "clip", "update"} <= set(profile.by_kind())
        assert {task.processor for task in profile.tasks} == {0, 1, 2, 3}
        assert 0 < sum(profile.by_kind().values()) <= profile.seconds
        assert sum(profile.by_kind().values()) == pytest.approx(sum(task.seconds for task in profile.tasks))
    assert len({task.name for task in watcher.profiles[0].tasks if task.name.startswith("lstm0[")}) == 8  # 4 pieces, both ways


class Relay(Mapper):
    """Softmax is cut by channels, so all processors need all of its input: each copy comes from the holder that ``pick`` says."""

    name = "relay"

    def __init__(self, pick: Any) -> None:
        self.pick = pick
        self.requests: list[CopyRequest] = []

    def slice_task(self, node: Any, machine: Any) -> Sequence[int]:
        names = [dim.name for dim in node.dims]
        return [len(machine.processors) if node.operator.kind == "linear" and n == "c" else 1 for n in names]

    def map_task(self, node: Any, piece: int, degrees: Sequence[int], machine: Any) -> int:
        return piece

    def select_task_sources(self, request: CopyRequest) -> int:
        self.requests.append(request)
        return self.pick(request)


def copies(run: taskflow.Executor, tensor: str) -> list[tuple[int, int]]:
    """(source, target) of every copy of a tensor in the training step."""
    return [
        (task.source, task.processor)
        for task in run.program("train").graph if task.kind.value == "copy" and task.name.startswith(f"{tensor}[")
    ]


def relayed(mapper: Mapper) -> tuple[taskflow.Executor, list[float | None]]:
    graph, machine = model(), taskflow.host(4)
    run = taskflow.Executor(graph, map_graph(mapper, graph, machine), taskflow.SGD(0.5), seed=3, clip_norm=1.0, mapper=mapper)
    return run, [run.train(feeds(step)) for step in range(3)]


def test_sources_of_copies_can_be_chosen(reference: list[float | None]) -> None:
    first, last = Relay(lambda request: request.candidates[0]), Relay(lambda request: request.candidates[-1])
    by_owner, found = relayed(first)
    in_a_chain, chained = relayed(last)
    np.testing.assert_allclose(found, reference, rtol=1e-10)
    assert found == chained  # copies do not round
    tensor = by_owner.graph.node("softmax").inputs[0].name
    assert copies(by_owner, tensor) == [(0, 1), (0, 2), (0, 3)]
    assert copies(in_a_chain, tensor) == [(0, 1), (1, 2), (2, 3)]
    asked = [r for r in last.requests if r.tensor == tensor]
    assert [(r.target, r.candidates) for r in asked] == [(1, (0,)), (2, (0, 1)), (3, (0, 1, 2))]
    assert all(r.nbytes == r.rect.volume * 8 for r in asked)


def test_a_source_that_does_not_hold_the_data_is_refused() -> None:
    with pytest.raises(ValueError, match=r"select_task_sources chose processor 3 for .* -> 1; only \[0\] hold it"):
        relayed(Relay(lambda request: 3))


def test_tasks_can_be_ordered(reference: list[float | None]) -> None:
    class Backwards(DataParallel):
        """Of what is ready at the same time, the operators that come last go first."""

        def __init__(self) -> None:
            self.asked: set[tuple[str, str | None]] = set()
            self.first: dict[str, int] = {}

        def prepare(self, graph: taskflow.OperatorGraph, machine: Any) -> None:
            self.first = {node.name: -node.number for node in graph}

        def order_tasks(self, name: str, operator: str | None, kind: str) -> int:
            self.asked.add((kind, operator))
            return self.first.get(operator or "", 0)

    def order(mapper: Mapper) -> tuple[list[str], list[float | None]]:
        run, found = relayed(mapper)
        return [item.task.name for item in run.program("train").plan.items if hasattr(item, "task")], found

    mapper = Backwards()
    plain, found = order(DataParallel())
    turned, other = order(mapper)
    assert sorted(plain) == sorted(turned) and plain != turned
    assert plain[0].startswith("tokens[") and not turned[0].startswith("tokens[")
    np.testing.assert_allclose(found, reference, rtol=1e-10)
    np.testing.assert_allclose(other, reference, rtol=1e-10)
    assert {("forward", "lstm0"), ("backward", "lstm0"), ("update", None), ("copy", None)} <= mapper.asked


def test_strategies_of_mappers_are_plain_values() -> None:
    strategy, _ = choose("data", model(), taskflow.host(2))
    assert isinstance(strategy, Strategy)
    assert json.dumps({k: [c.degrees, c.processors] for k, c in strategy.configs.items()})


def test_expert_leaves_scores_where_they_are() -> None:
    """A dense layer cut by channels, and the loss behind it by blocks of classes on the same processors."""
    graph = taskflow.OperatorGraph()
    words, wanted = (taskflow.input(graph, (8, 5), "int64", name=name) for name in ("words", "wanted"))
    scores = taskflow.linear(taskflow.embedding(words, 17, 8), 17, name="softmax")
    graph.minimize(taskflow.cross_entropy(scores, wanted, blocks=4, name="loss"))
    strategy = map_graph(Expert(), graph, taskflow.host(4))
    for name, degree in (("softmax", 4), ("loss.blocks", 4)):
        degrees = dict(zip((dim.name for dim in graph.node(name).dims), strategy[name].degrees))
        assert degrees.pop("c") == degree and set(degrees.values()) == {1}
        assert strategy[name].processors == (0, 1, 2, 3)
    assert strategy["loss"].degrees[0] == 4


@dataclass(frozen=True, slots=True)
class OwnDense(Linear):
    """A user's dense layer, which experts shall cut along what it sums over."""

    kind: ClassVar[str] = "own_dense"
    dense_dim: ClassVar[str | None] = "k"


@dataclass(frozen=True, slots=True)
class OwnRows(Linear):
    """One that is no dense layer."""

    kind: ClassVar[str] = "own_rows"
    dense_dim: ClassVar[str | None] = None


@dataclass(frozen=True, slots=True)
class OwnRecurrent(Linear):
    """One whose kernels run step after step."""

    kind: ClassVar[str] = "own_recurrent"
    work: ClassVar[Work] = Work.RECURRENT


def test_expert_asks_the_operators_themselves() -> None:
    """It cuts users' operators as they say, whatever they are called."""

    def mapped(operator: Linear) -> list[str]:
        graph = taskflow.OperatorGraph()
        x = taskflow.input(graph, (8, 12), name="x")
        graph.apply(operator, (x,), name="own")
        strategy = map_graph(Expert(per_node=2), graph, taskflow.host(4))
        return strategy.describe(graph).splitlines()

    assert mapped(OwnDense(16)) == ["x: n/4 @ 0-3", "own: k/4 @ 0-3"]
    assert mapped(OwnRows(16)) == ["x: n/4 @ 0-3", "own: n/4 @ 0-3"]
    assert mapped(OwnRecurrent(16)) == ["x: n/2 @ 0,2", "own: n/2 @ 0,2"]


@pytest.mark.parametrize("base", [DataParallel, Expert, Megatron])
def test_who_places_one_piece_in_another_way_is_asked_about_each(base: type[Mapper]) -> None:
    class Last(base):  # type: ignore[misc, valid-type]
        def map_task(self, node: Node, piece: int, degrees: Sequence[int], machine: Machine) -> int:
            return len(machine.processors) - 1

    graph = build("Transformer", preset="small", batch=8)
    strategy = map_graph(Last(), graph, host(4))
    assert {p for config in strategy.configs.values() for p in config.processors} == {3}
