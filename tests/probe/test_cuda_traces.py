"""Traces of GPUs: the host is far ahead, and the backward pass is another thread's. The kernels say what a step took."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from cuda_traces import trace_of

import taskflow
from taskflow.machine import Cluster, load_machine
from taskflow.optimizer import make_evaluator
from taskflow.probe import calibrated, joined, read_kineto
from taskflow.probe.kineto_gpu import TimeOf

RULE = taskflow.SGD(lr=0.1, momentum=0.9)


@cache
def graph_of() -> taskflow.OperatorGraph:
    torch = pytest.importorskip("torch", reason="PyTorch is not installed: make test TORCH=1")
    layers = [torch.nn.Linear(1024, 4096), torch.nn.GELU(), torch.nn.Linear(4096, 1024)]
    return taskflow.from_torch(torch.nn.Sequential(*layers), (4096, 1024), name="layers", verify=False)


PATHS = frozenset({"0", "1", "2"})


def ran(machine: Cluster, plan: str, folder: Path, ranks: tuple[int, ...] = (0, 1)) -> tuple[Any, Any, list[Any]]:
    """An evaluator, the plan's strategy, and the traces of ranks that ran it as predicted on a machine."""
    graph = graph_of()
    strategy = taskflow.choose(plan, graph, machine)[0]
    evaluator = make_evaluator(graph, machine, rule=RULE)
    evaluator.set(strategy)
    files = [trace_of(evaluator, strategy, rank, PATHS, folder / f"{plan}{rank}.json") for rank in ranks]
    return evaluator, strategy, [read_kineto(file) for file in files]


@pytest.mark.parametrize("plan", ["data", "d2 zero3", "t2"])
def test_a_step_that_ran_as_predicted_has_no_causes(plan: str, tmp_path: Path) -> None:
    evaluator, strategy, traces = ran(load_machine("h100", 2), plan, tmp_path)
    assert all(trace.gpu and len(trace.seconds) == 3 for trace in traces)
    found = joined(evaluator, strategy, traces)
    assert found.measured_seconds == pytest.approx(found.predicted_seconds, rel=1e-3)
    kinds = {row.kind for row in found.rows if row.measured_seconds > 1e-3 * found.measured_seconds}
    assert {"forward", "backward", "update"} <= kinds and found.named > 0.95
    for row in found.rows:
        assert row.measured_seconds == pytest.approx(row.predicted_seconds, abs=2e-3 * found.measured_seconds), row


def test_backward_kernels_belong_to_their_modules_though_another_thread_starts_them(tmp_path: Path) -> None:
    *_, traces = ran(load_machine("h100", 2), "data", tmp_path)
    for path in traces[0].paths:
        ahead, back = (traces[0].of(TimeOf(way, path)) for way in ("forward", "backward"))
        assert ahead > 0 and back > 0.5 * ahead, path


def test_calibrating_gives_the_machine_of_the_trace_back(tmp_path: Path) -> None:
    """Products at half the rate, and messages three times as long, found from traces of a step."""
    machine = load_machine("h100", 2)
    device, library = machine.kinds[0], machine.collectives
    assert library is not None and library.halves is not None and library.all_reduce is not None
    rates = tuple((kind, rate / 2) for kind, rate in device.flops_per_second)
    slow, slower = replace(device, flops_per_second=rates), {}
    for name in ("halves", "all_reduce", "all_to_all"):
        if (curve := getattr(library, name)) is not None:
            starts, ramp = 3 * curve.start_seconds, 3 * curve.ramp_seconds
            slower[name] = replace(curve, start_seconds=starts, ramp_seconds=ramp, link_share=curve.link_share / 3)
    there = replace(machine, kinds=(slow,), collectives=replace(library, switch=None, start_seconds=0.0, **slower))
    here = replace(machine, collectives=replace(library, switch=None, start_seconds=0.0))
    truth, strategy, traces = ran(there, "data", tmp_path)
    now = make_evaluator(graph_of(), here, rule=RULE)
    now.set(strategy)
    before = now.seconds
    assert before < 0.75 * truth.seconds
    found, _ = calibrated(here, now, strategy, traces)
    again = make_evaluator(graph_of(), found, rule=RULE)
    again.set(strategy)
    assert again.seconds == pytest.approx(truth.seconds, rel=0.03)
