"""Annotations of single tensors: what is carried on, in which order, where it meets; GShard's layer in three lines."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import pytest

import taskflow
from taskflow.annotations import Annotated, annotate, annotations_of, propagate, recut, replicate, shard, split, weight
from taskflow.annotations.links import FREE, MIXED, links
from taskflow.graph import OperatorGraph
from taskflow.mapper import choose, map_graph
from taskflow.models.moe import MoEConfig, moe
from taskflow.operators.tensor import Tensor
from taskflow.optimizer import search
from taskflow.optimizer.space import Constraints
from taskflow.rules import SGD
from taskflow.tasks import Kind
from taskflow.tasks.lower import lower
from taskflow.tasks.topic import Purpose

D = 4
MOE = MoEConfig(
    batch=8, steps=6, vocabulary=64, hidden=8, inner=12, heads=2, head_size=6, layers=4, experts=4, factor=1.0, balance=0.01
)


def tensor(graph: OperatorGraph, name: str) -> Tensor:
    return next(t for node in graph for t in node.outputs if t.name == name)


def gshard(einsums: bool) -> OperatorGraph:
    """Annotated as algorithm 2 of the paper is, the experts of every layer."""
    graph = moe(MoEConfig(**{f: getattr(MOE, f) for f in MOE.__slots__} | {"einsums": einsums}))
    for layer in (1, 3):
        split(tensor(graph, f"layers.{layer}.norm2"), 0, D)
        replicate(weight(tensor(graph, f"layers.{layer}.moe.wg")))
        split(tensor(graph, f"layers.{layer}.moe.dispatch"), 0 if einsums else 1, D)  # EGCM; ours has GECM
    return graph


@pytest.mark.parametrize("einsums", [False, True])
def test_three_lines_make_experts_parallel_and_recut_two_tensors_a_layer(einsums: bool) -> None:
    graph = gshard(einsums)
    strategy, _ = choose("taskflow.annotations:Annotated", graph, taskflow.host(D))
    back = "expert_outputs" if einsums else "wo"
    recuts = [f"layers.{layer}.moe.{which}" for layer in (1, 3) for which in ("dispatch", back)]
    assert recut(graph, strategy.configs) == recuts
    for name in ("h", "expert_outputs") if einsums else ("wi", "wo"):
        node = graph.node(f"layers.1.moe.{name}")
        assert strategy[node.name].describe(node).lower() == "e/4 @ 0-3"
    messages = Counter(
        (task.topic.purpose, task.topic.name) for task in lower(graph, strategy, SGD(0.1)).tasks if task.kind.travels
    )
    scalars = {"loss", *(f"layers.{layer}.moe.mean" for layer in (1, 3))}
    moved = {(purpose, name) for purpose, name in messages if purpose in (Purpose.OUTPUT, Purpose.PARTIAL, Purpose.GRADIENT)}
    assert {name for _, name in moved} - scalars == set(recuts), "no activation but these, and sums of scalars"
    for name in recuts:  # all to all, forth and back
        assert messages[Purpose.OUTPUT, name] == messages[Purpose.GRADIENT, name] == D * (D - 1)
    synchronised = {name for purpose, name in messages if purpose is Purpose.WEIGHT_GRADIENTS}
    assert "layers.1.moe.wg" in synchronised and not any(name.endswith((".wi", ".wo")) and "moe" in name for name in synchronised)


def test_an_annotated_network_trains_as_under_data_parallelism() -> None:
    losses = []
    for mapper in ("taskflow.annotations:Annotated", "data"):
        graph = gshard(False)
        strategy, chosen = choose(mapper, graph, taskflow.host(D))
        run = taskflow.Executor(graph, strategy, taskflow.SGD(0.1), seed=3, machine=taskflow.host(D), mapper=chosen)
        numbers = np.random.default_rng(0)
        feeds = {name: numbers.integers(0, 64, (8, 6)) for name in ("tokens", "targets")}
        losses.append([run.train(feeds) for _ in range(3)])
    np.testing.assert_allclose(losses[0], losses[1], rtol=1e-5)


def test_the_table_says_what_was_annotated_and_where_the_rest_comes_from() -> None:
    text = str(propagate(gshard(False), D))
    lines = {line.split()[0]: line for line in text.splitlines()}
    assert "1 in 4 @ 0-3" in lines["layers.1.moe.dispatch"] and "annotated: split(1, 4)" in lines["layers.1.moe.dispatch"]
    assert "forward from layers.1.moe.dispatch, by split(1, 4) of layers.1.moe.dispatch" in lines["layers.1.moe.wi"]
    assert "backward from embedding, by split(0, 4)" in lines["embedding"]
    assert "partial sums from loss.blocks" in lines["loss"]
    assert lines["layers.1.moe.wg.weight"].endswith("annotated: replicate")
    assert "conflict" not in text


def test_patterns_say_the_same_from_outside() -> None:
    graph = moe(MOE)
    annotate(graph, {
        "layers.[13].norm2": ("split", 0, D), "*.moe.wg.weight": ("replicate",), "*.moe.dispatch": ("split", 1, D),
    })
    assert propagate(graph, D).configs == propagate(gshard(False), D).configs


def test_a_search_keeps_what_is_annotated_and_decides_the_rest() -> None:
    graph = mlp()
    split(tensor(graph, "a"), 1, 2)
    said = propagate(graph, 2)
    machine = taskflow.load_machine("a100", 2)
    found = search(graph, machine, budget="60p", constraints=Constraints.of(said.constraints()))
    assert {name: found.strategy[name] for name in said.configs} == said.configs
    rows = {row.tensor: row.why for row in said.rows(dict(found.strategy.configs))}
    assert rows["x"] == "found" and rows["a"].startswith("annotated: split(1, 2)")


# ---- rules -----------------------------------------------------------------------------------------------------------


def mlp() -> OperatorGraph:
    """x (8, 6) -> a (8, 4) -> relu -> b (8, 2) -> loss."""
    graph = OperatorGraph()
    x, label = taskflow.input(graph, (8, 6), name="x"), taskflow.input(graph, (8,), "int64", name="label")
    hidden = taskflow.relu(taskflow.linear(x, 4, name="a"), name="act")
    graph.minimize(taskflow.cross_entropy(taskflow.linear(hidden, 2, name="b"), label, name="loss"))
    return graph


def cuts(graph: OperatorGraph, processors: int = 8) -> dict[str, str]:
    return {name: config.describe(graph.node(name)) for name, config in propagate(graph, processors).configs.items()}


def test_channels_go_forward_into_partial_sums_and_backward_into_the_layer() -> None:
    graph = mlp()
    split(tensor(graph, "act"), 1, 2)
    assert cuts(graph) == {"a": "c/2 @ 0-1", "act": "a1/2 @ 0-1", "b": "k/2 @ 0-1"}


def test_samples_go_everywhere() -> None:
    graph = mlp()
    split(tensor(graph, "b"), 0, 4, processors=(5, 4, 3, 2))
    assert cuts(graph) == dict.fromkeys(("x", "label", "a", "act", "b", "loss"), "n/4 @ 5,4,3,2")


def test_a_table_of_processors_is_turned_as_the_operators_dimensions_are() -> None:
    graph = OperatorGraph()
    x = shard(taskflow.input(graph, (4, 6), name="x"), [[0, 1, 2], [3, 4, 5]])
    taskflow.transpose(x, 0, 1, name="turned")
    propagated = propagate(graph, 6)
    assert propagated.configs["x"].processors == (0, 1, 2, 3, 4, 5)
    assert propagated.configs["turned"].degrees == (3, 2) and propagated.configs["turned"].processors == (0, 3, 1, 4, 2, 5)


def test_an_annotated_weight_comes_first_and_a_replicated_one_is_not_cut() -> None:
    graph = mlp()
    split(tensor(graph, "x"), 0, 2)
    annotate(graph, {"a.weight": ("split", 0, 2)})
    assert cuts(graph)["a"] == "c/2 @ 0-1"
    graph = mlp()
    split(tensor(graph, "act"), 1, 2)
    annotate(graph, {"a.weight": ("replicate",)})
    assert "a" not in cuts(graph) and cuts(graph)["act"] == "a1/2 @ 0-1"


def test_where_two_annotations_meet_both_origins_are_named() -> None:
    graph = OperatorGraph()
    a, b = (taskflow.input(graph, (4, 4), name=name) for name in "ab")
    taskflow.add(split(a, 0, 2), split(b, 1, 2), name="sum")
    propagated = propagate(graph, 2)
    assert cuts(graph)["sum"] == "n/2 @ 0-1"
    assert str(propagated.conflicts[0]) == (
        "sum: n/2 @ 0-1 (forward from a, by split(0, 2) of a) was taken, not a1/2 @ 0-1 (forward from b, by split(1, 2) of b)"
    )
    assert "conflict at sum" in str(propagated)
    with pytest.raises(ValueError, match=r"contradict each other: sum: .* of a\) was taken, not .* of b\)"):
        propagate(graph, 2, strict=True)
    assert recut(graph, propagated.configs) == ["b"]


def test_what_no_annotation_reaches_is_cut_as_its_neighbours() -> None:
    graph = mlp()
    split(tensor(graph, "act"), 1, 2)
    mapper = Annotated()
    strategy = map_graph(mapper, graph, taskflow.host(2))
    assert mapper.propagated.open == ["x", "label", "loss"]
    assert strategy["x"].degrees == (1, 1) and strategy["loss"].processors == (0,)


def test_a_pass_over_annotations_changes_nothing_more() -> None:
    """What propagation found, annotated in full, is what it finds again."""
    first = propagate(gshard(False), D)
    again = moe(MOE)
    for name, said in annotations_of(first.graph).items():
        annotate(again, {name: ("replicate",) if said.replicated else ("shard", np.reshape(said.processors, said.degrees))})
    assert propagate(again, D).configs == first.configs


# ---- links -----------------------------------------------------------------------------------------------------------


def test_links_follow_what_pieces_read_and_write() -> None:
    graph = OperatorGraph()
    x = taskflow.input(graph, (4, 6, 8), name="x")
    taskflow.reshape(x, (24, 8), name="flat")
    taskflow.linear(x, 10, name="fc")
    flat, fc = graph.node("flat"), graph.node("fc")
    assert links(flat, 0, 4, {}).inputs == (0,) and links(flat, 0, 8, {}).inputs == (MIXED,)
    names = [dim.name for dim in fc.dims]
    channels, contracted = links(fc, names.index("c"), 2, {}), links(fc, names.index("k"), 2, {})
    assert channels.inputs == (FREE,) and channels.weights == (0, 0) and channels.outputs == (2,)
    assert contracted.inputs == (2,) and contracted.weights[0] == 1 and contracted.outputs == (FREE,)


# ---- mistakes --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("wrong, why", [
    (lambda g: split(tensor(g, "a"), 2, 2), r"split: a \[8, 4\] cannot be cut into 2 parts along dimension 2"),
    (lambda g: split(tensor(g, "a"), 1, 5), "cannot be cut into 5 parts"),
    (lambda g: split(tensor(g, "a"), 0, 2, (0, 1, 2)), "has 2 pieces, got 3 processors"),
    (lambda g: shard(tensor(g, "a"), [0, 1]), r"needs a table of processors with 2 dimensions"),
    (lambda g: (split(tensor(g, "a"), 0, 2), split(tensor(g, "a"), 1, 2)), r"annotated twice: split\(0, 2\), and split\(1, 2\)"),
    (lambda g: weight(tensor(g, "act")), "act has 0 parameters, no number 0"),
    (lambda g: annotate(g, {"nobody*": ("split", 0, 2)}), "'nobody\\*': no tensor has such a name"),
    (lambda g: annotate(g, {"a": ("cut", 0, 2)}), "no annotation 'cut'; there are split, replicate, shard"),
    (lambda g: propagate((split(tensor(g, "a"), 0, 4), g)[1], 2), "processor 2 does not exist; there are 0 to 1"),
    (lambda g: choose("taskflow.annotations:Annotated", g, taskflow.host(2)), "has no annotations; say"),
])
def test_mistakes_are_named(wrong: Any, why: str) -> None:
    with pytest.raises(ValueError, match=why):
        wrong(mlp())


def test_kinds_that_travel() -> None:
    """The tests above count all messages: there is no third kind."""
    assert [kind for kind in Kind if kind.travels] == [Kind.COPY, Kind.COLLECTIVE]
