"""What every registered operator must satisfy, over random examples and cuts. An operator needs nothing but its
``example`` to be held to all of it."""

from __future__ import annotations

from dataclasses import replace
from random import Random

import numpy as np
import pytest
from operator_bench import KINDS, NAME, SEEDS, Case, backward, draw, embedded, forward, poison, reassemble, values

from taskflow.operators.cost_key import cost_key
from taskflow.operators.operator import REGISTRY, Call, Spec, Target, iteration_space
from taskflow.regions import Rect, covers

pytestmark = pytest.mark.parametrize("kind", KINDS)
# What takes longest looks at more than half of the examples with the slow tests.
in_parts = pytest.mark.parametrize("seeds", [
    pytest.param(SEEDS[:20], id="first"), pytest.param(SEEDS[20:], marks=pytest.mark.slow, id="rest"),
])


def _cut(kind: str, seed: int) -> tuple[Case, list[Rect]]:
    case = draw(kind, seed)
    return case, case.pieces(Random(f"cut {kind} {seed}"))


def _close(actual: np.ndarray, expected: np.ndarray, where: str) -> None:
    np.testing.assert_allclose(actual, expected, rtol=1e-12, atol=1e-13, err_msg=where)


def test_writes_are_disjoint_or_identical_and_complete(kind: str) -> None:
    for seed in SEEDS:
        case, pieces = _cut(kind, seed)
        for number, spec in enumerate(case.outputs):
            rects = sorted({case.operator.writes(case.specs, piece)[number] for piece in pieces})
            assert covers(rects, spec.rect), f"example {seed}: {pieces} do not fill output {number}"
            assert all(spec.rect.contains(rect) for rect in rects), f"example {seed}: writes outside of output {number}"
            # Complete and of no more points than the output: no two overlap.
            assert sum(rect.volume for rect in rects) == spec.rect.volume, f"example {seed}: writes of {number} overlap"


@in_parts
def test_pieces_reassemble_to_the_whole(kind: str, seeds: range) -> None:
    cuts = 0
    for seed in seeds:
        case, pieces = _cut(kind, seed)
        cuts += len(pieces) > 1
        whole = forward(case)
        calls = [forward(case, piece) for piece in pieces]
        for number, expected in enumerate(whole.outputs):
            parts = [(call.writes[number], call.outputs[number]) for call in calls]
            where = f"example {seed} {case.operator} output {number}, {pieces}"
            _close(reassemble(expected.shape, parts), expected, where)
        totals = backward(case, whole)
        shares = [backward(case, call) for call in calls]
        for number, (array, total) in enumerate(zip((*case.inputs, *case.weights), totals)):
            if total is None:
                continue
            summed = np.zeros(array.shape)
            for call, share in zip(calls, shares):
                rect = (*call.reads.inputs, *call.reads.weights)[number]
                summed[rect.slices(Rect.of(array.shape))] += share[number]
            rect = (*whole.reads.inputs, *whole.reads.weights)[number]
            _close(summed, embedded(total, rect, array.shape), f"example {seed} {case.operator} gradient {number}, {pieces}")
    assert cuts >= len(seeds) // 3, f"only {cuts} examples of {kind} can be cut: draw larger ones"


def test_nothing_outside_of_reads_matters(kind: str) -> None:
    for seed in SEEDS:
        case, pieces = _cut(kind, seed)
        numbers = np.random.default_rng(seed)
        whole = forward(case)
        piece = Random(seed).choice(pieces)
        reads = case.operator.reads(case.specs, piece)

        changed = forward(replace(
            case,
            inputs=[_others_outside(a, rect, case.high, numbers, case.positive) for a, rect in zip(case.inputs, reads.inputs)],
            weights=[_others_outside(a, rect, 2, numbers) for a, rect in zip(case.weights, reads.weights)],
        ))
        everyone = [case.operator.writes(case.specs, p) for p in pieces]
        for number, rect in enumerate(case.operator.writes(case.specs, piece)):
            if sum(writes[number] == rect for writes in everyone) == 1:  # a partial value is not part of the whole's
                inside = rect.slices(case.outputs[number].rect)
                _close(changed.outputs[number][inside], whole.outputs[number][inside], f"example {seed}, {piece}")


