"""Training in bfloat16 and float16: float32 copies of the weights, sums and state; loss scaling; checkpoints between precisions."""

from __future__ import annotations

import sys
from dataclasses import replace
from functools import cache
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner
from fast_and_slow import fast_among
from language_model import undivided
from pipelines import GPT, decoder, fitting, random_pipeline, tokens

import taskflow
from taskflow.checkpoint import load_checkpoint, load_weights, read_weights, save_checkpoint, save_weights
from taskflow.cli.main import main
from taskflow.floats import float_type
from taskflow.graph import OperatorGraph
from taskflow.loss_scaling import LossScaler, LossScaling
from taskflow.mapper import CollectiveSync, DataParallel, Strategy, Sync, SyncAlgorithm, UpdatePlacement, map_graph
from taskflow.models import build
from taskflow.optimizer.memory.peak import peak_bytes
from taskflow.rules import SGD, AdamW, UpdateRule
from taskflow.runtime.executor import Executor, LossError
from taskflow.tasks import Kind, Update

pytest.importorskip("ml_dtypes")
TYPES = ["bfloat16", "float16"]
UNIT = {"bfloat16": 2.0**-8, "float16": 2.0**-11}
"""The largest relative error of a rounding."""
RULE = AdamW(1e-3)


def trained(run: Executor, steps: int, batch: dict[str, Any] | None = None) -> list[float]:
    found = [run.train(batch or tokens(step)) for step in range(steps)]
    assert all(loss is not None for loss in found)
    return found  # type: ignore[return-value]


def one(dtype: str, rule: UpdateRule = RULE, **options: Any) -> Executor:
    """A small GPT on one processor."""
    graph = decoder(dtype)
    return Executor(graph, undivided(graph), rule, **options)


def masters(run: Executor) -> dict[str, Any]:
    """The float32 copies of the weights."""
    return dict(run.gather(run.master_holdings.values()))


def words(graph: OperatorGraph) -> dict[str, Any]:
    """Sentences that a network can learn: each word is followed by the next one."""
    batch, steps = graph.node("tokens").operator.shape  # type: ignore[attr-defined]
    start = np.random.default_rng(0).integers(0, 8, (batch, 1)) + np.arange(steps + 1) % 8
    return {"tokens": start[:, :-1] % 8, "targets": start[:, 1:] % 8}


@pytest.mark.parametrize("name", ["GPT-2", "Llama"])
@pytest.mark.parametrize("dtype", TYPES)
def test_a_decoder_learns_as_in_float32(name: str, dtype: str) -> None:
    losses = {}
    for kind in ("float32", dtype):
        graph = build(name, preset="small", dtype=kind)
        run = Executor(graph, undivided(graph), AdamW(3e-3), loss_scaling=LossScaling(1024.0))
        losses[kind] = trained(run, 60, words(graph))
        assert not run.state.skipped
    exact, found = np.array(losses["float32"]), np.array(losses[dtype])
    assert exact[-1] < 0.6 * exact[0], "it learns"
    assert np.abs(found - exact).max() < 0.03 * exact[0]
    assert found[-1] == pytest.approx(exact[-1], rel=0.05)


@pytest.mark.parametrize("dtype", TYPES)
def test_weights_are_the_rounded_copies(dtype: str) -> None:
    run, exact = one(dtype), one("float32")
    for step in range(3):
        copies, weights = masters(run), run.parameters()
        assert weights is not None and copies.keys() == weights.keys()
        for name, copy in copies.items():
            assert copy.dtype == np.float32 and weights[name].dtype == float_type(dtype)
            np.testing.assert_array_equal(weights[name], copy.astype(weights[name].dtype), err_msg=name)
        if step == 0:
            starts = exact.parameters()
            assert starts is not None
            for name, copy in copies.items():
                np.testing.assert_array_equal(copy, starts[name], err_msg=name)
        run.train(tokens(step))
    assert all(copy.astype(float_type(dtype)).astype(np.float32).tobytes() != copy.tobytes() for copy in masters(run).values())


