"""Hold plans, simulated times and losses equal to those recorded in same_results.json.

Found plans and simulated times are equal bit for bit on every machine: searches have budgets of proposals, and simulated
time is on a grid. Losses depend on the machine's arithmetic, so they are compared to six digits; `--exact` compares all
of it bit for bit, for use on one machine before and after a change that must not change results.

    python tests/test_same_results.py --record    writes the file anew (say in the commit why results changed)
    python tests/test_same_results.py --exact     compares bit for bit
"""

from __future__ import annotations

import hashlib
import json
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner

import taskflow
from taskflow.models import build
from taskflow.training.data.synthetic import random_feeds

RECORDED = Path(__file__).with_suffix("").with_name("same_results.json")

SEARCHES = [  # network, sizes, machine, devices, algorithm, proposals, seed
    ("AlexNet", "paper", "p100", 4, "guided", 150, 0),
    ("Inception-v3", "small", "k80", 8, "guided", 150, 1),
    ("ResNet-101", "small", "p100", 8, "guided", 150, 2),
    ("RNNTC", "paper", "k80", 4, "guided", 200, 3),
    ("RNNLM", "paper", "p100", 16, "guided", 200, 4),
    ("NMT", "paper", "k80", 16, "guided", 200, 5),
    ("Transformer", "small", "h100", 16, "guided", 100, 6),
    ("GPT-2", "small", "a100", 8, "guided", 100, 7),
    ("NMT", "paper", "p100", 8, "mcmc", 300, 8),
    ("AlexNet", "paper", "k80", 8, "mcmc", 300, 9),
    ("RNNLM", "paper", "p100", 4, "optcnn", 50, 10),
    ("LeNet", "paper", "p100", 4, "optcnn", 50, 11),
    ("NMT", "paper", "k80", 4, "placement", 100, 12),
    ("MLP", "small", "p100", 2, "exact", 2000, 13),
]
SIMULATIONS = [  # network, sizes, machine, devices, mapper
    (name, "paper" if name in ("AlexNet", "RNNLM", "NMT", "RNNTC") else "small", machine, devices, mapper)
    for name in ("AlexNet", "Inception-v3", "ResNet-101", "RNNTC", "RNNLM", "NMT", "Transformer", "GPT-2")
    for machine, devices, mapper in (
        ("p100", 4, "data"), ("k80", 8, "expert"), ("h100", 16, "megatron"), ("a100", 4, "model"), ("k80", 4, "random"),
    )
]
TRAININGS = [  # network, processors, mapper
    (name, processors, mapper)
    for name in ("MLP", "LeNet", "RNNLM", "NMT", "Transformer", "GPT-2", "AlexNet")
    for processors, mapper in ((1, "data"), (3, "data"), (4, "expert"), (2, "model"), (4, "random"))
]


def words(case: tuple[Any, ...]) -> str:
    """Name a case."""
    return " ".join(map(str, case))


def digest(text: str) -> str:
    """Shorten a text to what tells it from others."""
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def described(graph: taskflow.OperatorGraph, strategy: taskflow.Strategy) -> str:
    """Write a plan down in full, independent of its file's format."""
    lines = [f"{node.name}: {strategy[node.name].describe(node)} {strategy[node.name].weights}" for node in graph]
    return "\n".join([*lines, *(f"{layer} {sync}" for layer, sync in sorted(strategy.syncs.items())), strategy.sums.value])


def searched(case: tuple[Any, ...]) -> list[Any]:
    """Search, and return the plan's digest, its seconds, and how many proposals were made and accepted."""
    name, sizes, machine, devices, algorithm, proposals, seed = case
    graph = build(name, devices=devices, preset=sizes)
    found = taskflow.search(
        graph, taskflow.load_machine(machine, devices), budget=f"{proposals}p", seed=seed, algorithm=algorithm,
    )
    return [
        digest(described(graph, found.strategy)), found.seconds.hex(), found.lower_bound.hex(), found.proposals, found.accepted,
    ]


