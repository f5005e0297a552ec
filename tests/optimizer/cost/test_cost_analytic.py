"""Analytic costs: what must hold on any device, whatever the constants are."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from random import Random
from typing import ClassVar, get_args

import numpy as np
import pytest
from language_model import model, random_strategy

from taskflow.machine import Cluster, load_machine, ring, transfer_seconds
from taskflow.machine.machine_file import Kernels
from taskflow.operators.frozen import frozen, trained
from taskflow.operators.linear import Linear
from taskflow.operators.lstm import LSTM
from taskflow.operators.matmul import MatMul
from taskflow.operators.merge_attention import MergeAttention
from taskflow.operators.operator import REGISTRY, Operator, Soap, Spec, Work, iteration_space
from taskflow.operators.softmax import Softmax
from taskflow.optimizer.cost.accumulated_gradients import added_bytes
from taskflow.optimizer.cost.analytic import AnalyticCosts, fill
from taskflow.optimizer.cost.model import CostModel
from taskflow.optimizer.cost.phases import arrays, phases
from taskflow.partition import Tile
from taskflow.regions import Rect
from taskflow.rules import SGD, Adam
from taskflow.tasks.lower.lower import lower
from taskflow.tasks.task import Compute, Kind

F32 = np.dtype(np.float32)
MACHINES = ("k80", "p100", "a100", "h100", "h200", "host")


def linear(rows: int, features: int, channels: int) -> tuple[Operator, tuple[Spec, ...]]:
    return Linear(channels), (Spec((rows, features), F32),)


def lstm(samples: int, steps: int, hidden: int) -> tuple[Operator, tuple[Spec, ...]]:
    state = Spec((samples, hidden), F32)
    return LSTM(hidden), (Spec((samples, steps, hidden), F32), state, state)


def cost(model: AnalyticCosts, of: tuple[Operator, tuple[Spec, ...]], backward: bool, piece: Rect | None = None) -> float:
    operator, specs = of
    return model.compute_seconds(operator, specs, piece or iteration_space(operator, specs), backward)


@pytest.mark.parametrize("name", MACHINES)
@pytest.mark.parametrize("backward", [False, True])
def test_more_work_takes_longer(name: str, backward: bool) -> None:
    model = AnalyticCosts(load_machine(name))
    assert model.name.partition(" (")[0] == f"analytic {model.machine.name}"
    k = 16 if model.machine.processors[0].device.program else 1  # small kernels take what starting them takes
    for a, b in (
        (linear(64 * k, 512 * k, 512 * k), linear(128 * k, 512 * k, 512 * k)),
        (linear(64 * k, 512 * k, 512 * k), linear(64 * k, 1024 * k, 512 * k)),
        (linear(64 * k, 512 * k, 512 * k), linear(64 * k, 512 * k, 1024 * k)), (lstm(8, 5, 256), lstm(16, 5, 256)),
        (lstm(8, 5, 256), lstm(8, 10, 256)), (lstm(8, 5, 256), lstm(8, 5, 512)),
    ):  # fmt: skip
        assert cost(model, a, backward) < cost(model, b, backward)
    for kind in ("relu", "add", "dropout"):
        operator = REGISTRY[kind].example(Random(0)).operator
        inputs = 2 if kind == "add" else 1
        small, large = (
            cost(model, (operator, (Spec((n * k, 1000 * k), F32),) * inputs), backward) for n in (1000, 2000)
        )
        if kind == "add" and backward and k > 1:
            assert small == large == 0  # the gradient is passed on
            continue
        assert small < large < 2 * small


@pytest.mark.parametrize("name", MACHINES)
def test_pieces_are_less_efficient_than_the_whole_but_not_slower(name: str) -> None:
    model = AnalyticCosts(load_machine(name))
    k = 16 if model.machine.processors[0].device.program else 1
    operator, specs = linear(256 * k, 1024 * k, 1024 * k)
    whole = cost(model, (operator, specs), False)
    for degrees in ((4, 1, 1), (1, 4, 1), (1, 1, 4)):
        piece = Rect((0, 0, 0), (256 * k // degrees[0], 1024 * k // degrees[1], 1024 * k // degrees[2]))
        part = cost(model, (operator, specs), False, piece)
        assert part < whole <= 4 * part * (1 + 1e-9)


def total(model: AnalyticCosts, of: tuple[Operator, tuple[Spec, ...]], degrees: tuple[int, int, int]) -> float:
    """Forward and backward of all pieces of a linear operator."""
    operator, specs = of
    sizes = iteration_space(operator, specs).shape
    piece = Rect.of([s // d for s, d in zip(sizes, degrees)])
    return np.prod(degrees) * sum(cost(model, of, backward, piece) for backward in (False, True))


@pytest.mark.parametrize("name", ["k80", "p100", "h100"])
def test_batch_split_and_channel_split(name: str) -> None:
    """Paper, section 8.2.1: cutting a product by channel can cost less compute than cutting the batch. It does where
    weights outweigh activations: each piece of the batch reads all weights; each piece of the channels, all inputs."""
    model = AnalyticCosts(load_machine(name))
    softmax = linear(64, 1024, 32000)
    assert total(model, softmax, (1, 64, 1)) < 0.62 * total(model, softmax, (64, 1, 1))
    tall = linear(64 * 4096, 1024, 64)
    assert total(model, tall, (64, 1, 1)) < total(model, tall, (1, 64, 1))


def test_a_half_of_the_device_gives_a_half_of_the_rate() -> None:
    device = load_machine("p100").kinds[0]
    assert fill(device.multiprocessors * 64 * 64 // 2, device) == pytest.approx(0.5)
    assert fill(10**9, device) > 0.99
    assert fill(64, device) < 0.001


def changed(machine: Cluster, **changes: object) -> AnalyticCosts:
    device = replace(machine.kinds[0], **changes)  # type: ignore[arg-type]
    return AnalyticCosts(replace(machine, kinds=(device,)))


def test_every_constant_of_a_device_counts() -> None:
    machine = load_machine("p100", 2)
    product, passes, steps = linear(4096, 4096, 4096), REGISTRY["relu"], lstm(16, 10, 1024)
    wide = (passes(), (Spec((4096, 4096), F32),))  # type: ignore[call-arg]
    base = AnalyticCosts(machine)
    device = machine.kinds[0]
    rates = tuple((name, rate / 2) for name, rate in device.flops_per_second)
    slow = changed(machine, flops_per_second=rates)
    assert cost(slow, product, False) == pytest.approx(2 * cost(base, product, False), rel=1e-3)
    assert cost(slow, wide, False) == cost(base, wide, False)
    narrow = changed(machine, memory_bytes_per_second=device.memory_bytes_per_second / 2)
    assert cost(narrow, wide, False) == pytest.approx(2 * cost(base, wide, False), rel=0.02)
    assert cost(narrow, product, False) == cost(base, product, False)
    late = changed(machine, launch_seconds=device.launch_seconds + 1)
    assert cost(late, wide, False) == pytest.approx(cost(base, wide, False) + 1)
    assert cost(late, steps, False) == pytest.approx(cost(base, steps, False) + 21)  # two kernels a step, one for all
    better = changed(machine, efficiency=(("contraction", 1.0),))
    assert cost(better, product, False) == pytest.approx(0.75 * cost(base, product, False), rel=1e-3)
    assert cost(changed(machine, multiprocessors=560), product, False) > cost(base, product, False)
    few = device.memory_bytes_per_second / 8  # so that a step waits for its weights
    with_cache, without = (changed(machine, memory_bytes_per_second=few, cache_bytes=n) for n in (device.cache_bytes, 0))
    saved = 9 * device.cache_bytes / (0.8 * few)  # all steps but the first find so much of the weights in the cache
    assert cost(without, steps, False) - cost(with_cache, steps, False) == pytest.approx(saved)


def test_types_have_their_rates() -> None:
    model = AnalyticCosts(load_machine("p100"))
    seconds = {
        dtype: cost(model, (Linear(4096), (Spec((4096, 4096), np.dtype(dtype)),)), False)
        for dtype in ("float16", "float32", "float64")
    }
    assert seconds["float32"] == pytest.approx(2 * seconds["float16"], rel=1e-2)
    assert seconds["float64"] == pytest.approx(2 * seconds["float32"], rel=1e-2)
    k80 = AnalyticCosts(load_machine("k80"))  # has no rate of its own for float16
    half, single = (cost(k80, (Linear(4096), (Spec((4096, 4096), np.dtype(t)),)), False) for t in ("float16", "float32"))
    assert half == pytest.approx(single, rel=1e-2)


def unmeasured(machine: Cluster) -> AnalyticCosts:
    """Costs of a device of which no products were measured, so that all types reach the same part of their peak."""
    return changed(machine, matrix_products=())


def test_products_of_float32_may_run_on_tensor_cores() -> None:
    """Only products do, and only of float32; arrays keep their size, so that what waits for memory takes as long as ever."""
    plain, tf32, bf16 = (unmeasured(load_machine(f"a100{way}")) for way in ("", ":tf32", ":bf16"))
    product, step, relu = linear(8192, 8192, 8192), lstm(8192, 1, 2048), (REGISTRY["relu"](), (Spec((64, 4096), F32),))  # type: ignore[call-arg]
    for backward in (False, True):
        slow, middle, fast = (cost(costs, product, backward) for costs in (plain, tf32, bf16))
        assert slow == pytest.approx(8 * middle, rel=0.01) and slow == pytest.approx(16 * fast, rel=0.02)
        assert cost(plain, step, backward) > cost(tf32, step, backward) > cost(bf16, step, backward)
        assert cost(plain, relu, backward) == cost(bf16, relu, backward)
        double = (product[0], (Spec((8192, 8192), np.dtype("float64")),))
        assert cost(plain, double, backward) == cost(bf16, double, backward)
    operator, specs = product
    least = [c.least_seconds(operator, specs, False, (), c.machine.processors[0].device) for c in (plain, bf16)]
    assert least[0] == pytest.approx(16 * least[1], rel=0.05)


def test_unwanted_gradients_are_not_paid_for() -> None:
    model = AnalyticCosts(load_machine("k80"))
    for operator, specs in (linear(512, 1024, 1024), lstm(64, 10, 512)):
        piece = iteration_space(operator, specs)
        all_of = model.compute_seconds(operator, specs, piece, True)
        first = (False, *(True for _ in specs[1:]))
        without = model.compute_seconds(operator, specs, piece, True, gradients=first)
        assert 0.4 * all_of < without < 0.9 * all_of
    with pytest.raises(ValueError, match="for each of 1 inputs, got"):
        model.compute_seconds(*linear(2, 2, 2), Rect.of((2, 2, 2)), True, gradients=(True, True))


@pytest.mark.parametrize("of", [linear(24, 40, 56), lstm(6, 4, 8), lstm(6, 1, 8)])
def test_phases_keep_the_flops(of: tuple[Operator, tuple[Spec, ...]]) -> None:
    operator, specs = of
    space = iteration_space(operator, specs)
    for backward in (False, True):
        done = phases(operator, specs, space, backward, (True,) * len(specs))
        flops = operator.backward_flops(specs, space) if backward else operator.flops(specs, space)
        assert sum(p.flops * p.repeats for p in done) == pytest.approx(flops)
    touched = arrays(operator, specs, space)
    assert sum(touched.weights) == 4 * sum(np.prod(w.shape) for w in operator.weights(specs))
    assert touched.outputs == tuple(s.nbytes for s in operator.output(specs))


def products_with_weights() -> list[str]:
    """Kinds of operators that are products and have weights."""
    examples = {kind: of.example(Random(0)) for kind, of in sorted(REGISTRY.items()) if of.work is not Work.MEMORY}
    return [kind for kind, one in examples.items() if one.operator.weights(one.inputs)]


@pytest.mark.parametrize("kind", products_with_weights())
def test_phases_of_a_frozen_operator_are_those_of_the_trained_one_without_products_for_weights(kind: str) -> None:
    """And its ``backward_flops``, which lowering gives to its tasks, are theirs."""
    for seed in range(8):
        example = REGISTRY[kind].example(Random(seed))
        operator, specs = example.operator, example.inputs
        space, still, wanted = iteration_space(operator, specs), frozen(operator), (True,) * len(specs)
        ahead, back = (phases(operator, specs, space, backward, wanted) for backward in (False, True))
        assert phases(still, specs, space, False, wanted) == ahead
        left = phases(still, specs, space, True, wanted)
        assert len(left) == len(back) - 1 and not Counter(left) - Counter(back)
        assert sum(p.flops * p.repeats for p in left) == pytest.approx(still.backward_flops(specs, space))
        assert trained(still) == operator and trained(operator) is operator


def test_long_contractions_fill_a_device() -> None:
    """A small result of a long contraction, such as the gradient of a convolution's weights; and time still grows with
    the contraction everywhere."""
    model = AnalyticCosts(load_machine("h100"))
    seconds = [cost(model, linear(64, features, 64), False) for features in range(1000, 20000, 500)]
    assert seconds == sorted(seconds)
    long, short = seconds[-1] / 19500, seconds[0] / 1000
    assert long < short / 2


def test_matmul_has_a_product_for_each_factor() -> None:
    operator, specs = MatMul(), (Spec((2, 8, 16), F32), Spec((2, 16, 32), F32))
    space = iteration_space(operator, specs)
    assert len(phases(operator, specs, space, True, (True, True))) == 2
    assert len(phases(operator, specs, space, True, (False, True))) == 1


def test_machine_files_name_the_classes_of_operators() -> None:
    assert {work.value for work in Work} == set(get_args(Kernels))


@pytest.mark.parametrize("kind", sorted(REGISTRY))
def test_every_operator_has_a_cost(kind: str) -> None:
    model: CostModel = AnalyticCosts(load_machine("p100"))
    for seed in range(5):
        example = REGISTRY[kind].example(Random(seed))
        operator, specs = example.operator, example.inputs
        for backward in (False, True):
            seconds = model.compute_seconds(operator, specs, iteration_space(operator, specs), backward)
            assert 0 < seconds < 1
        contracted = any(dim.soap is Soap.REDUCTION for dim in operator.dims(specs))
        factors = len(operator.weights(specs)) > 0 or sum(s.differentiable for s in specs) > 1
        if contracted and factors and operator.flops(specs, iteration_space(operator, specs)):
            assert operator.work is not Work.MEMORY, f"{kind} is a product: say so in {type(operator).__name__}.work"


@pytest.mark.parametrize("seed", range(5))
def test_tasks_cost_what_their_pieces_do(seed: int) -> None:
    random, graph = Random(seed), model()
    machine = load_machine("k80", 8)
    costs = AnalyticCosts(machine)
    tasks = lower(graph, random_strategy(graph, 8, random), random.choice((SGD(0.1), Adam())), clip_norm=1.0)
    kinds = set()
    for task in tasks:
        seconds = costs.seconds(task)
        kinds.add(task.kind)
        if task.kind is Kind.COPY:
            assert seconds == transfer_seconds(machine.route(task.source, task.processor), task.nbytes)
            assert seconds > 0
        elif task.kind is Kind.COLLECTIVE:
            assert seconds == ring(machine, task.processors).seconds(task.nbytes, task.work.halves) > 0
        elif isinstance(task.work, Compute):
            work = task.work
            gradients = tuple(t is not None for t in work.grad_inputs) if work.backward else None
            added = added_bytes(work) if work.backward else 0
            assert seconds == AnalyticCosts(machine).compute_seconds(
                work.node.operator, work.node.specs, work.piece, work.backward, gradients=gradients, added_bytes=added
            )
        else:
            assert seconds == costs.memory_seconds(task.kind, task.nbytes, task.flops)
            assert seconds > machine.processors[0].overhead_seconds
    assert kinds >= {Kind.FORWARD, Kind.BACKWARD, Kind.COPY, Kind.SUM, Kind.UPDATE, Kind.NORM, Kind.CLIP}


def test_devices_of_two_kinds() -> None:
    k80, p100 = load_machine("k80").kinds[0], load_machine("p100").kinds[0]
    model = AnalyticCosts(load_machine("k80"))
    of = linear(512, 512, 512)
    space = iteration_space(*of)
    slow, fast = (model.compute_seconds(*of, space, False, device=device) for device in (k80, p100))
    assert slow > 1.5 * fast
    assert slow == model.compute_seconds(*of, space, False)


@dataclass(frozen=True, slots=True)
class Shelf(Linear):
    """A user's operator of one pass over memory that looks at ``some`` elements of its weight."""

    kind: ClassVar[str] = "shelf"
    work: ClassVar[Work] = Work.MEMORY

    some: int | None = None

    def picks(self, inputs: Sequence[Spec], piece: Rect) -> Mapping[int, int]:
        return {} if self.some is None else {0: self.some}


