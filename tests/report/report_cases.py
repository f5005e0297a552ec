"""Small reports that the tests of the report share, and a model whose names try to break out of the page."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import taskflow
from taskflow.machine import load_machine
from taskflow.mapper import Sync, choose
from taskflow.models import build
from taskflow.optimizer.evaluate import make_evaluator
from taskflow.optimizer.evaluate.evaluator import Evaluator
from taskflow.report.data import Report, report_data

EVIL = "</script><img src=x onerror=\"window.hurt=1\">{{data}}'&amp;"


def judge_of(model: str, devices: int, batch: int | None = None, preset: str = "small") -> Evaluator:
    machine = load_machine("k80", devices)
    return make_evaluator(build(model, batch, devices, preset=preset), machine)


@cache
def report_of(
    model: str, mapper: str, devices: int, preset: str = "small", most_rows: int = 250_000, sync: Sync | None = None,
    batch: int | None = None,
) -> tuple[Evaluator, Report]:
    evaluator = judge_of(model, devices, batch, preset)
    strategy = choose(mapper, evaluator.graph, evaluator.machine)[0]
    if sync is not None:
        strategy = replace(strategy, syncs=dict.fromkeys(strategy.syncs, sync))
    return evaluator, report_data(evaluator, strategy, most_rows=most_rows)


def evil_report() -> Report:
    graph = taskflow.OperatorGraph(name=EVIL)
    x = taskflow.input(graph, (8, 6), name=EVIL)
    wanted = taskflow.input(graph, (8,), "int64", name="wanted")
    y = taskflow.linear(x, 4, name=f"b{EVIL}")
    graph.minimize(taskflow.cross_entropy(y, wanted))
    evaluator = make_evaluator(graph, load_machine("k80", 4))
    search = {
        "algorithm": EVIL, "seed": 0, "proposals": 3, "accepted": 1, "search_seconds": 1.0, "stopped": EVIL,
        "iteration_seconds": 1e-3, "starts_iteration_seconds": {EVIL: 2e-3}, "optimal": False, "lower_bound_seconds": None,
        "history": [
            {"proposal": 0, "elapsed_seconds": 0.1, "iteration_seconds": 2e-3},
            {"proposal": 3, "elapsed_seconds": 0.9, "iteration_seconds": 1e-3},
        ],
    }
    return report_data(evaluator, choose("data", graph, evaluator.machine)[0], search=search)