def test_small_updates_are_not_lost() -> None:
    """A weight of 1 moves by a sixteenth of bfloat16's distance there, which bfloat16 alone loses; 32 steps are two of them."""
    graph = OperatorGraph("bfloat16")
    x = taskflow.add_weight(taskflow.input(graph, (1, 1), name="x"), (1, 1), name="w")
    graph.minimize(taskflow.scale(taskflow.mse_loss(x, taskflow.input(graph, (1, 1), name="target"), name="loss"), 0.5))
    run = Executor(graph, undivided(graph), SGD(2.0**-12))
    run.set_parameters({"w": np.ones((1, 1), np.float32)})
    for _ in range(32):
        weight = run.parameters()
        assert weight is not None
        run.train({"x": np.zeros((1, 1), np.float32), "target": np.asarray(weight["w"] - 1, np.float32)})  # the gradient is 1
    assert float(masters(run)["w"][0, 0]) == 1 - 32 * 2.0**-12
    weight = run.parameters()
    assert weight is not None and float(weight["w"][0, 0]) == 1 - 2 * 2.0**-8


# ---- strategies ------------------------------------------------------------------------------------------------------
def rounding(dtype: str, run: Executor) -> float:
    """How far losses under two strategies may be apart. They differ where sums of 16-bit numbers are cut: each such sum has an
    error of at most ``u`` times its size more. A residual stream of n layers collects 2 n of them, which as independent errors
    come to sqrt(2 n) u; so does its gradient, which moves weights. The loss moves by at most twice what a score does, and scores
    are below 4 here."""
    return 2 * 4 * UNIT[dtype] * (2 * GPT.layers) ** 0.5


@cache
def of_one(dtype: str, rule: UpdateRule) -> list[float]:
    """Losses of three steps on one processor."""
    return trained(one(dtype, rule, seed=3), 3)


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("seed", fast_among(range(10), range(2)))
def test_losses_do_not_depend_on_the_strategy(dtype: str, seed: int) -> None:
    random, rule = Random(seed), (RULE, SGD(0.05, momentum=0.9))[seed % 2]
    losses, graph = of_one(dtype, rule), decoder(dtype)
    strategy = fitting(graph, random.randint(2, 5), random)
    run = Executor(graph, strategy, rule, seed=3)
    np.testing.assert_allclose(trained(run, 3), losses, rtol=0, atol=rounding(dtype, run), err_msg=f"strategy {seed}")
    np.testing.assert_allclose(losses, of_one("float32", rule), rtol=0, atol=rounding(dtype, run))


@pytest.mark.parametrize("dtype", fast_among(TYPES, ["bfloat16"]))
def test_planned_memory_is_what_is_allocated(dtype: str) -> None:
    graph = decoder(dtype)
    for seed in range(3):
        strategy = fitting(graph, 1, Random(seed))
        (use,) = peak_bytes(graph, strategy, RULE)
        run = Executor(graph, strategy, RULE, loss_scaling=None)
        assert use.nbytes == run.program("train").plan.memory.nbytes + run.kept.nbytes
        assert use.weights == 2 * graph.parameter_count
        assert use.state == (4 + 2 * 4) * graph.parameter_count


@pytest.mark.parametrize("seed", fast_among(range(10), range(2)))
def test_a_loss_scale_changes_no_update_under_any_strategy(seed: int) -> None:
    """Every seed of the gradients has the scale: a step of SGD moves the weights as far as on one processor."""
    graph, rule, scaling = decoder("float16"), SGD(1.0), LossScaling.fixed(1024.0)
    moved = []
    for strategy in (undivided(graph), fitting(graph, 4, Random(seed))):
        run = Executor(graph, strategy, rule, seed=3, loss_scaling=scaling)
        before = masters(run)
        trained(run, 1)
        after = masters(run)
        moved.append(np.concatenate([(after[name] - before[name]).reshape(-1) for name in sorted(before)]))
    assert np.linalg.norm(moved[0]) > 0.1
    assert np.linalg.norm(moved[1] - moved[0]) < 0.02 * np.linalg.norm(moved[0])


def data_parallel(dtype: str, way: Sync, processors: int = 4) -> tuple[OperatorGraph, Strategy]:
    graph = decoder(dtype)
    strategy = map_graph(DataParallel(), graph, taskflow.host(processors))
    return graph, replace(strategy, syncs={p.layer: way for p in graph.parameters})


