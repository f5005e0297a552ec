"""benchmarks/training.py: a short run of small presets, and how its figures are made of measured times."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "benchmarks"))

import training  # noqa: E402

pytestmark = pytest.mark.torch


def row(threads: int, stock: float, tuned: float) -> dict:
    return {"threads": threads, "vs_stock": stock, "vs_tuned": tuned, "cpu_vs_stock": 2 * stock, "cpu_vs_tuned": tuned}


def test_geometric_means() -> None:
    found = training.summary([row(1, 4.0, 2.0), row(1, 1.0, 0.5), row(2, 2.0, 1.0)])
    assert found["geomean_vs_stock"] == pytest.approx(2.0)
    assert found["geomean_vs_tuned_1"] == pytest.approx(1.0)
    assert found["geomean_vs_stock_2"] == pytest.approx(2.0)
    assert found["geomean_cpu_vs_stock_1"] == pytest.approx(4.0)
    assert found["least_vs_stock"] == 1.0


@pytest.mark.slow
@pytest.mark.parametrize(("model", "threads"), [("RNNLM", "1"), ("ResNet-101", "1"), ("NMT", "2")])
def test_a_quick_run(model: str, threads: str) -> None:
    pytest.importorskip("torch", reason="PyTorch is not installed: make test TORCH=1")
    done = subprocess.run(
        [sys.executable, "benchmarks/training.py", "--quick", "--json", "--models", model, "--threads", threads, "--rounds",
         "2", "--variants", "eager"],
        cwd=ROOT, env={**os.environ, "PYTHONPATH": str(ROOT)}, capture_output=True, text=True, timeout=280,
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    (network,) = found["networks"]
    assert network["model"] == model and network["preset"] == "small"
    assert ("2 ranks" in network["ours"]) is (threads == "2")
    assert network["strategy"].split()[0] == {"1": "whole", "2": "best:"}[threads]
    assert set(network["variants"]) == {"eager", "eager tuned"}
    assert network["samples_per_second"] > 0 and network["peak_bytes"] > 0
    assert found["geomean_vs_stock"] == pytest.approx(network["variants"]["eager"]["ratio"])
    assert found["geomean_vs_tuned"] == pytest.approx(network["variants"]["eager tuned"]["ratio"])


def test_the_strategy_is_named_in_the_table() -> None:
    assert training.short("best: expert (data 940 ms 1300 MB, expert 861 ms 700 MB)") == "expert"
    assert training.short("search: 431.4 ms a step (1.00x data)") == "search"
    assert training.short("whole") == "whole"


def test_a_worker_that_fails_is_told() -> None:
    with pytest.raises(training.WorkerError, match="no model 'VGG'"):
        training.Worker("taskflow", "VGG", 1, "small", 1, False)
