"""Task Bench: the definition of METG, the patterns' dependencies, and a short run on two ranks."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "benchmarks"))

import taskbench

import taskflow


def test_metg_of_a_known_overhead():
    """With an overhead of 10 us a task, efficiency is 50 % where the work takes 10 us too."""
    peak, overhead = 1e9, 10e-6
    timings = [
        taskbench.Timing(n, n * taskbench.FLOPS_PER_ITERATION / peak + overhead) for n in (2**k for k in range(12, -1, -1))
    ]
    assert taskbench.metg(timings, peak) == pytest.approx(20e-6, rel=0.05)
    assert taskbench.metg(timings[:2], peak) is None


def test_patterns():
    needs = {name: [pattern(1, column, 4) for column in range(4)] for name, pattern in taskbench.PATTERNS.items()}
    assert needs["trivial"] == [[]] * 4
    assert needs["stencil_1d"] == [[(0, 2)], [(0, 3)], [(1, 4)], [(2, 4)]]
    assert needs["tree"] == [[(0, 1)], [(0, 1)], [(1, 2)], [(1, 2)]]
    assert needs["nearest"] == [[(0, 3)], [(0, 4)], [(0, 4)], [(1, 4)]]
    assert needs["all_to_all"] == [[(0, 4)]] * 4
    assert needs["fft"][0] == [(0, 0), (0, 1), (2, 3)]  # step 1: two columns away


@pytest.mark.parametrize("pattern", taskbench.PATTERNS)
@pytest.mark.parametrize("processors", [1, 3, 8])
def test_every_task_gets_its_inputs(pattern, processors):
    """The tasks themselves check what they read, in the iterations that are analysed and in those that are replayed."""
    bench = taskbench.Bench(taskflow.TaskRuntime(processors), pattern, 8, 6)
    trace = bench.trace(1)
    for _ in range(5):
        trace()
    assert trace.replays >= 6


def test_a_wrong_input_is_noticed():
    tasks = taskflow.TaskRuntime(2)
    bench = taskbench.Bench(tasks, "stencil_1d", 4, 4)
    tasks.write(bench._cells[1], 0.0)
    with pytest.raises(AssertionError, match="step 0, column 0: got"):
        bench.trace(1)


@pytest.mark.slow
@pytest.mark.mpi
def test_two_ranks(ranks):
    out = ranks(
        0, "benchmarks/taskbench.py", "--ranks", "2", "--patterns", "stencil_1d,fft", "--repeats", "1", "--seconds", "0.002",
        "--json",
    )
    run = json.loads(out.splitlines()[-1])["runs"][0]
    assert run["ranks"] == run["width"] == 2
    for found in run["patterns"].values():
        assert found["overhead_us_per_task"] > 0
        assert max(found["efficiency"].values()) > 0.1
