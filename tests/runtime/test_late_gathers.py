"""New weights that are gathered as the next step begins (Megatron-LM's --overlap-param-gather): between steps only shares are
new, so what reads weights then must read those."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from pipelines import GPT, tokens

import taskflow
from taskflow.checkpoint import load_checkpoint, save_checkpoint
from taskflow.graph import OperatorGraph
from taskflow.machine import load_machine
from taskflow.mapper import CollectiveSync, Sync, SyncAlgorithm, UpdatePlacement, choose, parse_sync
from taskflow.models.gpt import gpt
from taskflow.rules import AdamW
from taskflow.runtime.executor import Executor
from taskflow.tasks import Kind, roofline, simulate
from taskflow.tasks.lower import lower
from taskflow.tasks.topic import Purpose

PLANS = [
    "d3 zero1 overlap=all", "d3 mb1 zero1 overlap=all bucket=layer", "t2 p2 d2 mb1 zero1 overlap=all bucket=2K",
    "d3 mb1 zero2 overlap=all", "p2 d2 mb1 zero=1*1,3*1,2*1 overlap=all",
]


def decoder() -> OperatorGraph:
    return gpt(replace(GPT, layers=3), "float64")


def devices(plan: str) -> int:
    return int(np.prod([int(word[1:]) for word in plan.split() if word[0] in "tpd" and word[1:].isdecimal()]))


def executor(plan: str, weights: Executor | None = None) -> Executor:
    graph = decoder()
    strategy = choose(plan, graph, taskflow.host(devices(plan)))[0]
    if weights is not None:
        return Executor(graph, strategy, weights=weights)
    return Executor(graph, strategy, AdamW(0.003, eps=1e-3), seed=3)


def same(run: Executor, other: Executor) -> None:
    found, wanted = run.weights(), other.weights()
    assert found is not None and wanted is not None
    for name, value in wanted.items():
        np.testing.assert_allclose(found[name], value, rtol=1e-9, atol=1e-12, err_msg=name)


@pytest.mark.parametrize("plan", PLANS)
def test_what_reads_weights_between_steps_reads_new_ones(plan: str, tmp_path: Path) -> None:
    run, alone = executor(plan), executor("d1")
    reader = executor("d2", weights=run)  # another strategy, on the same weights
    for step in range(3):
        assert run.train(tokens(step)) == pytest.approx(alone.train(tokens(step)), rel=1e-9)
        same(run, alone)
        for evaluating in (run, reader):
            assert evaluating.evaluate(tokens(9)) == pytest.approx(alone.evaluate(tokens(9)), rel=1e-9)
    save_checkpoint(run, tmp_path / "late.npz")
    for words in ("d2 zero1", plan):
        again, other = executor(words), executor("d1")
        load_checkpoint(again, tmp_path / "late.npz")
        load_checkpoint(other, tmp_path / "late.npz")
        assert again.train(tokens(4)) == pytest.approx(other.train(tokens(4)), rel=1e-9)
        same(again, other)


@pytest.mark.parametrize("plan", PLANS[:4])
def test_a_step_begins_with_the_gathers_and_ends_with_updates(plan: str) -> None:
    graph = decoder()
    found = {}
    for words in (plan, plan.replace(" overlap=all", "")):
        machine = load_machine("a100", 8).prefix(devices(plan))
        tasks = lower(graph, choose(words, graph, machine)[0], AdamW())
        spans = simulate(tasks, machine, roofline(machine)).spans
        gathers = [spans[t.number] for t in tasks if t.kind is Kind.COLLECTIVE and t.topic.purpose is Purpose.NEW_WEIGHTS]
        found[words] = len(gathers)
        updates = [spans[t.number].end for t in tasks if t.kind is Kind.UPDATE]
        if words == plan:
            assert min(span.ready for span in gathers) == 0 and max(span.end for span in spans) == max(updates)
        else:
            assert all(span.ready > 0 for span in gathers) and max(span.end for span in spans) > max(updates)
    assert len(set(found.values())) == 1 and min(found.values()) > 0


def test_only_shares_of_whole_weights_are_gathered_late() -> None:
    late = CollectiveSync(UpdatePlacement.SHARDED, bucket=100, late_gather=True)
    assert str(late) == "collective/spread/bucket100/late" and parse_sync(str(late), "test") == late
    for travel, place, zero in (
        (SyncAlgorithm.RING, UpdatePlacement.SHARDED, 1), (SyncAlgorithm.COLLECTIVE, UpdatePlacement.REPLICATED, 1),
        (SyncAlgorithm.COLLECTIVE, UpdatePlacement.SHARDED, 3),
    ):
        with pytest.raises(ValueError, match=r"Sync: late_gather .* goes with"):
            Sync.of(travel, place, zero=zero, late_gather=True)