def _others_outside(
    array: np.ndarray, rect: Rect, high: int, numbers: np.random.Generator, positive: bool = False
) -> np.ndarray:
    """The array with other values outside of a Rect."""
    other = values(Spec(array.shape, array.dtype), high, numbers, positive)
    inside = rect.slices(Rect.of(array.shape))
    other[inside] = array[inside]
    return other


@in_parts
def test_every_border_of_reads_matters(kind: str, seeds: range) -> None:
    """If some slab at the border of a Rect changed no output for any data, the Rect could be smaller."""
    for seed in seeds:
        _, pieces = _cut(kind, seed)
        piece = Random(seed).choice(pieces)
        case = draw(kind, seed)
        reads, results = case.operator.reads(case.specs, piece), _Results(kind, seed, piece)
        for group in ("inputs", "weights"):
            for number, rect in enumerate(getattr(reads, group)):
                if rect.empty or (getattr(case, group)[number].dtype.kind != "f" and case.high == 1):
                    continue
                for slab in _borders(rect):
                    assert any(_matters(*results[data], piece, group, number, slab) for data in range(200)), (
                        f"example {seed} {case.operator} {case.specs}: "
                        f"piece {piece} reads {rect} of {group}[{number}], but {slab} changes nothing"
                    )


def _borders(rect: Rect) -> list[Rect]:
    slabs = [Rect(rect.lo, (*rect.hi[:i], rect.lo[i] + 1, *rect.hi[i + 1 :])) for i in range(rect.ndim)]
    slabs += [Rect((*rect.lo[:i], rect.hi[i] - 1, *rect.lo[i + 1 :]), rect.hi) for i in range(rect.ndim)]
    return slabs or [rect]


class _Results(dict[int, tuple[Case, Call]]):
    """An example with other numbers in it, and what a piece of it gives, both found once for all slabs."""

    def __init__(self, kind: str, seed: int, piece: Rect) -> None:
        super().__init__()
        self.kind, self.seed, self.piece = kind, seed, piece

    def __missing__(self, data: int) -> tuple[Case, Call]:
        case = draw(self.kind, self.seed, data)
        self[data] = case, forward(case, self.piece)
        return self[data]


def _matters(case: Case, before: Call, piece: Rect, group: str, number: int, slab: Rect) -> bool:
    """True if the piece gives something else than ``before`` when the values in ``slab`` are others."""
    arrays = [array.copy() for array in getattr(case, group)]
    inside = slab.slices(Rect.of(arrays[number].shape))
    others = np.random.default_rng((case.state.step, 7))
    fresh = values(Spec(slab.shape, arrays[number].dtype), case.high, others, case.positive)
    arrays[number][inside] = 3 * fresh if arrays[number].dtype.kind == "f" else fresh
    after = forward(replace(case, **{group: arrays}), piece)
    return not all(np.array_equal(a, b) for a, b in zip(before.outputs, after.outputs))


def test_gradients_agree_with_finite_differences(kind: str) -> None:
    for seed in SEEDS:
        case = draw(kind, seed)
        call = forward(case)
        arrays = [*case.inputs, *case.weights]
        rects = (*call.reads.inputs, *call.reads.weights)
        numbers = np.random.default_rng((seed, 99))
        for number, part in enumerate(backward(case, call)):
            if part is None:
                continue
            gradient = embedded(part, rects[number], arrays[number].shape)
            if case.operator.stops_gradient:
                assert not gradient.any()
                continue
            for _ in range(2):
                direction = numbers.normal(size=gradient.shape)
                step, sides = 1e-5, []
                for sign in (1, -1):
                    moved = [a + sign * step * direction if i == number else a for i, a in enumerate(arrays)]
                    count = len(case.inputs)
                    outputs = forward(replace(case, inputs=moved[:count], weights=moved[count:])).outputs
                    sides.append(sum(np.vdot(g, y) for g, y in zip(case.grads, outputs)))
                slope = (sides[0] - sides[1]) / (2 * step)
                scale = np.abs(gradient * direction).sum() + 1e-3
                assert abs(slope - np.vdot(gradient, direction)) <= 1e-6 * scale, (
                    f"example {seed} {case.operator} {case.specs}: gradient {number}"
                )


