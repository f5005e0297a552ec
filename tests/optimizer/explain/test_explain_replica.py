"""Large plans are explained by their first replica; for plans of which all tasks can be simulated, that says the same."""

from __future__ import annotations

from math import fsum

import pytest

from taskflow.machine import load_machine
from taskflow.mapper import HybridParallel, map_graph
from taskflow.models import build
from taskflow.optimizer.evaluate import make_evaluator
from taskflow.optimizer.explain import explain
from taskflow.optimizer.explain.labels import TaskPurpose
from taskflow.rules import Adam

PLANS = (
    ("p2 d4 mb1", 8), ("t2 d4 mb2", 8), ("t2 p2 d2 mb1 zero1", 8), ("p2 d4 mb1 v2", 8), ("d8 mb2 recompute=full", 8),
    ("d8 mb2 zero3", 8), ("d16 mb1 zero3", 16), ("p2 d8 mb1 zero1", 16),
)


@pytest.mark.parametrize(("plan", "devices"), PLANS)
def test_the_first_replica_says_what_all_tasks_say(plan: str, devices: int, monkeypatch: pytest.MonkeyPatch) -> None:
    graph = build("llama", preset="small", batch=32, layers=4, hidden=256, dtype="bfloat16")
    machine = load_machine("h100", devices)
    evaluator = make_evaluator(graph, machine, rule=Adam())
    strategy = map_graph(HybridParallel(plan), graph, machine)
    evaluator.set(strategy)
    every = explain(evaluator)
    monkeypatch.setattr("taskflow.optimizer.evaluate.shown.too_many_to_show", lambda strategy: True)
    monkeypatch.setattr("taskflow.optimizer.evaluate.ordered.MOST_WHOLE", 0)
    few = make_evaluator(graph, machine, rule=Adam())
    few.set(strategy)
    found = explain(few)
    assert found.seconds == pytest.approx(every.seconds, rel=1e-12)
    assert every.explained == every.devices == found.devices == devices > found.explained
    for parts in ([s.seconds for s in found.steps], [o.critical for o in found.operators], list(found.shares.values())):
        assert fsum(parts) == pytest.approx(found.seconds, rel=1e-9)
    for ours, theirs in zip(found.operators, every.operators, strict=True):
        assert (ours.operator, ours.tasks) == (theirs.operator, theirs.tasks)
        assert (ours.transfer_bytes, ours.sync_bytes) == (theirs.transfer_bytes, theirs.sync_bytes)
        for work in TaskPurpose:
            assert ours.seconds[work] == pytest.approx(theirs.seconds[work], rel=1e-9, abs=1e-12)
    for work in TaskPurpose:
        assert found.shares[work] == pytest.approx(every.shares[work], abs=1e-9 * every.seconds)
    busy = {b.name: b.seconds for b in every.busy}
    assert {b.name: pytest.approx(b.seconds, rel=1e-9) for b in found.busy} == {b.name: busy[b.name] for b in found.busy}
    if every.bubble is not None:
        assert found.bubble is not None and found.bubble.seconds == pytest.approx(every.bubble.seconds, rel=1e-9)
        assert found.bubble.idle == pytest.approx({p: every.bubble.idle[p] for p in found.bubble.idle}, rel=1e-9)


def test_no_plan_of_a_hundred_thousand_pieces_is_lowered_whole_to_be_explained(monkeypatch: pytest.MonkeyPatch) -> None:
    """120 billion parameters on 256 devices have 490,240 pieces: lowering them took more than three minutes and six gigabytes."""
    graph, machine = build("llama", preset="small", batch=512, layers=12, dtype="bfloat16"), load_machine("h100", 256)
    evaluator, strategy = make_evaluator(graph, machine, rule=Adam()), map_graph(HybridParallel("d256 mb1 zero1"), graph, machine)
    assert 100_000 < sum(len(config.processors) for config in strategy.configs.values()) < 200_000
    evaluator.set(strategy)

    def lowered(self: object, strategy: object = None) -> None:
        raise AssertionError("lowered as a whole")

    monkeypatch.setattr(type(evaluator), "lowered", lowered)
    found = explain(evaluator)
    assert found.seconds == evaluator.seconds and found.explained < found.devices == 256
