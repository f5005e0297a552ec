"""Runs single operators and small graphs the way a runtime does, piece by piece, in one process. Every array that an
operator may only read is write-protected, and every array that it must fill starts as NaN."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from random import Random
from typing import Any

import numpy as np

from taskflow.graph import OperatorGraph
from taskflow.kernels import KernelSet, NumpyKernels, default_kernels
from taskflow.operators.loss import LabelLoss
from taskflow.operators.operator import REGISTRY, Call, Operator, Spec, StepState, Target, iteration_space
from taskflow.operators.tensor import Tensor
from taskflow.partition import Grid, even_cuts
from taskflow.regions import Rect
from taskflow.runtime.labels import LabelCounts


class StrictKernels(NumpyKernels):
    """The reference, which refuses arrays that lie in memory in another way than KernelSet allows."""

    def __getattribute__(self, name: str) -> Any:
        kernel = super().__getattribute__(name)
        if not callable(kernel) or name.startswith("_"):
            return kernel

        def checked(*args: Any, **options: Any) -> Any:
            arrays = [a for a in (*args, *options.values()) if isinstance(a, np.ndarray)]
            for number, array in enumerate(arrays):
                if (name == "matmul" and number < 2) or name == "multiplier":  # operands of a product may be transposed
                    fits = array.flags.c_contiguous or array.swapaxes(-1, -2).flags.c_contiguous
                elif name.startswith("lstm_cell"):
                    fits = all(row.flags.c_contiguous for row in array)
                else:
                    fits = array.flags.c_contiguous
                assert fits, f"{name}: array {number} of {array.shape} has strides {array.strides}"
            return kernel(*args, **options)

        return checked


NAME = "bench"
KINDS = sorted(REGISTRY)
SEEDS = range(40)  # examples of each operator
KERNELS: tuple[KernelSet, ...] = (StrictKernels(), default_kernels())


@dataclass
class Case:
    """An operator with whole inputs, weights and output gradients."""

    operator: Operator
    specs: tuple[Spec, ...]
    high: int
    inputs: list[np.ndarray]
    weights: list[np.ndarray]
    grads: list[np.ndarray]
    state: StepState
    kernels: KernelSet
    held: np.ndarray | None = None  # the value that a "state" has, which the runtime puts in place
    positive: bool = False  # inputs are above 0

    @property
    def space(self) -> Rect:
        return iteration_space(self.operator, self.specs)

    @property
    def outputs(self) -> tuple[Spec, ...]:
        return self.operator.output(self.specs)

    def pieces(self, random: Random) -> list[Rect]:
        """A random cut of the iteration space, even or not, that respects the dimensions that are not divisible."""
        cuts = []
        for dim in self.operator.dims(self.specs):
            degree = random.randint(1, min(dim.size, 4)) if dim.divisible and random.random() < 0.8 else 1
            if random.random() < 0.5:
                cuts.append(even_cuts(dim.size, degree))
            else:
                cuts.append((0, *sorted(random.sample(range(1, dim.size), degree - 1)), dim.size))
        return Grid(cuts).rects()


def draw(kind: str, seed: int, data: int = 0) -> Case:
    """Example number ``seed`` of an operator; ``data`` varies only the numbers in it."""
    example = REGISTRY[kind].example(Random(f"{kind} {seed}"))
    operator, specs = example.operator, example.inputs
    numbers = np.random.default_rng((seed, data))
    outputs = operator.output(specs)
    case = Case(
        operator, specs, example.high,
        [values(spec, example.high, numbers, example.positive) for spec in specs],
        [values(Spec(w.shape, outputs[0].dtype), 2, numbers) for w in operator.weights(specs)],
        [values(spec, 2, numbers) for spec in outputs],
        StepState(seed=seed, step=data, training=data % 2 == 0),
        KERNELS[seed % len(KERNELS)],
        positive=example.positive,
    )
    if isinstance(operator, LabelLoss) and operator.counts:
        case.state.labels = {NAME: int(np.count_nonzero(case.inputs[1] != operator.ignore_index))}
    if not specs:
        case.held = values(outputs[0], 2, numbers)
        case.state.feeds[NAME] = case.held
    return case


def values(spec: Spec, high: int, numbers: np.random.Generator, positive: bool = False) -> np.ndarray:
    """Random numbers; floats keep away from 0, where some operators have kinks, or from all below it."""
    if spec.dtype.kind == "f":
        size = numbers.uniform(0.25, 1.5, spec.shape)
        return np.asarray(size * numbers.choice((1.0,) if positive else (-1.0, 1.0), spec.shape), spec.dtype)
    return np.asarray(numbers.integers(0, high, spec.shape), spec.dtype)


def part(array: np.ndarray, rect: Rect) -> np.ndarray:
    """A write-protected contiguous copy of a Rect of a whole array."""
    copy = np.array(array[rect.slices(Rect.of(array.shape))], order="C")
    assert copy.shape == rect.shape, f"{rect} is not inside an array of {array.shape}"
    copy.flags.writeable = False
    return copy


def poison(shape: Iterable[int], dtype: Any) -> np.ndarray:
    """An array of NaN (of the lowest number, for integers)."""
    dtype = np.dtype(dtype)
    value = np.nan if dtype.kind == "f" else np.iinfo(dtype).min if dtype.kind in "iu" else 0
    return np.full(tuple(shape), value, dtype)


def forward(case: Case, piece: Rect | None = None) -> Call:
    """Run the forward task of a piece (of the whole, if none is given) on exactly the Rects that it reads."""
    operator, specs = case.operator, case.specs
    piece = case.space if piece is None else piece
    reads, writes = operator.reads(specs, piece), operator.writes(specs, piece)
    assert len(reads.inputs) == len(specs) and len(writes) == len(case.outputs)
    call = Call(
        NAME, specs, piece, reads, writes, case.kernels, case.state,
        inputs=tuple(map(part, case.inputs, reads.inputs)),
        weights=tuple(map(part, case.weights, reads.weights)),
        outputs=tuple(poison(rect.shape, spec.dtype) for rect, spec in zip(writes, case.outputs)),
        saved=tuple(poison(spec.shape, spec.dtype) for spec in operator.saves(specs, piece)),
    )
    if operator.kind == "state":
        call.outputs[0][...] = part(case.held, writes[0])
    operator.forward(call)
    for array in call.outputs:
        array.flags.writeable = False
    return call


def backward(
    case: Case,
    call: Call,
    grads: Sequence[np.ndarray | None] | None = None,
    base: Callable[[tuple[int, ...]], np.ndarray] | None = None,
    wanted: Callable[[int], bool] = lambda number: True,
) -> list[np.ndarray | None]:
    """Run the backward task after ``forward``; returns the gradient of every input, then of every weight, over the
    Rects that were read (None for integers and for those that are not ``wanted``).

    ``grads`` are of the whole outputs. Targets are replaced, or, if ``base`` makes their first values, added to.
    """
    whole = case.grads if grads is None else grads
    call.grad_outputs = tuple(None if g is None else part(g, rect) for g, rect in zip(whole, call.writes))
    targets: list[Target | None] = []
    for number, (rect, differentiable) in enumerate([
        *((r, s.differentiable) for r, s in zip(call.reads.inputs, case.specs)),
        *((r, True) for r in call.reads.weights),
    ]):
        if differentiable and wanted(number):
            array = poison(rect.shape, np.float64) if base is None else base(rect.shape)
            targets.append(Target(array, base is not None))
        else:
            targets.append(None)
    call.grad_inputs, call.grad_weights = tuple(targets[: len(case.specs)]), tuple(targets[len(case.specs) :])
    case.operator.backward(call)
    return [None if t is None else t.array for t in targets]


def reassemble(shape: tuple[int, ...], parts: Sequence[tuple[Rect, np.ndarray]]) -> np.ndarray:
    """The whole from pieces: the sum of those that share a Rect, each sum in its place."""
    sums: dict[Rect, np.ndarray] = {}
    for rect, array in parts:
        sums[rect] = sums[rect] + array if rect in sums else array
    whole = poison(shape, parts[0][1].dtype)
    for rect, array in sums.items():
        whole[rect.slices(Rect.of(shape))] = array
    return whole


def embedded(part: np.ndarray, rect: Rect, shape: tuple[int, ...]) -> np.ndarray:
    """A part in its place among zeros: what an operator does not read even as a whole has no influence."""
    whole = np.zeros(shape)
    whole[rect.slices(Rect.of(shape))] = part
    return whole


def evaluate(
    graph: OperatorGraph,
    feeds: dict[str, np.ndarray],
    parameters: dict[str, np.ndarray],
    seeds: dict[Tensor, np.ndarray],
) -> tuple[dict[Tensor, np.ndarray], dict[str, np.ndarray]]:
    """All tensors of a graph and, for output gradients ``seeds``, the gradients of feeds and parameters by name. States
    are zero."""
    kernels, state = KERNELS[-1], StepState(feeds=feeds, labels=LabelCounts(graph).count(feeds))
    tensors: dict[Tensor, np.ndarray] = {}
    calls: list[Call] = []
    for node in graph:
        reads, writes = node.reads(node.space), node.writes(node.space)
        call = Call(
            node.name, node.specs, node.space, reads, writes, kernels, state,
            inputs=tuple(part(tensors[t], rect) for t, rect in zip(node.inputs, reads.inputs)),
            weights=tuple(part(parameters[p.name], rect) for p, rect in zip(node.parameters, reads.weights)),
            outputs=tuple(np.zeros(t.shape, t.dtype) for t in node.outputs),
            saved=tuple(poison(s.shape, s.dtype) for s in node.operator.saves(node.specs, node.space)),
        )
        node.operator.forward(call)
        tensors.update(zip(node.outputs, call.outputs))
        calls.append(call)
    gradients: dict[Any, np.ndarray] = {tensor: np.array(seed) for tensor, seed in seeds.items()}
    for node, call in zip(reversed(graph.nodes), reversed(calls)):
        call.grad_outputs = tuple(gradients.get(t) for t in node.outputs)
        if all(g is None for g in call.grad_outputs):
            continue
        keys = [*node.inputs, *(p.name for p in node.parameters)]
        rects = (*call.reads.inputs, *call.reads.weights)
        targets = [
            Target(poison(a.shape, a.dtype), False) if a.dtype.kind == "f" else None
            for a in (*call.inputs, *call.weights)
        ]
        call.grad_inputs, call.grad_weights = tuple(targets[: len(node.inputs)]), tuple(targets[len(node.inputs) :])
        node.operator.backward(call)
        for key, rect, target in zip(keys, rects, targets):
            if target is not None:
                shape = parameters[key].shape if isinstance(key, str) else key.shape
                gradients[key] = gradients.get(key, 0) + embedded(target.array, rect, shape)
    return tensors, {key if isinstance(key, str) else key.name: value for key, value in gradients.items()}
