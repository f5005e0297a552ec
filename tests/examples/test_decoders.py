"""examples/llama.py and moe.py as a user starts them: what they train on ranks is what they train in one process."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from fast_and_slow import fast_among
from starting import ROOT, needs_mpi, run_python

from taskflow.machine import host
from taskflow.mapper import HybridParallel, OpConfig, Strategy, map_graph
from taskflow.models import build
from taskflow.operators.top_k_routing import TopKRouting
from taskflow.rules import SGD
from taskflow.runtime import Executor
from taskflow.training.data import LanguageModelBatches
from taskflow.training.evaluation import ExpertEvaluation, ExpertWatch
from taskflow.training.program.loop import train

TEXT = "the quick brown fox jumps over a lazy dog while seven wise owls watch from old trees in silence"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a small text."""
    here = tmp_path_factory.mktemp("decoders")
    words = TEXT.split()
    chosen = np.random.default_rng(0).integers(0, len(words), 40_000)
    (here / "text.txt").write_text("\n".join(" ".join(words[i] for i in row) for row in chosen.reshape(-1, 10)))
    return here


def trained(folder: Path, example: str, *arguments: str, ranks: int = 0) -> dict[str, Any]:
    """The report of three steps."""
    done = run_python(
        str(ROOT / "examples" / example), "--data", "text.txt", "--steps", "3", "--json", *arguments, ranks=ranks, folder=folder,
        limit=250, extra={"TASKFLOW_CACHE": str(folder / "cache"), "TASKFLOW_WATCHDOG_SECONDS": "100"},
    )
    assert done.returncode == 0, done.stderr
    report: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return report


@pytest.mark.mpi
@needs_mpi
@pytest.mark.timeout(600)
@pytest.mark.parametrize(("example", "mapper", "ranks"), fast_among(
    [(example, *plan) for example in ("llama.py", "moe.py") for plan in (("megatron", 4), ("data", 2))],
    [("moe.py", "megatron", 4)],
))
def test_ranks_train_as_one_process_does(folder: Path, example: str, mapper: str, ranks: int) -> None:
    alone = trained(folder, example, "--processors", "1")
    assert alone["loss_last"] < alone["loss_first"]
    shared = trained(folder, example, "--mapper", mapper, ranks=ranks)
    np.testing.assert_allclose(shared["losses"], alone["losses"], rtol=1e-5)
    assert shared["loss_valid"] == pytest.approx(alone["loss_valid"], rel=1e-5)
    if example == "moe.py":
        assert 0 < shared["overflow_valid"] < 1 < shared["busiest_valid"] <= 8
        assert shared["experts"] == alone["experts"] and [row["step"] for row in shared["experts"]] == [1, 2, 3]


@pytest.mark.slow  # tests/runtime/test_key_ring.py trains on such ranks every time
@pytest.mark.mpi
@needs_mpi
def test_keys_go_around_a_ring_of_ranks(folder: Path) -> None:
    alone = trained(folder, "llama.py", "--processors", "1")
    shared = trained(folder, "llama.py", "--mapper", "c4 ring", "--key-blocks", "4", ranks=4)
    np.testing.assert_allclose(shared["losses"], alone["losses"], rtol=1e-5)
    assert shared["loss_valid"] == pytest.approx(alone["loss_valid"], rel=1e-5)


def test_validation_counts_what_the_experts_take() -> None:
    """On processors that share the experts it counts what one processor counts; and a loss without the auxiliary ones."""
    graph, found = build("MoE", preset="small", layers=4, factor=0.5, steps=16, dtype="float64"), []
    tokens = np.random.default_rng(1).integers(0, 17, 4 * 16 * 5 + 1)
    batches = LanguageModelBatches(tokens, 4, 16, np.dtype("int64"))
    for processors in (1, 2):
        configs = {}
        for node in graph:
            cut = [i for i, dim in enumerate(node.dims) if dim.name == "e" and dim.divisible and processors > 1]
            degrees = tuple(processors if i in cut[:1] else 1 for i in range(len(node.dims)))
            configs[node.name] = OpConfig(degrees, tuple(range(processors)) if cut else (0,))
        run = Executor(graph, Strategy(processors, configs), SGD(0.1), seed=3)
        measured = ExpertEvaluation(batches, windows=3).measure(run, print)
        assert measured is not None
        found.append(measured)
        values = [run.evaluate_with(batches.at(k).feeds, [graph.losses[0], "layers.1.moe.gating.4"])[1] for k in range(3)]
        loss = np.mean([v["loss"] for v in values if v is not None])
        assert measured["loss"] == pytest.approx(float(loss)) and measured["perplexity"] == pytest.approx(np.exp(loss))
        assert measured["loss"] < run.evaluate(batches.at(0).feeds)  # which has what an uneven load costs
    assert found[0] == pytest.approx(found[1])
    assert 0.3 < found[0]["overflow"] < 0.7  # at most half of the choices find a place
    with pytest.raises(ValueError, match="ExpertEvaluation: LeNet routes nothing"):
        lenet = build("LeNet", preset="small")
        ExpertEvaluation(batches).measure(
            Executor(lenet, Strategy(1, {n.name: OpConfig((1,) * len(n.dims), (0,)) for n in lenet}), SGD(0.1)), print
        )


def test_training_shows_load_and_overflow_of_experts() -> None:
    """Every so many steps, what the steps since had, with micro-batches and stages as on one processor; a step's as its routing
    says, with the random numbers of training."""
    lines: dict[str, list[str]] = {}
    found = []
    for plan in ("t1", "e2 d2 mb1", "p2 mb2"):
        graph = build("MoE", preset="small", layers=4, factor=0.5, steps=16, dtype="float64")
        tokens = np.random.default_rng(1).integers(0, 17, 4 * 16 * 9 + 1)
        batches, watch = LanguageModelBatches(tokens, 4, 16, np.dtype("int64")), ExpertWatch(graph)
        machine = host(1 if plan == "t1" else 2)
        run = Executor(graph, map_graph(HybridParallel(plan), graph, machine), SGD(0.1), seed=3, fetch=watch.tensors)
        said = lines.setdefault(plan, [])
        result = train(run, batches, 5, watch=watch, every=2, say=said.append, quiet=True)
        found.append(result.watched)
    assert found[0] == found[1] == found[2] and [row["step"] for row in found[0]] == [2, 4, 5]
    assert len(lines["t1"]) == 3 and lines["t1"] == lines["p2 mb2"]
    assert lines["t1"][1].startswith("experts in steps 3 to 4: ")
    assert " % of the words want the busiest (even: 50.0 %), " in lines["t1"][1]
    routings = [node for node in graph if node.operator.kind == "top_k_routing"]
    load, full = (np.array([run.fetched(node.outputs[i]) for node in routings]) for i in (3, 4))  # of the last step
    assert found[0][-1]["busiest_share"] == load.sum(axis=1).max() / (4 * 16) > 0.2
    assert 0 < found[0][-1]["overflow"] == full.sum() / load.sum()
    first = routings[0]
    assert isinstance(first.operator, TopKRouting) and first.operator.capacity is not None
    places = 4 * 4 * first.operator.capacity  # of all groups and experts; more words want the busiest than it has places for
    assert load.max() > first.operator.capacity and load.sum(axis=(1, 2)).max() > places
    assert found[0][-1]["even_share"] == 2 / 4
