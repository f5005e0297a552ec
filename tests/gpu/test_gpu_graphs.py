"""Steps that are recorded and replayed are the steps that are asked for kernel by kernel, bit for bit."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from random import Random
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from host_device import compiles, host_kernels
from language_model import random_strategy, undivided

import taskflow
from taskflow.kernels.device import NotRecorded
from taskflow.kernels.gpu import launching
from taskflow.kernels.gpu.device import CupyDevice
from taskflow.kernels.gpu.graphs import CudaRecorder
from taskflow.kernels.gpu.step_scalars import MOST
from taskflow.models import build
from taskflow.rules import SGD, Adam, AdamW, UpdateRule
from taskflow.runtime.executor import Executor
from taskflow.runtime.program import graph_capture as recording
from taskflow.runtime.program.graph_capture import LEAST, segments
from taskflow.training.data.synthetic import random_feeds

STEPS = 4


@pytest.fixture(params=["host", pytest.param("gpu", marks=pytest.mark.gpu)])
def both(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Kernels whose steps are asked for one by one, and kernels whose steps are recorded."""
    if request.param == "host":
        if not compiles():
            pytest.skip("no C++20 compiler: the GPU's kernels cannot be run on the host")
        return host_kernels(), host_kernels(records=True)
    from taskflow.kernels.gpu import gpu_kernels, gpu_missing

    if missing := gpu_missing():
        pytest.skip(missing)
    plain = gpu_kernels()
    monkeypatch.setattr(type(plain.device), "recorder", lambda self: None if self is plain.device else original(self))
    return plain, gpu_kernels()


def original(device: Any) -> Any:
    from taskflow.kernels.gpu.graphs import CudaRecorder

    return CudaRecorder(device)


def trained(name: str, kernels: Any, processors: int, rule: UpdateRule, **options: Any) -> tuple[Executor, np.ndarray]:
    """After some steps whose learning rate changes; with the losses, and that of an evaluation before the last step."""
    graph = build(name, preset="small", dtype="float64")
    strategy = undivided(graph) if processors == 1 else random_strategy(graph, processors, Random(processors))
    run = Executor(graph, strategy, rule, seed=3, kernels=kernels, **options)
    losses = []
    for step in range(STEPS):
        losses.append(run.train(random_feeds(graph, step), lr=rule.lr / (1 + step) if step > 1 else None))
        losses.append(run.evaluate(random_feeds(graph, 99 + step)))
    return run, np.array(losses)


@pytest.mark.parametrize(("name", "processors", "rule", "options"), [
    ("AlexNet", 1, SGD(0.05, momentum=0.9, nesterov=True), {}),
    pytest.param("AlexNet", 3, AdamW(0.01), {"clip_norm": 1.0}, marks=pytest.mark.slow),
    ("RNNLM", 2, Adam(0.01), {"clip_norm": 1.0}),
    ("LeNet", 2, SGD(0.05, momentum=0.9, weight_decay=0.1), {}),
    ("MoE", 2, AdamW(0.01), {"clip_norm": 1.0}),
    pytest.param("Mixtral", 2, SGD(0.05), {}, marks=pytest.mark.slow),
    pytest.param("NMT", 2, SGD(0.05), {"clip_norm": 1.0}, marks=pytest.mark.slow),
    pytest.param("ResNet-101", 1, SGD(0.05, momentum=0.9), {}, marks=pytest.mark.slow),
])
def test_replayed_steps_give_the_same_bits(name: str, processors: int, rule: UpdateRule, options: Any, both: Any) -> None:
    plain, recording = both
    expected_run, expected = trained(name, plain, processors, rule, **options)
    run, losses = trained(name, recording, processors, rule, **options)
    assert losses.tobytes() == expected.tobytes() and len(set(losses)) == 2 * STEPS
    weights, expected_weights = run.weights(), expected_run.weights()
    assert weights is not None and expected_weights is not None
    assert all(np.array_equal(weights[name], value) for name, value in expected_weights.items())
    program = run.program("train")
    assert expected_run.program("train").recording is None and program.recording is not None
    assert program.recording.recorded > 0.9 * len(program.actions), "all but the inputs, and what stands between them"


def test_dropped_weights_of_fused_attention_are_those_of_each_step(both: Any) -> None:
    """One batch again and again at a rate of 0: what differs are the weights that are dropped."""
    losses: list[list[float | None]] = []
    for kernels in both:
        graph = taskflow.OperatorGraph("float64")
        x, wanted = (taskflow.input(graph, (2, 6, 2, 4), name=name) for name in ("x", "wanted"))
        q = taskflow.linear(x, 4, name="q")
        graph.minimize(taskflow.mse_loss(taskflow.flash_attention(q, q, q, dropout=0.5, name="attention"), wanted))
        run = Executor(graph, undivided(graph), SGD(1e-300), seed=3, kernels=kernels)
        losses.append([run.train(random_feeds(graph, 0)) for _ in range(6)])
    assert losses[0] == losses[1] and len(set(losses[0])) == 6