def simulated(case: tuple[Any, ...]) -> list[Any]:
    """Simulate on the command line, and return the step's seconds and the digest of all tasks' times."""
    from taskflow.cli.main import main

    name, sizes, machine, devices, mapper = case
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "times.json"
        size = ["--size", "small"] if sizes == "small" else []
        ran = CliRunner().invoke(main, [
            "simulate", name, *size, "--machine", machine, "--devices", str(devices), "--strategy", mapper, "--rule", "momentum",
            "--json", "--timeline", str(file),
        ])
        assert ran.exit_code == 0, ran.output
        row = json.loads(ran.output)
        return [digest(file.read_text()), float(row["iteration_seconds"]).hex(), row["tasks"]]


def trained(case: tuple[Any, ...]) -> list[Any]:
    """Train three steps on made-up data, and return the losses."""
    name, processors, mapper = case
    graph = build(name, preset="small", batch=4)
    machine = taskflow.host(processors)
    strategy, mapped = taskflow.choose(mapper, graph, machine)
    run = taskflow.Executor(graph, strategy, taskflow.Adam(lr=1e-3), machine=machine, mapper=mapped, clip_norm=1.0)
    losses = [float(run.train(random_feeds(graph, step))) for step in range(3)]
    run.close()
    return [loss.hex() for loss in losses]


PARTS = {"searches": (SEARCHES, searched), "simulations": (SIMULATIONS, simulated), "trainings": (TRAININGS, trained)}


SLOW_SEARCHES = (SEARCHES[1], SEARCHES[2], SEARCHES[5], SEARCHES[6], SEARCHES[9])
SLOW_SIMULATIONS = (
    ("Inception-v3", "random"), ("Inception-v3", "megatron"), ("RNNLM", "megatron"), ("Transformer", "megatron"),
    ("Transformer", "random"),
)


@pytest.fixture(scope="module")
def recorded() -> dict[str, dict[str, list[Any]]]:
    return json.loads(RECORDED.read_text())


@pytest.mark.parametrize("case", [
    pytest.param(case, marks=[pytest.mark.slow] if case in SLOW_SEARCHES else []) for case in SEARCHES
], ids=words)
def test_searches_find_the_same_plans(case: tuple[Any, ...], recorded: dict[str, dict[str, list[Any]]]) -> None:
    assert searched(case) == recorded["searches"][words(case)]


@pytest.mark.parametrize("case", [
    pytest.param(case, marks=[pytest.mark.slow] if case[4] in ("expert", "model") or (case[0], case[4]) in SLOW_SIMULATIONS else [])
    for case in SIMULATIONS
], ids=words)
def test_simulated_times_are_the_same(case: tuple[Any, ...], recorded: dict[str, dict[str, list[Any]]]) -> None:
    assert simulated(case) == recorded["simulations"][words(case)]


@pytest.mark.parametrize("case", TRAININGS, ids=words)
def test_losses_are_the_same(case: tuple[Any, ...], recorded: dict[str, dict[str, list[Any]]]) -> None:
    wanted = [float.fromhex(loss) for loss in recorded["trainings"][words(case)]]
    # Other BLAS and vector units round otherwise: 1e-6 relative in float32, some ten times that after three steps of Adam.
    np.testing.assert_allclose([float.fromhex(loss) for loss in trained(case)], wanted, rtol=2e-5)


if __name__ == "__main__":
    results = {part: {words(case): make(case) for case in cases} for part, (cases, make) in PARTS.items()}
    if "--record" in sys.argv:
        RECORDED.write_text(json.dumps(results, indent=0) + "\n")
    else:
        before = json.loads(RECORDED.read_text())
        differ = [f"{part} {case}" for part in results for case in results[part] if results[part][case] != before[part][case]]
        print("\n".join(differ) or f"all {sum(map(len, results.values()))} results are the same, bit for bit")
        sys.exit(bool(differ))
