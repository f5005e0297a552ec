"""examples/scale_norm.py and enough_work.py: what a user writes is held to what is asked of the built-in ones."""

from __future__ import annotations

import os
import re
import subprocess
import sys

import pytest
from click.testing import CliRunner
from starting import ROOT, needs_mpi, run_python

import taskflow
from taskflow.models import MODELS, build
from taskflow.operators.operator import REGISTRY, Work
from taskflow.training.data.synthetic import random_feeds

EXAMPLES = ROOT / "examples"
sys.path.insert(0, str(EXAMPLES))

import enough_work  # noqa: E402


def run(*arguments: str, ranks: int = 0) -> subprocess.CompletedProcess[str]:
    return run_python(*arguments, ranks=ranks, extra={"PYTHONPATH": f"{ROOT}{os.pathsep}{EXAMPLES}"})


@pytest.mark.timeout(300)
def test_the_operator_holds_the_property_suite() -> None:
    assert "scale_norm" not in REGISTRY, "it is registered by its own module, in a process of its own"
    done = run("-m", "pytest", "-p", "scale_norm", "-k", "scale_norm", "tests/operators/test_properties.py")
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-1000:]
    (passed,) = re.findall(r"(\d+) passed", done.stdout)
    assert int(passed) >= (ROOT / "tests/operators/test_properties.py").read_text().count("\ndef test_"), done.stdout


@pytest.mark.parametrize("arguments", [["--processors", "3"], ["--processors", "5", "--mapper", "random"]])
def test_the_operator_trains_alike_in_pieces(arguments: list[str]) -> None:
    done = run("examples/scale_norm.py", *arguments)
    assert done.returncode == 0, done.stderr
    first, last = map(float, re.findall(r"loss ([\d.]+) -> ([\d.]+); in pieces the same: True", done.stdout)[0])
    assert last < first / 4


@pytest.mark.mpi
@needs_mpi
def test_both_run_under_mpirun() -> None:
    done = run("examples/scale_norm.py", "--mapper", "enough_work:EnoughWork", ranks=2)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("in pieces the same: True") == 1


@pytest.mark.parametrize("name", list(MODELS))
def test_the_mapper_leaves_pieces_enough_to_do(name: str) -> None:
    graph, machine = build(name, preset="small"), taskflow.load_machine("k80", 8)
    strategy = taskflow.map_graph(enough_work.EnoughWork(), graph, machine)
    rate = machine.processors[0].flops_per_second
    for node in graph:
        pieces = len(strategy[node.name].processors)
        assert len(set(strategy[node.name].processors)) == pieces
        if node.operator.work is not Work.MEMORY and pieces > 1:
            flops = node.operator.flops(node.specs, node.space)
            assert flops / pieces >= enough_work.ENOUGH_SECONDS * rate, node


def test_the_mapper_changes_no_numbers() -> None:
    graph, machine = build("LeNet", preset="small", dtype="float64"), taskflow.load_machine("h100", 4)
    losses = []
    for mapper in (taskflow.choose("data", graph, taskflow.host(1))[1], enough_work.EnoughWork()):
        here = machine if losses else taskflow.host(1)
        strategy = taskflow.map_graph(mapper, graph, here)
        trained = taskflow.Executor(graph, strategy, taskflow.SGD(lr=0.1), machine=here, mapper=mapper, seed=3)
        losses.append([trained.train(random_feeds(graph, step)) for step in range(3)])
    assert losses[1] == pytest.approx(losses[0], rel=1e-9)


def test_the_mapper_is_compared_with_data_parallelism() -> None:
    """A small batch on devices with slow links between nodes: fewer pieces are faster."""
    done = CliRunner().invoke(enough_work.main, ["AlexNet", "--machine", "p100", "--batch", "16"])
    assert done.exit_code == 0, done.output
    data, own = map(float, re.findall(r"([\d.]+) ms a step", done.output))
    assert own < data