def test_missing_output_gradients_are_zeros(kind: str) -> None:
    for seed in SEEDS:
        case = draw(kind, seed)
        count = len(case.grads)
        given = Random(seed).randrange(count)
        some = [g if i == given else None for i, g in enumerate(case.grads)]
        zeros = [g if i == given else np.zeros_like(g) for i, g in enumerate(case.grads)]
        expected = backward(case, forward(case), zeros)
        for number, gradient in enumerate(backward(case, forward(case), some)):
            if gradient is not None:
                _close(gradient, expected[number], f"example {seed}: gradient {number} with only output {given}")


def test_gradients_replace_or_add_and_may_be_unwanted(kind: str) -> None:
    for seed in SEEDS:
        case, pieces = _cut(kind, seed)
        call = forward(case, Random(seed).choice(pieces))
        gradients = backward(case, call)  # the targets start as NaN, so what is not replaced shows
        added = backward(case, call, base=lambda shape: np.arange(float(np.prod(shape))).reshape(shape))
        for number, gradient in enumerate(gradients):
            if gradient is None:
                continue
            assert not np.isnan(gradient).any(), f"example {seed} {case.operator}: gradient {number} is not filled"
            base = np.arange(float(gradient.size)).reshape(gradient.shape)
            _close(added[number], base + gradient, f"example {seed}: gradient {number} added")
            alone = backward(case, call, wanted=lambda i, number=number: i == number)
            _close(alone[number], gradient, f"example {seed}: gradient {number} alone")


def test_inputs_may_be_one_tensor(kind: str) -> None:
    """The gradient of the first replaces what is there, those of others are added."""
    for seed in SEEDS:
        case = draw(kind, seed)
        call = forward(case)
        expected = backward(case, call)
        rects = dict(enumerate(call.reads.inputs))
        alike = [i for i, spec in enumerate(case.specs) if spec.differentiable and (spec, rects[i]) == (case.specs[0], rects[0])]
        if len(alike) < 2:
            continue
        shared = poison(rects[0].shape, np.float64)
        call.grad_inputs = tuple(Target(shared, i > 0) if i in alike else None for i in range(len(case.specs)))
        call.grad_weights = (None,) * len(case.weights)
        case.operator.backward(call)
        wanted = sum(g for i in alike if (g := expected[i]) is not None)
        _close(shared, wanted, f"example {seed} {case.operator}: inputs {alike} are one tensor")


def test_forward_fills_its_outputs(kind: str) -> None:
    for seed in SEEDS:
        for data in (0, 1):  # in training and in evaluation
            case = draw(kind, seed, data)
            for piece in case.pieces(Random(seed)):
                for output in forward(case, piece).outputs:
                    unfilled = np.isnan(output) if output.dtype.kind == "f" else output == poison((), output.dtype)
                    assert not unfilled.any(), f"example {seed} {case.operator}: output of {piece} has holes"


def test_flops_of_pieces_add_up(kind: str) -> None:
    for seed in SEEDS:
        case, pieces = _cut(kind, seed)
        for flops in (case.operator.flops, case.operator.backward_flops):
            assert sum(flops(case.specs, piece) for piece in pieces) == flops(case.specs, case.space), f"example {seed}"
            assert all(flops(case.specs, piece) >= 0 for piece in pieces)