@pytest.mark.parametrize("travel", [SyncAlgorithm.RING, SyncAlgorithm.COLLECTIVE])
def test_a_sharded_update_keeps_copies_of_its_share(travel: SyncAlgorithm) -> None:
    """ZeRO's stage 1: each processor has all 16-bit weights, and of copies and state a quarter."""
    chunks = 0 if travel is SyncAlgorithm.COLLECTIVE else 4
    graph, strategy = data_parallel("bfloat16", Sync.of(travel, UpdatePlacement.SHARDED, chunks=chunks))
    uses = peak_bytes(graph, strategy, RULE)
    count = graph.parameter_count
    assert all(use.weights == 2 * count for use in uses)
    assert sum(use.state for use in uses) == (4 + 2 * 4) * count
    assert max(use.state for use in uses) < 1.2 * (4 + 2 * 4) * count / 4
    every = data_parallel("bfloat16", Sync.of(travel, UpdatePlacement.REPLICATED))
    assert all(use.state == (4 + 2 * 4) * count for use in peak_bytes(*every, RULE))


def test_gradients_travel_in_float32_and_weights_in_16_bits() -> None:
    """As in Megatron-LM's distributed optimiser: a reduce-scatter of 4 bytes, an all-gather of 2."""
    graph, strategy = data_parallel("bfloat16", CollectiveSync(UpdatePlacement.SHARDED))
    tasks = Executor(graph, strategy, RULE).program("train").graph
    sent = [t.nbytes for t in tasks if t.kind is Kind.COLLECTIVE]
    assert sum(sent) == 3 * (4 + 2) * graph.parameter_count
    updates = [t for t in tasks if isinstance(t.work, Update)]
    assert sum(t.nbytes for t in updates) == (4 * (3 + 2 * 2) + 2) * graph.parameter_count


# ---- loss scaling ----------------------------------------------------------------------------------------------------
def test_the_scale_follows_grad_scalers_rule() -> None:
    torch = pytest.importorskip("torch")
    theirs = torch.amp.GradScaler("cpu", init_scale=1024.0, growth_interval=3)
    ours = LossScaler(LossScaling(1024.0, interval=3))
    weight = torch.nn.Parameter(torch.ones(1))
    rule = torch.optim.SGD([weight], 0.1)
    for overflowed in (0, 0, 1, 0, 0, 0, 0, 1, 1, 0, 0, 0, 0, 0, 0):
        assert ours.scale == theirs.get_scale() or (overflowed, ours.steady) == (0, 0)
        rule.zero_grad()
        theirs.scale((weight * (float("inf") if overflowed else 1.0)).sum()).backward()
        theirs.step(rule)
        theirs.update()
        ours.after(bool(overflowed))
        assert ours.scale == theirs.get_scale()


def test_the_defaults_are_grad_scalers() -> None:
    assert LossScaling() == LossScaling(65536.0, 2.0, 0.5, 2000)
    assert LossScaling.fixed(8.0).growth == LossScaling.fixed(8.0).backoff == 1.0
    for wrong in ({"start": 0.0}, {"start": float("inf")}, {"growth": 0.5}, {"backoff": 0.0}, {"interval": 0}):
        with pytest.raises(ValueError, match="LossScaling: needs"):
            LossScaling(**wrong)


@pytest.mark.parametrize("processors", fast_among([1, 3], [3]))
def test_an_overflow_skips_a_step_everywhere(processors: int) -> None:
    graph = decoder("float16")
    strategy = fitting(graph, processors, Random(5)) if processors > 1 else undivided(graph)
    run = Executor(graph, strategy, RULE, loss_scaling=LossScaling(2.0**40))
    assert run.scaler is not None
    before, copies = run.parameters(), masters(run)
    while run.state.skipped == run.state.step:
        scale = run.scaler.scale
        run.train(tokens(0))
        if run.state.skipped == run.state.step:
            assert run.scaler.scale == scale / 2
            after = run.parameters()
            assert before is not None and after is not None
            assert all((after[name] == value).all() for name, value in before.items())
            assert all((masters(run)[name] == value).all() for name, value in copies.items())
    assert run.state.skipped > 3 and run.scaler.scale == scale
    assert any((masters(run)[name] != value).any() for name, value in copies.items())