def test_what_the_data_choose_counts_as_much_as_is_looked_at() -> None:
    """Of a weight of 100 x 50: forward reads 30 elements; backward sets the gradient to zero and writes 30, or adds to 30 of one
    that is there."""
    specs = (Spec((4, 50), F32),)
    piece = iteration_space(Shelf(100), specs)

    def nbytes(some: int | None, backward: bool, adds: tuple[bool, ...] = ()) -> float:
        (phase,) = phases(Shelf(100, False, some), specs, piece, backward, (True,), adds)
        return phase.nbytes

    whole = 4 * 100 * 50
    assert nbytes(None, False) - nbytes(30, False) == whole - 4 * 30
    assert nbytes(30, True) - nbytes(None, True) == 4 * 30 - (whole - 4 * 30)  # backward reads the weight too: what it looks at
    assert nbytes(None, True, (False, True)) - nbytes(30, True, (False, True)) == 2 * (whole - 4 * 30) + (whole - 4 * 30)
    device = AnalyticCosts(load_machine("k80"))
    assert device.least_seconds(Shelf(100, False, 30), specs, False, (), device.machine.processors[0].device) == 0
    assert device.least_seconds(Shelf(100, False), specs, False, (), device.machine.processors[0].device) > 0


def _causal(kind: str) -> tuple[Operator, tuple[Spec, ...]]:
    """Operators of which early rows read less than late ones."""
    if kind == "softmax":
        return Softmax(3, True), (Spec((2, 4, 2048, 2048), F32),)
    return MergeAttention(2048, True), (Spec((2, 2048, 4, 8, 64), F32), Spec((2, 2048, 4, 8), F32))


@pytest.mark.parametrize("kind", ["softmax", "merge_attention"])
@pytest.mark.parametrize("backward", [False, True])
def test_pieces_of_what_reads_more_and_more_take_no_less_than_the_bound(kind: str, backward: bool) -> None:
    costs = AnalyticCosts(load_machine("h100"))
    operator, specs = _causal(kind)
    device, wanted = costs.machine.processors[0].device, (True,) * len(specs)
    least = costs.least_seconds(operator, specs, backward, wanted if backward else (), device)
    rows = 1 if kind == "merge_attention" else 2
    for pieces in (2, 4, 16):
        sizes = [dim.size for dim in operator.dims(specs)]
        cut = Tile(sizes, [pieces if i == rows else 1 for i in range(len(sizes))])
        gradients = wanted if backward else None
        assert least <= sum(
            costs.compute_seconds(operator, specs, rect, backward, device=device, gradients=gradients) for rect in cut.rects()
        )
