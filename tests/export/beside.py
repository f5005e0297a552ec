"""Trains exported networks on ranks beside PyTorch alone, and the same plans in taskflow's own runtime. For the tests."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import networks
import numpy as np
import pytest
import starting
import torch

import taskflow
from taskflow.models.pytorch import weights_of
from taskflow.training import load_weights

HERE = Path(__file__).parent
TOLERANCE = 1e-5  # of a loss, relative: sums of float32 in another order


def trained(folder: Path, name: str, text: str, ranks: int, steps: int = 5) -> list[dict[str, Any]]:
    """What each rank found."""
    (folder / "parallel.py").write_text(text)
    done = starting.run_torch(ranks, str(HERE / "train_beside.py"), name, "parallel", str(steps), folder=folder)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-6000:]
    return [json.loads((folder / f"rank{rank}.json").read_text()) for rank in range(ranks)]


def check(folder: Path, name: str, text: str, ranks: int) -> list[float]:
    """The losses of 5 steps, which with all weights are those of PyTorch alone."""
    rows = trained(folder, name, text, ranks)
    for row in rows:
        for ours, theirs in row["losses"]:
            assert ours == pytest.approx(theirs, rel=TOLERANCE)
        assert row["worst"] < TOLERANCE, row
    return [ours for ours, _ in rows[0]["losses"]]


def in_taskflow(name: str, graph: taskflow.OperatorGraph, strategy: taskflow.Strategy) -> list[float]:
    """The losses of 5 steps of the same network, with the same weights and batches, under a plan in taskflow's runtime."""
    torch.manual_seed(0)
    run = taskflow.Executor(graph, strategy, taskflow.SGD(lr=0.1, momentum=0.9))
    load_weights(run, weights_of(networks.MODULES[name]()))
    generator = torch.Generator().manual_seed(1)
    names = {
        "gpt": ("tokens", "positions"), "masked": ("tokens", "mask"), "t5": ("tokens", "said"), "resnet": ("x",), "cnn": ("x",),
    }.get(name, ("tokens",))
    losses = []
    for _ in range(5):
        inputs, labels = networks.batch_of(name, generator)
        feeds = {key: value.numpy() for key, value in zip(names, inputs)}
        losses.append(run.train({**feeds, "labels": labels.numpy().astype(np.int64)}))
    return losses
