"""Partial values summed by an all-reduce: the same numbers as by an owner, with virtual processors and under real MPI ranks."""

from __future__ import annotations

from dataclasses import replace

import pytest
from fast_and_slow import fast_among
from partial_sums import case, feeds, results, summing
from programs.start import rows
from starting import needs_mpi

import taskflow
from taskflow.machine import host, load_machine
from taskflow.mapper import DataParallel, Exchange, Mapper, SyncAlgorithm, map_graph
from taskflow.rules import SGD
from taskflow.tasks.topic import Purpose

STRATEGIES = 9
CLOSE = {"float64": 1e-11, "float32": 2e-4}  # running through five steps of training with two batch normalisations


def test_the_same_numbers_as_by_an_owner() -> None:
    met = [0, 0]
    for seed in range(24):
        graph, strategy = case(seed, 2 + seed % 5, SyncAlgorithm.COLLECTIVE)
        found = []
        together = replace(strategy, exchange=Exchange.COLLECTIVES)
        for way in (strategy, replace(strategy, sums=SyncAlgorithm.OWNER), together):
            run = taskflow.Executor(graph, way, SGD(0.1, momentum=0.9), seed=3)
            found.append({**results(run), "evaluated": run.evaluate(feeds(9, str(graph.dtype)))})
            tasks = run.program("train").graph
            counts = [len(summing(tasks, purpose)) for purpose in (Purpose.PARTIAL, Purpose.GRADIENT)]
            met = [a + b for a, b in zip(met, counts)]
            assert way.sums is SyncAlgorithm.COLLECTIVE or counts == [0, 0]
        for name, value in found[0].items():
            for other in found[1:]:
                assert value == pytest.approx(other[name], rel=CLOSE[str(graph.dtype)]), (seed, name)
    assert met[0] > 30 and met[1] > 15, met


def test_a_mapper_that_picks_sources_may_pick_any_holder_of_the_sum() -> None:
    """Every processor that took part in an all-reduce is a candidate, and what it sends is the sum."""
    graph, strategy = case(0, 4, SyncAlgorithm.COLLECTIVE)
    elsewhere = replace(strategy["bn1.running"], processors=(4,))  # which has no part of the sum, and asks for it
    moved = replace(strategy, processors=5, configs={**strategy.configs, "bn1.running": elsewhere})
    asked = []

    class Last(DataParallel):
        def select_task_sources(self, request) -> int:
            asked.append(request)
            return request.candidates[-1]

    wanted = results(taskflow.Executor(graph, moved, SGD(0.1), seed=3))
    assert results(taskflow.Executor(graph, moved, SGD(0.1), seed=3, mapper=Last())) == wanted
    assert any(request.candidates == (0, 1, 2, 3) for request in asked)


@pytest.mark.mpi
@needs_mpi
@pytest.mark.parametrize("ranks", fast_among([2, 3, 4], [3]))
def test_under_mpi(ranks: int) -> None:
    found = rows(ranks, "sums_everywhere.py", str(STRATEGIES), limit=200)
    assert len(found) == STRATEGIES
    for row in found:
        graph, strategy = case(row["seed"], row["processors"], SyncAlgorithm.OWNER)
        local = taskflow.Executor(graph, strategy, SGD(0.1, momentum=0.9), seed=3)
        close = CLOSE[str(graph.dtype)]
        for name, value in {**results(local), "evaluated": local.evaluate(feeds(9, str(graph.dtype)))}.items():
            assert row[name] == pytest.approx(value, rel=close), (row, name)
    assert sum(row["ahead"] for row in found) > 10 and sum(row["back"] for row in found) > 5


def test_who_chooses_by_default() -> None:
    class Answers(DataParallel):
        def select_sums(self, processors, machine):
            assert processors == (0, 1)
            return self.answer

    graph, mapper = case(0, 2, SyncAlgorithm.OWNER)[0], Answers()
    assert map_graph(DataParallel(), graph, load_machine("k80", 2)).sums is SyncAlgorithm.COLLECTIVE
    assert Mapper.select_sums(mapper, (0, 1), host(2)) is SyncAlgorithm.OWNER  # ranks that copy by themselves
    mapper.answer = SyncAlgorithm.COLLECTIVE
    assert map_graph(mapper, graph, host(2)).sums is SyncAlgorithm.COLLECTIVE
    mapper.answer = SyncAlgorithm.TREE
    must = r"select_sums must return SyncAlgorithm\.OWNER or SyncAlgorithm\.COLLECTIVE"
    with pytest.raises(ValueError, match=rf"mapper data: {must}, got .*TREE"):
        map_graph(mapper, graph, host(2))