@pytest.mark.parametrize("blocks", [None, 2])
def test_each_replay_has_its_own_number_of_labels(blocks: int | None, both: Any) -> None:
    losses: list[list[float | None]] = []
    for kernels in both:
        graph = taskflow.OperatorGraph("float64")
        x, labels = taskflow.input(graph, (6, 4), name="x"), taskflow.input(graph, (6,), "int64", name="labels")
        scores = taskflow.linear(taskflow.relu(taskflow.linear(x, 5, name="a"), name="b"), 3, name="c")
        graph.minimize(taskflow.cross_entropy(scores, labels, blocks=blocks, name="loss"))
        run = Executor(graph, undivided(graph), SGD(0.1), seed=3, kernels=kernels)
        batch = random_feeds(graph, 0)
        losses.append([])
        for ignored in (0, 0, 2, 5, 6, 1):
            feeds = {**batch, "labels": np.where(np.arange(6) < ignored, -100, batch["labels"])}
            losses[-1].append(run.train(feeds))
    assert losses[0] == losses[1] and losses[0][4] == 0.0 and len(set(losses[0])) == 6
    made = run.program("train").recording
    assert made is not None and made.recorded == sum(b - a for a, b, wanted in segments(made._wanted) if wanted) > 4


def test_what_is_checked_is_checked_in_every_replay(both: Any) -> None:
    graph = build("RNNLM", preset="small", dtype="float64")
    run = Executor(graph, undivided(graph), SGD(0.1), seed=3, kernels=both[1])
    for step in range(4):
        run.train(random_feeds(graph, step))
    batch = random_feeds(graph, 4)
    next(iter(batch.values()))[0, 0] = 10**6
    with pytest.raises(ValueError, match="must be at least 0 and below"):
        run.train(batch)


def test_another_seed_is_recorded_anew(both: Any) -> None:
    losses = []
    for kernels in both:
        graph = build("AlexNet", preset="small", dtype="float64")
        run = Executor(graph, undivided(graph), SGD(0.05), seed=3, kernels=kernels)
        for step in range(6):
            run.state.seed = 3 if step < 3 else 4
            losses.append(run.train(random_feeds(graph, step)))
    assert losses[:6] == losses[6:]


@pytest.mark.skipif(not compiles(), reason="no C++20 compiler: the GPU's kernels cannot be run on the host")
@pytest.mark.parametrize("refused", [1, 2, 5])
def test_what_cannot_be_recorded_is_left_out(refused: int, capfd: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recording, "MOST_REFUSALS", 4)
    _, expected = trained("LeNet", host_kernels(), 1, SGD(0.05, momentum=0.9))
    kernels, left = host_kernels(records=True), set()

    def reading(self: Any, of: Any, name: str, count: int, *arguments: Any) -> None:
        if name in ("activate", "activate_backward", "max_pool_1", "cross_entropy", "sgd") and len(left | {name}) <= refused:
            left.add(name)
            float(of.reshape(-1)[0])  # waits for the device, as the first of these kernels may not
        plain(self, of, name, count, *arguments)

    plain = launching.Launching._each
    monkeypatch.setattr(launching.Launching, "_each", reading)
    run, losses = trained("LeNet", kernels, 1, SGD(0.05, momentum=0.9))
    assert losses.tobytes() == expected.tobytes()
    said = capfd.readouterr().err
    assert "float while a step is being recorded" in said and "TASKFLOW_GRAPHS=0" in said
    recorded = run.program("train").recording
    assert recorded is not None
    if "no step is recorded" in said:
        assert recorded.recorded == 0
    else:
        assert "it is left out" in said and 0 < recorded.recorded < len(run.program("train").actions)


class FakeStream:
    """Says what it was asked for; ``broken``: ending a capture fails, as after something that cannot be captured."""

    def __init__(self, said: list[str], broken: bool = False) -> None:
        self.said, self.broken = said, broken

    def begin_capture(self) -> None:
        self.said.append("begin")

    def end_capture(self) -> Any:
        self.said.append("end")
        if self.broken:
            raise RuntimeError("cudaErrorStreamCaptureInvalidated")
        return SimpleNamespace(launch=lambda stream: self.said.append("launch"))


