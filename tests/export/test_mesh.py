"""Plans as meshes: every cut that lies along a mesh is found, ranks are renumbered where that helps, and the rest is refused."""

from __future__ import annotations

from dataclasses import replace
from itertools import permutations

import pytest

import taskflow
from taskflow.export.mesh import assigned, data_dims, mesh_of
from taskflow.mapper import OpConfig, Strategy


def chain(batch: int = 8, layers: int = 3) -> taskflow.OperatorGraph:
    graph = taskflow.OperatorGraph()
    x = taskflow.input(graph, (batch, 16), name="x")
    for number in range(layers):
        x = taskflow.relu(taskflow.linear(x, 16, name=f"h.{number}"), name=f"h.{number}.relu")
    label = taskflow.input(graph, (batch,), "int64", name="label")
    graph.minimize(taskflow.cross_entropy(x, label, name="loss"))
    return graph


def plan(text: str, ranks: int, graph: taskflow.OperatorGraph | None = None) -> tuple[taskflow.OperatorGraph, Strategy]:
    graph = graph or chain()
    return graph, taskflow.choose(text, graph, taskflow.load_machine("p100", ranks))[0]


@pytest.mark.parametrize("text,ranks,sizes,data", [
    ("data", 4, (4,), (0,)), ("t2 d2", 4, (2, 2), (0,)), ("t2 d4", 8, (4, 2), (0,)), ("p2 d2 mb1", 4, (2,), (0,)),
    ("t2 p2", 4, (2,), ()), ("d6", 6, (6,), (0,)),
])
def test_plans_of_degrees_are_meshes(text: str, ranks: int, sizes: tuple[int, ...], data: tuple[int, ...]) -> None:
    graph, strategy = plan(text, ranks, chain(batch=24))
    mesh = mesh_of(graph, strategy)
    assert (mesh.sizes, data_dims(graph, mesh)) == (sizes, data)
    assert not mesh.refused and mesh.ranks == ranks and mesh.devices == tuple(range(ranks))
    for node in graph:  # and back
        assert mesh.config(node, mesh.assignments[node.name], strategy.pipeline) == strategy[node.name]


def test_every_order_of_a_grid_is_found_or_refused() -> None:
    """By trying all: an assignment is found if and only if some assignment puts every piece on its processor."""
    for places in permutations(range(4)):
        config = OpConfig((2, 2), places)
        found = assigned(config, (0, 1, 2, 3), (2, 2))
        fits = [wanted for wanted in ((0, 1), (1, 0)) if all(
            places[2 * color[0] + color[1]] == 2 * rank[0] + rank[1]
            for rank in ((0, 0), (0, 1), (1, 0), (1, 1))
            for color in [(rank[wanted.index(0)], rank[wanted.index(1)])]
        )]
        assert found == (fits[0] if fits else None), places


def test_a_plan_on_permuted_devices_renumbers_its_ranks() -> None:
    graph, strategy = plan("t2 d2", 4)
    order = (2, 0, 3, 1)
    moved = replace(strategy, configs={
        name: replace(config, processors=tuple(order[p] for p in config.processors)) for name, config in strategy.configs.items()
    })
    mesh = mesh_of(graph, moved)
    assert not mesh.refused and sorted(mesh.devices) == [0, 1, 2, 3] and mesh.devices != (0, 1, 2, 3)
    for node in graph:
        assert mesh.config(node, mesh.assignments[node.name], None) == moved[node.name]


def test_what_no_mesh_has_is_refused_by_name() -> None:
    graph, strategy = plan("data", 4)
    configs = dict(strategy.configs)
    configs["h.0"] = OpConfig((4, 1, 1), (0, 2, 1, 3))
    configs["h.1"] = OpConfig((2, 1, 1), (0, 1), ((3.0, 1.0), (), ()))
    configs["h.2"] = OpConfig((1, 3, 1), (0, 1, 2))
    mesh = mesh_of(graph, replace(strategy, configs=configs))
    assert set(mesh.refused) == {"h.0", "h.1", "h.2"}
    assert "ascending" in mesh.refused["h.0"] and "weights" in mesh.refused["h.1"] and "16" in mesh.refused["h.2"]


def test_operators_on_few_ranks_are_named() -> None:
    graph, strategy = plan("data", 4)
    configs = {**strategy.configs, "h.1": OpConfig((2, 1, 1), (0, 2)), "h.2": OpConfig((1, 1, 1), (0,))}
    mesh = mesh_of(graph, replace(strategy, configs=configs))
    assert mesh.redundant == ("h.1", "h.2") and mesh.assignments["h.1"] == (0, None) and mesh.assignments["h.2"] == (None, None)


def test_pipelines_of_unequal_ranks_are_refused() -> None:
    graph, strategy = plan("p2 d2 mb1", 4)
    configs = {**strategy.configs, "h.0": OpConfig((8, 1, 1), (0, 2) * 4)}
    with pytest.raises(ValueError, match="equally many devices"):
        mesh_of(graph, replace(strategy, configs=configs))