def test_skipped_steps_do_not_count_for_the_update_rule() -> None:
    """Adam's correction of its first steps starts with the first update, as after GradScaler.step."""
    graph = build("Llama", preset="small", dtype="float16")  # without dropout, which counts all steps
    early, late = (Executor(graph, undivided(graph), RULE, loss_scaling=LossScaling(start)) for start in (1.0, 2.0**40))
    assert late.scaler is not None and early.scaler is not None
    while late.state.skipped == late.state.step:
        late.train(words(graph))
    early.scaler.scale = late.scaler.scale
    early.train(words(graph))
    assert late.state.skipped > 0 == early.state.skipped
    assert all(value.tobytes() == masters(early)[name].tobytes() for name, value in masters(late).items())


@pytest.mark.parametrize("clip_norm", [None, 0.05])
def test_a_scale_does_not_change_what_is_learnt(clip_norm: float | None) -> None:
    """A power of two moves no digit; clipping sees gradients without it."""
    runs = [one("float32", clip_norm=clip_norm), *(
        one("float16", clip_norm=clip_norm, loss_scaling=scaling) for scaling in (LossScaling.fixed(8.0), LossScaling.fixed(1024.0))
    )]
    losses = [trained(run, 4) for run in runs]
    np.testing.assert_allclose(losses[1], losses[0], atol=rounding("float16", runs[1]), rtol=0)
    np.testing.assert_allclose(losses[2], losses[1], atol=rounding("float16", runs[2]), rtol=0)


def test_gradients_too_small_for_float16_need_a_scale() -> None:
    """Micikevicius et al., figure 3: what lies below float16's smallest number is lost, unless the loss is scaled."""
    found = {}
    for scaling in (None, LossScaling.fixed(4096.0)):
        graph = OperatorGraph("float16")
        x, label = taskflow.input(graph, (4, 8), name="x"), taskflow.input(graph, (4,), "int64", name="label")
        hidden = taskflow.linear(x, 8, name="hidden")
        scores = taskflow.linear(taskflow.scale(taskflow.relu(hidden), 1e-7), 3, name="out")
        graph.minimize(taskflow.cross_entropy(scores, label))
        run = Executor(graph, undivided(graph), SGD(1.0), loss_scaling=scaling)
        before = masters(run)["hidden.weight"]
        run.train({"x": np.ones((4, 8), np.float32), "label": np.arange(4) % 3})
        found[scaling is None] = np.abs(masters(run)["hidden.weight"] - before).max()
    assert found[True] == 0 < found[False]


def test_endless_overflow_ends() -> None:
    """The root of zero has no derivative, whatever the scale; the loss is finite."""
    graph = OperatorGraph("float16")
    x, label = taskflow.input(graph, (4, 8), name="x"), taskflow.input(graph, (4,), "int64", name="label")
    scores = taskflow.sqrt(taskflow.scale(taskflow.linear(x, 3, name="out"), 0.0))
    graph.minimize(taskflow.cross_entropy(scores, label))
    run = Executor(graph, undivided(graph), SGD(1.0))
    feeds = {"x": np.ones((4, 8), np.float32), "label": np.arange(4) % 3}
    with np.errstate(all="ignore"), pytest.raises(LossError, match="gradients are not finite at step 41, whatever the loss"):
        for _ in range(100):
            run.train(feeds)


def test_bfloat16_and_float32_have_no_scale() -> None:
    assert one("bfloat16").scaler is None and one("float32").scaler is None and one("float16", loss_scaling=None).scaler is None