def recorder(said: list[str], broken: bool = False) -> Any:
    """A `CudaRecorder` on a device that says what it is asked for."""

    @contextmanager
    def using(malloc: Any) -> Iterator[None]:
        said.append("pool")
        yield
        said.append("no pool")

    cuda = SimpleNamespace(MemoryPool=lambda: SimpleNamespace(malloc=None), using_allocator=using)
    module = SimpleNamespace(cuda=cuda, zeros=np.zeros)
    device = SimpleNamespace(xp=module, compute=FakeStream(said, broken), found=["before"], dials=None)
    device.upload = lambda host, out: np.copyto(out, host)
    return CudaRecorder(device), device


def test_a_capture_begins_and_ends_whatever_happens() -> None:
    said: list[str] = []
    record, device = recorder(said)

    def asks() -> None:
        said.append("asks")
        device.found.append("check")
        assert device.dials is not None
        where = device.dials.place(("sgd",), lambda lr, step, updates: [lr, step])
        assert where.shape == (2,) and device.dials.place(("sgd",), lambda lr, step, updates: [lr, step]).base is where.base

    replay = record.record([asks, asks])
    assert said == ["pool", "begin", "asks", "asks", "end", "no pool"] and device.dials is None
    assert device.found == ["before"], "what was noted while capturing is not yet to be asked"
    record.set(0.5, 7, 6)
    replay()
    assert said[-1] == "launch" and device.found == ["before", "check", "check"]
    assert record._dials._there[:2].tolist() == [0.5, 7.0]

    for broken in (False, True):
        said.clear()
        record, device = recorder(said, broken)
        with pytest.raises(NotRecorded, match="ZeroDivisionError: division by zero") as failed:
            record.record([lambda: device.found.append("check"), lambda: 1 / 0, asks])  # noqa: B023
        assert failed.value.number == 1 and device.found == ["before"] and device.dials is None
        assert said == ["pool", "begin", "end"] or said[:3] == ["pool", "begin", "end"]
    with pytest.raises(NotRecorded, match="CaptureInvalidated") as failed:
        record.record([lambda: None])
    assert failed.value.number is None and device.found == ["before"]


def test_what_is_timed_again_is_replayed(monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[str] = []
    record, device = recorder(said)
    timed = CupyDevice.__new__(CupyDevice)
    event = SimpleNamespace(record=lambda stream: said.append("event"), synchronize=lambda: None)
    cuda = SimpleNamespace(Event=lambda: event, get_elapsed_time=lambda begin, end: 2.0)
    timed.xp, timed.compute, timed._timing = SimpleNamespace(cuda=cuda), device.compute, (None, None)
    monkeypatch.setattr(CupyDevice, "recorder", lambda self: record)

    def action() -> None:
        said.append("asks")

    assert timed.timed(action) == 2e-3 and said == ["event", "asks", "event"]
    said.clear()
    timed.timed(action)
    assert said == ["pool", "begin", "asks", "end", "no pool", "event", "launch", "event"]
    said.clear()
    timed.timed(action)
    assert said == ["event", "launch", "event"]

    def waits() -> None:
        said.append("waits")
        if said[-2:-1] == ["begin"]:
            raise RuntimeError("cudaErrorStreamCaptureUnsupported")

    for expected in (
        ["event", "waits", "event"], ["pool", "begin", "waits", "end", "event", "waits", "event"], ["event", "waits", "event"],
    ):
        said.clear()
        timed.timed(waits)
        assert [one for one in said if one != "no pool"] == expected
    monkeypatch.setattr(CupyDevice, "recorder", lambda self: None)
    said.clear()
    timed.timed(action)
    timed.timed(action)
    assert said == ["event", "asks", "event"] * 2


def test_too_many_dials_are_refused() -> None:
    record, _ = recorder([])
    for number in range(MOST):
        record._dials.place(number, lambda lr, step, updates: [lr])
    with pytest.raises(RuntimeError, match="256 numbers that change"):
        record._dials.place("one more", lambda lr, step, updates: [lr])


def test_segments_cover_everything_in_order() -> None:
    for seed in range(200):
        random = Random(seed)
        wanted = [random.random() < 0.8 for _ in range(random.randrange(40))]
        found = segments(wanted)
        assert [n for first, last, _ in found for n in range(first, last)] == list(range(len(wanted)))
        for first, last, record in found:
            assert not record or (all(wanted[first:last]) and last - first >= LEAST)
        assert all(not (a[2] is False and b[2] is False) for a, b in zip(found, found[1:]))
        alone = [n for first, last, record in found if not record for n in range(first, last)]
        for n in alone:  # what is left although it could be recorded stands in a run that is too short
            if wanted[n]:
                first = max((i + 1 for i in range(n) if not wanted[i]), default=0)
                last = min((i for i in range(n, len(wanted)) if not wanted[i]), default=len(wanted))
                assert last - first < LEAST
