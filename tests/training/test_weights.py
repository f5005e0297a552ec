"""Weights and checkpoints in files: whole arrays by name, whatever the strategy."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import replace
from functools import partial
from pathlib import Path
from random import Random

import numpy as np
import pytest
from fast_and_slow import fast_among
from inference_model import data, network
from language_model import CONFIG, feeds, model, random_strategy, undivided
from starting import files_up_to

from taskflow.checkpoint.checkpoint import gather_checkpoint
from taskflow.checkpoint.safetensors_file import write_safetensors
from taskflow.rules import SGD, Adam, AdamW
from taskflow.runtime.executor import Executor
from taskflow.training import (
    StoredWeights,
    evaluate,
    load_checkpoint,
    load_weights,
    read_checkpoint,
    read_weights,
    save_checkpoint,
    save_weights,
)

safetensors = pytest.importorskip("safetensors", reason="safetensors is not installed: pip install 'soap-taskflow[test]'")
RULES = (SGD(0.5), SGD(0.5, momentum=0.9), Adam(0.01), AdamW(0.01))


def executor(graph, seed: int, rule=RULES[1], **options) -> Executor:
    random = Random(seed)
    return Executor(graph, random_strategy(graph, random.randint(1, 5), random), rule, seed=3, **options)


@pytest.mark.parametrize("seed", range(8))
def test_weights_go_from_any_strategy_to_any(seed, tmp_path):
    path = tmp_path / "weights.safetensors"
    run = executor(network(), seed)
    for step in range(3):
        run.train(data(step))
    save_weights(run, path, metadata={"note": "three steps"})
    assert os.listdir(tmp_path) == [path.name]
    stored = read_weights(path)
    assert stored.metadata["note"] == "three steps"
    assert set(stored) == {
        "conv1.weight", "conv1.bias", "bn1.weight", "bn1.bias", "bn1.running_mean", "bn1.running_var", "fc.weight", "fc.bias",
    }
    for name, value in run.weights().items():
        np.testing.assert_array_equal(stored[name], value)
    other = executor(network(batch=3), seed + 100)
    assert set(load_weights(other, path)) == set(stored)
    for name, value in run.weights().items():
        np.testing.assert_array_equal(other.weights()[name], value)
    images = {"images": data(9)["images"]}
    np.testing.assert_allclose(other.predict(images), run.predict(images), rtol=1e-12)


def test_recurrent_names_do_not_depend_on_the_cut(tmp_path):
    path = tmp_path / "weights.safetensors"
    run = executor(model(), 1)
    save_weights(run, path)
    assert "lstm0.weight_ih" in read_weights(path) and not [n for n in read_weights(path) if ".1." in n]
    whole = model(config=replace(CONFIG, steps_per_operator=CONFIG.steps))
    other = executor(whole, 2)
    load_weights(other, path)
    assert other.evaluate(feeds(0)) == pytest.approx(run.evaluate(feeds(0)), rel=1e-10)


@pytest.mark.parametrize("seed", fast_among(range(8), range(4)))
@pytest.mark.parametrize("build,batch", [(network, data), (model, feeds)], ids=["network", "language model"])
def test_a_resumed_run_is_bitwise_the_uninterrupted_one(build, batch, seed, tmp_path):
    """Momentum, moments, running statistics, carried state, dropout's masks and Adam's step count all go on."""
    path, rule = tmp_path / "checkpoint.safetensors", RULES[seed % 4]
    options = {"clip_norm": 1.0} if seed % 3 else {}
    whole = executor(build(), seed, rule, **options)
    losses = [whole.train(batch(step)) for step in range(7)]
    begun = executor(build(), seed, rule, **options)
    first = [begun.train(batch(step)) for step in range(3)]
    save_checkpoint(begun, path, position={"epoch": 1, "window": 3})
    begun.train(batch(50))  # what happens later is not in it
    resumed = Executor(begun.graph, begun.strategy, rule, seed=99, **options)
    said = load_checkpoint(resumed, path)
    assert (said.step, said.seed, said.position) == (3, 3, {"epoch": 1, "window": 3})
    assert read_checkpoint(path) == said
    assert first + [resumed.train(batch(step)) for step in range(3, 7)] == losses
    for name, value in whole.weights().items():
        np.testing.assert_array_equal(resumed.weights()[name], value)
    elsewhere = executor(build(), seed + 40, rule, **options)
    load_checkpoint(elsewhere, path)
    np.testing.assert_allclose([elsewhere.train(batch(step)) for step in range(3, 7)], losses[3:], rtol=1e-9)


@pytest.mark.parametrize("seed", range(6))
def test_the_memory_of_the_last_checkpoint_is_used_again(seed, tmp_path):
    """Whatever the strategy: arrays that nobody has a part of, or several have, and 16-bit ones, which are widened, too."""
    graph = model() if seed % 3 else network(dtype="bfloat16")
    run, path = executor(graph, seed, RULES[seed % 4]), tmp_path / "unused.safetensors"

    def batch(step):
        made = feeds(step) if seed % 3 else data(step)
        return {name: value.astype("float32") if value.dtype.kind == "f" else value for name, value in made.items()}

    run.train(batch(0))
    first, _ = gather_checkpoint(run, path)
    before = {name: value.copy() for name, value in first.items()}
    run.train(batch(1))
    wanted, _ = gather_checkpoint(run, path)
    for value in first.values():
        value[...] = 7  # of the last checkpoint nothing may be left
    found, _ = gather_checkpoint(run, path, into=first)
    assert found.keys() == wanted.keys() and any((before[name] != value).any() for name, value in wanted.items())
    for name, value in wanted.items():
        np.testing.assert_array_equal(found[name], value, strict=True)
        narrow = seed % 3 == 0 and (name.startswith("training/carried") or value.dtype.itemsize == 2)
        assert narrow or np.shares_memory(found[name], first[name]), name
        assert not any(np.shares_memory(found[name], held) for held in wanted.values())


def test_a_checkpoint_is_also_a_weights_file(tmp_path):
    path = tmp_path / "checkpoint.safetensors"
    run = executor(model(), 3, Adam(0.01))
    run.train(feeds(0))
    save_checkpoint(run, path)
    names = set(read_weights(path))
    assert {"training/adam0/lstm0.weight_ih", "training/adam1/lstm0.weight_ih", "training/carried/lstm.h0"} <= names
    user = Executor(run.graph, undivided(run.graph))
    load_weights(user, path)
    assert user.evaluate(feeds(1)) == pytest.approx(run.evaluate(feeds(1)), rel=1e-10)


def test_checkpoints_that_do_not_fit_change_nothing(tmp_path):
    path, plain = tmp_path / "checkpoint.safetensors", tmp_path / "weights.safetensors"
    run = executor(network(), 1, Adam(0.01))
    run.train(data(0))
    save_checkpoint(run, path)
    save_weights(run, plain)
    other = executor(network(), 1, SGD(0.1, momentum=0.9))
    before = {name: value.tobytes() for name, value in other.weights().items()}
    wrong = r"a checkpoint of network with Adam\(.* does not fit network .* with SGD\(.*training/sgd0/conv1"
    with pytest.raises(ValueError, match=wrong):
        load_checkpoint(other, path)
    with pytest.raises(ValueError, match="not a checkpoint, but weights only; load_weights reads it"):
        load_checkpoint(run, plain)
    with pytest.raises(ValueError, match=r"does not fit RNNLM .*embedding\.weight is missing"):
        load_checkpoint(executor(model(), 1, Adam(0.01)), path)
    with pytest.raises(ValueError, match="it is in float64"):
        load_checkpoint(executor(network(dtype="float32"), 1, Adam(0.01)), path)
    assert before == {name: value.tobytes() for name, value in other.weights().items()}
    assert other.state.step == 0
    with pytest.raises(ValueError, match="has no update rule"):
        save_checkpoint(Executor(run.graph, undivided(run.graph)), path)


def test_what_does_not_fit_is_named(tmp_path):
    path = tmp_path / "weights.safetensors"
    run = executor(network(), 1)
    before = {name: value.tobytes() for name, value in run.weights().items()}
    arrays = {name: value for name, value in run.weights().items() if name != "fc.bias"}
    safetensors.numpy.save_file({**arrays, "fc.weight": np.zeros((3, 4)), "more": np.zeros(2)}, path)
    with pytest.raises(ValueError, match=r"fc\.weight must be \(3, 48\), got \(3, 4\); fc\.bias is missing; more is not a weight"):
        load_weights(run, path)
    assert before == {name: value.tobytes() for name, value in run.weights().items()}
    safetensors.numpy.save_file({"fc.bias": np.arange(3.0), "more": np.zeros(2)}, path)
    assert load_weights(run, path, strict=False) == ("fc.bias",)
    np.testing.assert_array_equal(run.weights()["fc.bias"], np.arange(3))
    with pytest.raises(FileNotFoundError, match=r"nothing\.safetensors does not exist"):
        load_weights(run, tmp_path / "nothing.safetensors")
    (tmp_path / "text.safetensors").write_text("no such thing")
    with pytest.raises(ValueError, match="not a safetensors file"):
        load_weights(run, tmp_path / "text.safetensors")
    with pytest.raises(FileNotFoundError, match="there is no folder"):
        save_weights(run, tmp_path / "no" / "weights.safetensors")


def test_other_float_types_and_names(tmp_path):
    path = tmp_path / "weights.safetensors"
    run = executor(network(), 1)
    save_weights(run, path)

    def renamed(stored: StoredWeights) -> StoredWeights:
        return StoredWeights(stored.source, {"last" + n[2:] if n.startswith("fc") else n: s for n, s in stored.shapes.items()},
                             lambda name: stored[name.replace("last", "fc")])

    single = executor(network(dtype="float32", last="last"), 2)
    assert "last.weight" in load_weights(single, path, rename=renamed)
    np.testing.assert_array_equal(single.weights()["last.weight"], run.weights()["fc.weight"].astype("float32"))


def test_a_failed_write_leaves_the_old_file(tmp_path):
    path = tmp_path / "weights.safetensors"
    run = executor(network(), 1)
    save_weights(run, path)
    old = path.read_bytes()
    run.train(data(0))
    with files_up_to(len(old) // 2), pytest.raises(OSError, match=rf"File too large: '{path}'"):
        save_weights(run, path)
    assert path.read_bytes() == old and os.listdir(tmp_path) == [path.name]


@pytest.fixture(scope="module")
def saved(tmp_path_factory) -> Path:
    path = tmp_path_factory.mktemp("saved") / "checkpoint.safetensors"
    run = executor(network(), 1, Adam(0.01))
    run.train(data(0))
    save_checkpoint(run, path, position={"batch": 1})
    return path


def test_every_flipped_bit_is_found(saved, tmp_path):
    """In an array its name is said, in the metadata these; nothing of the Executor has changed. In the format's own bytes it is
    at least refused, unless it changes nothing."""
    data_, path, random = saved.read_bytes(), tmp_path / "damaged.safetensors", Random(0)
    length = int.from_bytes(data_[:8], "little")
    header = json.loads(data_[8 : 8 + length])
    texts = header.pop("__metadata__")
    other = executor(network(), 1, Adam(0.01))
    before = {name: value.tobytes() for name, value in other.weights().items()}
    for name, said in header.items():
        for _ in range(4):
            flip(data_, path, 8 * (8 + length + random.randrange(*said["data_offsets"])) + random.randrange(8))
            with pytest.raises(ValueError, match=rf"{path}: damaged: array {name} has checksum .*restore the file from a copy"):
                load_checkpoint(other, path)
            with pytest.raises(ValueError, match=rf"damaged: array {name} "):
                read_weights(path)[name]
    for _ in range(300):
        flip(data_, path, random.randrange(8 * (8 + length)))
        try:
            load_checkpoint(other, path)
        except ValueError as error:
            assert str(path) in str(error) and "\n" not in str(error)
        else:
            assert json.loads(path.read_bytes()[8 : 8 + length]) == {"__metadata__": texts, **header}
    assert before == {name: value.tobytes() for name, value in other.weights().items()} and other.state.step == 0


def flip(data_: bytes, path: Path, bit: int) -> None:
    changed = bytearray(data_)
    changed[bit // 8] ^= 1 << bit % 8
    path.write_bytes(changed)


def test_an_array_that_is_renamed_or_reshaped_is_damaged(saved, tmp_path):
    path, stored = tmp_path / "weights.safetensors", read_weights(saved)
    arrays = {name: stored[name] for name in stored if not name.startswith("training/")}
    run = executor(network(), 1)
    for changed, wrong in (
        ({**arrays, "fc.weight": arrays["fc.weight"][::-1]}, "array fc.weight has checksum"),
        ({"fc.biar" if name == "fc.bias" else name: value for name, value in arrays.items()}, "array fc.biar was not written, but"),
        ({name: value for name, value in arrays.items() if name != "fc.bias"}, "array fc.bias was written, but is not there"),
    ):
        write_safetensors(path, arrays, {"note": "mine"})
        metadata = read_weights(path).metadata
        safetensors.numpy.save_file({name: np.ascontiguousarray(value) for name, value in changed.items()}, path, metadata)
        with pytest.raises(ValueError, match=f"{path}: damaged: {wrong}"):
            load_weights(run, path, strict=False)
    safetensors.numpy.save_file(arrays, path, {**metadata, "note": "yours"})
    with pytest.raises(ValueError, match="damaged: its metadata"):
        load_weights(run, path)


def test_checkpoints_without_checksums_are_read(saved, tmp_path):
    """Those of version 1, written by the library; one of version 2 that has lost them is not."""
    old, stored, run = tmp_path / "old.safetensors", read_weights(saved), executor(network(), 1, Adam(0.01))
    said = json.loads(stored.metadata["taskflow-checkpoint"])
    assert said["version"] == 2
    arrays = {name: stored[name] for name in stored}
    safetensors.numpy.save_file(arrays, old, {"taskflow-checkpoint": json.dumps({**said, "version": 1})})
    assert load_checkpoint(run, old).position == {"batch": 1}
    for name, value in run.weights().items():
        np.testing.assert_array_equal(stored[name], value)
    safetensors.numpy.save_file(arrays, old, {"taskflow-checkpoint": json.dumps(said)})
    with pytest.raises(ValueError, match="damaged: its checksums are gone"):
        load_checkpoint(run, old)


def test_the_library_reads_what_is_written(tmp_path):
    path, random = tmp_path / "all.safetensors", np.random.default_rng(0)
    arrays = {
        kind: random.integers(0, 2, shape).astype(kind)
        for kind, shape in {
            "float64": (), "float32": (3,), "float16": (5, 1), "int64": (2, 0), "uint8": (7,), "bool": (3,)
        }.items()
    }
    narrow = pytest.importorskip("ml_dtypes").bfloat16
    write_safetensors(path, {**arrays, "é": random.standard_normal((3, 2)).astype(narrow)}, {"note": "é"})
    stored = read_weights(path)
    with safetensors.safe_open(path, framework="numpy") as file:
        assert file.metadata()["note"] == "é"
        for name, value in arrays.items():
            for each in (file.get_tensor(name), stored[name]):
                assert each.dtype == value.dtype and each.shape == value.shape
                np.testing.assert_array_equal(each, value)
    assert stored["é"].dtype == np.float32
    (tmp_path / "plain").touch()
    assert path.stat().st_mode == (tmp_path / "plain").stat().st_mode  # others may read it, as any file


def test_without_safetensors_the_error_says_what_to_install(tmp_path):
    program = (
        "import sys; sys.modules['safetensors'] = None\n"
        "import taskflow; from taskflow.training import read_weights\n"
        "try: read_weights(sys.argv[1])\n"
        "except ImportError as error: print(error)"
    )
    (tmp_path / "x.safetensors").write_bytes(b"")
    root = str(Path(__file__).parents[2])
    done = subprocess.run(
        [sys.executable, "-c", program, str(tmp_path / "x.safetensors")], env={**os.environ, "PYTHONPATH": root},
        capture_output=True, text=True, timeout=250,
    )
    assert done.stdout == "weights files need safetensors: pip install 'soap-taskflow[weights]'\n", done.stderr


def test_evaluation_over_batches():
    run = executor(network(), 4)
    for step in range(3):
        run.train(data(step))
    batches = [data(seed) for seed in range(20, 25)]

    def top1(outputs, batch):
        return (outputs["fc"].argmax(1) == batch["labels"]).mean()

    found = evaluate(run, iter(batches), metrics={"top1": top1})
    assert found.batches == 5
    assert found.loss == pytest.approx(np.mean([run.evaluate(b) for b in batches]), rel=1e-12)
    right = [run.predict({"images": b["images"]}).argmax(1) == b["labels"] for b in batches]
    assert found.metrics["top1"] == pytest.approx(np.mean(right))
    assert 0 < found.metrics["top1"] < 1
    assert evaluate(run, batches[:1]).metrics == {}
    with pytest.raises(ValueError, match="at least one batch"):
        evaluate(run, [])
    named = partial(evaluate, run, batches, metrics={"size": lambda outputs, batch: outputs["conv1"].shape[1]})
    assert named(outputs=["conv1"]).metrics["size"] == 4


def test_names_that_are_no_inputs_are_refused():
    run = executor(network(), 1)
    with pytest.raises(ValueError, match="feeds: network has no input 'imagse'; there are images, labels"):
        run.train({**data(0), "imagse": data(0)["images"]})
    with pytest.raises(ValueError, match="feeds: network has no input 'more'"):
        run.evaluate({**data(0), "more": 1})
    assert run.state.step == 0