def test_equal_cost_keys_mean_equal_local_shapes(kind: str) -> None:
    seen: dict[object, object] = {}
    for seed in SEEDS:
        case, pieces = _cut(kind, seed)
        operator, specs = case.operator, case.specs
        for piece in pieces:
            reads = operator.reads(specs, piece)
            for back in (False, True):
                flops = (operator.backward_flops if back else operator.flops)(specs, piece)
                local = (
                    back, flops, operator.saves(specs, piece), [r.shape for r in operator.writes(specs, piece)],
                    [r.shape for r in reads.inputs], [r.shape for r in reads.weights],
                )
                key = cost_key(operator, specs, piece, back)
                assert seen.setdefault(key, local) == local, f"example {seed}, {piece}"


def test_keeps_is_honest(kind: str) -> None:
    """Backward must not look at what ``keeps`` lets go."""
    for seed in SEEDS:
        case, pieces = _cut(kind, seed)
        piece = Random(seed).choice(pieces)
        expected = backward(case, forward(case, piece))
        call = forward(case, piece)
        keeps = case.operator.keeps(case.specs)
        for group in ("inputs", "weights", "outputs"):
            if not getattr(keeps, group):
                setattr(call, group, tuple(poison(a.shape, a.dtype) for a in getattr(call, group)))
        if case.operator.linear:
            call.inputs = tuple(a if a.dtype.kind in "iu" else poison(a.shape, a.dtype) for a in call.inputs)
        for number, gradient in enumerate(backward(case, call)):
            if gradient is not None:
                _close(gradient, expected[number], f"example {seed} {case.operator}: gradient {number}")


@in_parts
@pytest.mark.parametrize("group", ["inputs", "weights", "outputs"])
def test_keeps_no_more_than_needed(kind: str, seeds: range, group: str) -> None:
    """If backward gave the same without the arrays whatever the data, keeping them would waste memory."""
    for seed in seeds:
        case = draw(kind, seed)
        if getattr(case.operator.keeps(case.specs), group) and any(a.size for a in getattr(forward(case), group)):
            needed = any(_needs(draw(kind, seed, data), group) for data in range(50))
            assert needed, f"example {seed} {case.operator} {case.specs}: keeps {group}, but backward does not use them"


def _needs(case: Case, group: str) -> bool:
    """True if backward goes wrong without the arrays of a group."""
    expected = backward(case, forward(case))
    call = forward(case)
    setattr(call, group, tuple(poison(a.shape, a.dtype) for a in getattr(call, group)))
    try:
        gradients = backward(case, call)
    except (IndexError, ValueError):
        return True
    return not all(g is None or np.array_equal(g, e) for g, e in zip(gradients, expected))


def test_wrong_inputs_are_refused_clearly(kind: str) -> None:
    """Whatever the inputs, ``output`` answers or raises a ValueError that names the operator."""
    refused = 0
    for seed in SEEDS:
        example = REGISTRY[kind].example(Random(f"{kind} {seed}"))
        operator, specs = example.operator, list(example.inputs)
        float64, int64 = Spec((2, 3), np.dtype(np.float64)), Spec((2, 3), np.dtype(np.int64))
        wrong = [[], [*specs, float64], [*specs, int64], [*specs, *specs]]
        for i, spec in enumerate(specs):
            flipped = np.dtype(np.int64 if spec.differentiable else np.float64)
            shapes = [(), (*spec.shape, 2), spec.shape[1:], *(
                (*spec.shape[:d], n + 1, *spec.shape[d + 1 :]) for d, n in enumerate(spec.shape)
            )]
            others = [Spec(spec.shape, flipped), *(Spec(shape, spec.dtype) for shape in shapes)]
            wrong += [[*specs[:i], other, *specs[i + 1 :]] for other in others]
        for inputs in wrong:
            try:
                outputs = operator.output(inputs)
            except ValueError as error:
                refused += 1
                assert kind in str(error) and len(str(error)) > len(kind) + 15, f"unclear: {error}"
            else:  # it fits after all: then it must be a proper operator
                assert all(spec.shape == Rect.of(spec.shape).shape for spec in outputs)
                space = iteration_space(operator, inputs)
                assert len(operator.reads(inputs, space).inputs) == len(inputs)
    assert refused >= len(SEEDS), f"{kind} takes nearly anything: {NAME}"
