"""The program that explains taskflow from scratch computes what taskflow does: tasks, simulated times and losses."""

from __future__ import annotations

import ast
import io
import sys
import tokenize
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import taskflow
from taskflow.machine.cluster import Cluster
from taskflow.machine.host import CPU
from taskflow.machine.template import Group, NodeTemplate, Wire
from taskflow.tasks.lower.lower import lower
from taskflow.tasks.simulate import simulate

SOURCE = Path(__file__).resolve().parents[2] / "examples" / "taskflow_from_scratch.py"
sys.path.insert(0, str(SOURCE.parent))

import taskflow_from_scratch as scratch  # noqa: E402

SIZES = {"samples": 11, "features": 7, "hidden": 9, "classes": 5}  # nothing divides evenly
PROCESSORS = 4
MOST_CODE_LINES = 180  # of each of its two files


def strategies() -> dict[str, dict[str, Any]]:
    """Data parallel, whole on one processor, channels, contractions, and random ones."""
    network = scratch.network(**SIZES)
    four, one = (0, 1, 2, 3), (0,)

    def plan(**configs: Any) -> dict[str, Any]:
        others = {op.name: ((1,) * len(op.space), (3,)) for op in network}
        return {**others, **configs}

    random = np.random.default_rng(0)
    return {
        "data": scratch.data_parallel(network, PROCESSORS),
        "whole": plan(loss=((1,), one)),
        "channels": plan(fc1=((1, 4, 1), four), act=((1, 4), four), fc2=((1, 1, 4), four), loss=((2,), (1, 3))),
        "contraction": plan(fc1=((1, 2, 2), (2, 2, 0, 1)), fc2=((2, 1, 2), (3, 1, 2, 0)), x=((1, 3), (0, 1, 2))),
        **{
            f"random {i}": {op.name: scratch.random_config(op, PROCESSORS, random) for op in network} for i in range(30)
        },
    }


def model() -> taskflow.OperatorGraph:
    """The same network in taskflow."""
    graph = taskflow.OperatorGraph("float64")
    x = taskflow.input(graph, (SIZES["samples"], SIZES["features"]), name="x")
    label = taskflow.input(graph, (SIZES["samples"],), "int64", name="label")
    hidden = taskflow.relu(taskflow.linear(x, SIZES["hidden"], bias=False, name="fc1"), name="act")
    scores = taskflow.linear(hidden, SIZES["classes"], bias=False, name="fc2")
    graph.minimize(taskflow.cross_entropy(scores, label, name="loss"))
    return graph


def cluster() -> Cluster:
    """Four processors with a link of its own from each to each, and copies that occupy nothing else."""
    node = NodeTemplate("box", (Group("cpu", CPU.kind, PROCESSORS),), (), (Wire(("cpu*",), 1e9, 1e-6, mesh=True),))
    return Cluster("four", (CPU,), (node,), (("box", 1),))


def ours(plan: dict[str, Any]) -> taskflow.Strategy:
    return taskflow.Strategy(PROCESSORS, {name: taskflow.OpConfig(*config) for name, config in plan.items()})


@pytest.mark.parametrize("name", strategies())
def test_tasks_and_simulated_times_are_taskflows(name: str) -> None:
    plan, machine = strategies()[name], scratch.Machine()
    program = scratch.Program(scratch.network(**SIZES), plan)
    tasks = lower(model(), ours(plan), taskflow.SGD(lr=0.1))
    theirs = [(t.kind.value, t.source, t.processor, t.flops, t.nbytes) for t in tasks]
    assert [(t.kind, t.source, t.processor, t.flops, t.nbytes) for t in program.tasks] == theirs
    spans = scratch.simulate(program.tasks, machine)
    timeline = simulate(tasks, cluster(), lambda task: machine.seconds(program.tasks[task.number]))
    assert list(spans) == list(timeline.order)
    assert [spans[span.task] for span in timeline.spans] == [(span.start, span.end) for span in timeline.spans]


@pytest.mark.parametrize("name", ["data", "whole", "channels", "contraction", "random 0", "random 1", "random 2"])
def test_losses_are_taskflows(name: str) -> None:
    random = np.random.default_rng(3)
    start = {"fc1.weight": random.normal(size=(9, 7)), "fc2.weight": random.normal(size=(5, 9))}
    feeds = {"x": random.normal(size=(11, 7)), "label": random.integers(0, 5, 11)}
    plan = strategies()[name]
    program = scratch.Program(scratch.network(**SIZES), plan, lr=0.2)
    losses = list(scratch.train(program, scratch.Machine(), start, feeds, steps=12))
    run = taskflow.Executor(model(), ours(plan), taskflow.SGD(lr=0.2))
    run.set_parameters(start)
    assert losses == pytest.approx([run.train(feeds) for _ in range(12)], rel=1e-12)
    assert losses[-1] < 0.5 * losses[0]
    again = scratch.Program(scratch.network(**SIZES), plan, lr=0.2)
    assert list(scratch.train(again, scratch.Machine(), start, feeds, steps=12)) == losses  # to the last bit


def test_the_search_finds_a_faster_strategy_and_a_rerun_the_same() -> None:
    network, machine = scratch.network(), scratch.Machine()
    found = scratch.mcmc(network, machine, 150, seed=1)
    start = scratch.makespan(network, scratch.data_parallel(network, PROCESSORS), machine)
    assert scratch.makespan(network, found, machine) < 0.95 * start
    assert scratch.mcmc(network, machine, 150, seed=1) == found


def test_it_runs_and_says_that_all_losses_are_equal() -> None:
    printed = io.StringIO()
    with redirect_stdout(printed):
        scratch.main(proposals=10)
    losses = [line.split("loss ")[1].split(",")[0] for line in printed.getvalue().splitlines() if "-> " in line]
    assert len(losses) == 3 and len(set(losses)) == 1, printed.getvalue()


@pytest.mark.parametrize("name", [SOURCE.name, "from_scratch_tasks.py"])
def test_it_is_short_and_needs_only_numpy(name: str) -> None:
    text = SOURCE.with_name(name).read_text()
    tree = ast.parse(text)
    imported = {
        name.split(".")[0] for node in ast.walk(tree) if isinstance(node, (ast.Import, ast.ImportFrom))
        for name in ([node.module or ""] if isinstance(node, ast.ImportFrom) else [a.name for a in node.names])
    }
    assert imported <= {*sys.stdlib_module_names, "numpy", "from_scratch_tasks", "taskflow_from_scratch"}
    documentation = {
        line for node in ast.walk(tree) if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef))
        and ast.get_docstring(node) for line in range(node.body[0].lineno, (node.body[0].end_lineno or 0) + 1)
    }
    layout = (tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER)
    code = {
        line for token in tokenize.generate_tokens(io.StringIO(text).readline) if token.type not in layout
        for line in range(token.start[0], token.end[0] + 1)
    } - documentation
    assert len(code) <= MOST_CODE_LINES, f"{len(code)} lines of code, without blank lines, comments and docstrings"