# ---- files -----------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("dtype", TYPES)
def test_a_checkpoint_goes_on_bit_for_bit_and_under_another_precision(dtype: str, tmp_path: Path) -> None:
    pytest.importorskip("safetensors")
    start = LossScaling(2.0**30) if dtype == "float16" else LossScaling()
    run = one(dtype, loss_scaling=start)
    trained(run, 5)
    save_checkpoint(run, tmp_path / "at5.safetensors")
    stored = read_weights(tmp_path / "at5.safetensors")
    assert all(stored[name].dtype == np.float32 for name in stored)
    rest = [run.train(tokens(step)) for step in range(5, 8)]
    again = one(dtype, loss_scaling=start)
    load_checkpoint(again, tmp_path / "at5.safetensors")
    assert [again.train(tokens(step)) for step in range(5, 8)] == rest
    assert again.state.skipped == run.state.skipped and (dtype == "bfloat16" or run.state.skipped > 0)
    for other in ("float32", "bfloat16", "float16"):
        graph = decoder(other)
        moved = Executor(graph, fitting(graph, 3, Random(1)), RULE, loss_scaling=LossScaling(1024.0))
        load_checkpoint(moved, tmp_path / "at5.safetensors")
        found = [moved.train(tokens(step)) for step in range(5, 8)]
        np.testing.assert_allclose(found, rest, atol=2 * rounding("bfloat16", moved), rtol=0)
    wide = one("float64")
    with pytest.raises(ValueError, match=f"it is in {dtype}"):
        load_checkpoint(wide, tmp_path / "at5.safetensors")


@pytest.mark.parametrize("dtype", TYPES)
def test_weights_in_files(dtype: str, tmp_path: Path) -> None:
    pytest.importorskip("safetensors")
    run, path = one(dtype), tmp_path / "weights.safetensors"
    trained(run, 2)
    save_weights(run, path)
    assert path.stat().st_size < 2.3 * run.graph.parameter_count + 20_000, "two bytes a weight"
    weights = run.parameters()
    assert weights is not None
    for kind in (dtype, "float32"):
        other = one(kind)
        load_weights(other, path)
        loaded = other.parameters()
        assert loaded is not None
        for name, value in weights.items():
            np.testing.assert_array_equal(loaded[name].astype(np.float32), value.astype(np.float32))
    exact = {name: value + np.float32(1e-6) for name, value in masters(run).items()}
    run.set_parameters(exact)
    assert all((masters(run)[name] == value).all() for name, value in exact.items()), "copies take what 16 bits do not hold"


# ---- what is not possible ----------------------------------------------------------------------------------------------
def test_a_loss_must_be_in_float32() -> None:
    graph = OperatorGraph("bfloat16")
    x = taskflow.linear(taskflow.input(graph, (4, 8), name="x"), 8)
    with pytest.raises(ValueError, match="a loss must be in float32, got bfloat16"):
        graph.minimize(taskflow.mean(x))


def test_short_names_and_names_of_nothing() -> None:
    assert OperatorGraph("bf16").dtype == float_type("bfloat16") and OperatorGraph("fp16").dtype == np.float16
    for wrong in ("fp8", "int32", "str"):
        with pytest.raises(ValueError, match=r"OperatorGraph: dtype must be a type of floats \(float32, bfloat16"):
            OperatorGraph(wrong)


def test_bfloat16_without_its_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ml_dtypes", None)
    with pytest.raises(ImportError, match="bfloat16 needs the package ml_dtypes, which is missing here: pip install ml_dtypes"):
        OperatorGraph("bf16")
    assert OperatorGraph("fp16").dtype == np.float16
    done = CliRunner().invoke(main, ["simulate", "mlp", "--dtype", "bf16"])
    assert done.exit_code == 2 and "pip install ml_dtypes" in done.output


def test_evaluation_uses_the_16_bit_weights() -> None:
    run = one("bfloat16")
    trained(run, 2)
    graph = decoder("bfloat16")
    other = Executor(graph, undivided(graph), weights=run)
    assert other.evaluate(tokens(9)) == run.evaluate(tokens(9))


def test_a_random_strategy_has_micro_batches_and_shares() -> None:
    """The property above must have met what it is about."""
    graph = decoder()
    drawn = [random_pipeline(graph, 4, Random(seed)) for seed in range(10)]
    assert any(s.pipeline is not None and s.pipeline.micro_batches > 1 for s in drawn)
    assert any(sync.placement is UpdatePlacement.SHARDED for s in drawn for sync in s.syncs.values())
