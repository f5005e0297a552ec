"""Training under real MPI ranks: the same numbers, bit for bit, as with virtual processors, and the bytes that were planned."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from random import Random

import pytest
from language_model import CONFIG, ONE_STEP, feeds, model, random_strategy

from taskflow.rules import SGD
from taskflow.runtime.executor import Executor
from taskflow.tasks.task import Kind

PROGRAMS = Path(__file__).parent / "programs"
MPIRUN = shutil.which("mpirun", path=f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}")
pytestmark = [pytest.mark.mpi, pytest.mark.skipif(MPIRUN is None, reason="there is no mpirun on this machine")]
STRATEGIES = 12


@pytest.mark.parametrize("one_copy", [False, True], ids=["", "one-copy"])
@pytest.mark.parametrize("ranks", [2, 3, 5, *(pytest.param(many, marks=pytest.mark.slow) for many in (8, 16))])
def test_random_strategies_bit_for_bit(ranks, one_copy):
    command = [MPIRUN, "-n", str(ranks), sys.executable, str(PROGRAMS / "train_everywhere.py"), str(STRATEGIES)]
    command += ["one-copy"] * one_copy
    here = {**os.environ, "PYTHONPATH": str(PROGRAMS.parents[2])}  # this checkout, not the one that is installed
    done = subprocess.run(command, env=here, capture_output=True, text=True, timeout=200)
    assert done.returncode == 0, done.stderr[-3000:]
    rows = [json.loads(line) for line in done.stdout.splitlines()]
    assert len(rows) == STRATEGIES
    for row in rows:
        seed = row["seed"]
        config = (CONFIG, ONE_STEP)[seed % 2]
        graph = model(("float64", "float32")[seed // 2 % 2], config)
        strategy = random_strategy(graph, row["processors"], Random(seed))
        local = Executor(graph, strategy, SGD(0.5, momentum=0.9), seed=3, clip_norm=1.0)
        losses = [local.train(feeds(step, config)) for step in range(5)]
        parameters = sum(float(abs(v).sum()) for v in local.parameters().values())
        if any(task.kind is Kind.COLLECTIVE for task in local.program("train").graph):  # MPI adds in an order of its own
            close = 1e-12 if graph.dtype == "float64" else 1e-5
            losses, parameters = pytest.approx(losses, rel=close), pytest.approx(parameters, rel=close)
        assert row["losses"] == losses, row
        assert row["parameters"] == parameters
        assert row["sent"] == row["planned"]
        if one_copy:  # what lies in memory that both ends have is not sent
            assert row["sent"] < row["graph"] if row["lent"] else row["sent"] == row["graph"]
        else:
            assert row["sent"] == row["graph"] and not row["lent"]
        if row["processors"] == ranks:
            assert row["graph"] == 5 * local.program("train").graph.transfer_bytes
    assert not one_copy or sum(row["lent"] > 0 for row in rows) >= STRATEGIES // 4
