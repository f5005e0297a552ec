"""Every operator on 16-bit arrays: what float32 gives for the same numbers, rounded once."""

from __future__ import annotations

from dataclasses import fields, replace
from typing import Any

import numpy as np
import pytest
from operator_bench import KINDS, draw

from taskflow.floats import float_type, is_float, is_narrow, sums_in
from taskflow.kernels import default_kernels
from taskflow.operators.operator import Call, Operator, Spec, StepState, Target
from taskflow.operators.sixteen_bit import add_up, task_action
from taskflow.regions import Rect

pytest.importorskip("ml_dtypes")
DOUBLE, SINGLE = np.dtype(np.float64), np.dtype(np.float32)
TYPES = [float_type("bfloat16"), float_type("float16")]
STATISTICS: dict[str, tuple[np.dtype[Any] | None, ...]] = {  # inputs that are statistics and sums, and stay in these types
    "running_statistics": (DOUBLE, SINGLE, SINGLE), "normalize": (None, DOUBLE, SINGLE, SINGLE),
    "cross_entropy_of_blocks": (DOUBLE,), "merge_attention": (None, SINGLE),
}
SEEDS = range(6)


def eps(dtype: np.dtype[Any]) -> float:
    """The distance from 1 to the next number."""
    return 2.0**-7 if dtype.name == "bfloat16" else 2.0**-10


def of_type(operator: Operator, dtype: np.dtype[Any], narrow: np.dtype[Any]) -> Operator:
    """An operator that says a float type of its own, with another one; bounds as its builder rounds them."""
    said = {f.name: getattr(operator, f.name) for f in fields(operator)}  # type: ignore[arg-type]
    changed: dict[str, Any] = {bound: float(narrow.type(said[bound])) for bound in ("low", "high") if bound in said}
    if isinstance(said.get("dtype"), np.dtype) and is_float(said["dtype"]):
        changed["dtype"] = dtype
    if "values" in said and is_float(said["dtype"]):
        changed["values"] = said["values"].astype(dtype)
    return replace(operator, **changed) if changed else operator  # type: ignore[type-var]


class Run:
    """An operator's example number ``seed`` with the arrays of ``narrow``, in the type ``dtype``: that, or float32."""

    def __init__(self, kind: str, seed: int, narrow: np.dtype[Any], dtype: np.dtype[Any]) -> None:
        case = draw(kind, seed)
        self.kind, self.dtype, self.operator = kind, dtype, of_type(case.operator, dtype, narrow)
        stays = STATISTICS.get(kind, ())

        def typed(spec: Spec, i: int) -> Spec:
            kept = stays[i] if i < len(stays) else None
            return replace(spec, dtype=kept or (dtype if is_float(spec.dtype) else spec.dtype))

        def given(array: Any, dtype: np.dtype[Any], rect: Rect) -> Any:
            numbers = array.astype(narrow).astype(dtype) if is_narrow(dtype) or dtype == SINGLE else array.astype(dtype)
            return np.array(numbers[rect.slices(Rect.of(array.shape))], order="C")

        self.specs = tuple(typed(spec, i) for i, spec in enumerate(case.specs))
        self.outputs = self.operator.output(self.specs)
        weight = next((s.dtype for s in self.outputs if s.differentiable), dtype)
        reads, writes = self.operator.reads(self.specs, case.space), self.operator.writes(self.specs, case.space)
        feeds = {name: given(a, dtype, Rect.of(a.shape)) if is_float(a.dtype) else a for name, a in case.state.feeds.items()}
        self.call = Call(
            "bench", self.specs, case.space, reads, writes, default_kernels(), StepState(seed=seed, feeds=feeds),
            inputs=tuple(given(a, s.dtype, r) for a, s, r in zip(case.inputs, self.specs, reads.inputs)),
            weights=tuple(given(a, weight, r) for a, r in zip(case.weights, reads.weights)),
            outputs=tuple(np.zeros(r.shape, s.dtype) for r, s in zip(writes, self.outputs)),
            saved=tuple(np.zeros(s.shape, s.dtype) for s in self.operator.saves(self.specs, case.space)),
        )
        self._grads = tuple(
            given(g, s.dtype, r) if s.differentiable else None
            for g, s, r in zip(case.grads, self.outputs, writes)
        )

    def forward(self) -> tuple[Any, ...]:
        task_action(self.operator, self.call, False)()
        return self.call.outputs

    def backward(self, accumulate: bool) -> list[Any]:
        """The gradients of inputs and weights, added to ones if they ``accumulate``."""
        call = self.call
        call.grad_outputs = self._grads
        call.grad_inputs = tuple(
            Target(np.ones(r.shape, s.dtype), accumulate) if s.differentiable and not r.empty else None
            for r, s in zip(call.reads.inputs, self.specs)
        )
        call.grad_weights = tuple(
            None if r.empty else Target(np.ones(r.shape, sums_in(w.dtype)), accumulate)
            for r, w in zip(call.reads.weights, call.weights)
        )
        task_action(self.operator, call, True)()
        return [t.array for t in (*call.grad_inputs, *call.grad_weights) if t is not None]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("dtype", TYPES, ids=str)
def test_an_operator_rounds_what_float32_gives(kind: str, dtype: np.dtype[Any]) -> None:
    for seed in SEEDS:
        narrow, wide = Run(kind, seed, dtype, dtype), Run(kind, seed, dtype, SINGLE)
        for found, exact in zip(narrow.forward(), wide.forward()):
            np.testing.assert_array_equal(found, exact.astype(found.dtype), err_msg=f"{kind} {seed}")
        if kind == "state" or not any(s.differentiable for s in narrow.outputs):
            continue
        accumulate = seed % 2 == 1
        # What backward reads again is 16-bit, where it is no statistic: one more rounding of each number that it multiplies.
        saved = any(is_narrow(a.dtype) for a in (*narrow.call.saved, *narrow.call.outputs))
        for found, exact in zip(narrow.backward(accumulate), wide.backward(accumulate)):
            if not saved:
                np.testing.assert_array_equal(found, exact.astype(found.dtype), err_msg=f"{kind} {seed}")
            most = float(np.abs(exact).max(initial=1.0))
            np.testing.assert_allclose(
                found.astype(np.float32), exact, rtol=4 * eps(dtype), atol=4 * eps(dtype) * most, err_msg=f"{kind} {seed}"
            )


@pytest.mark.parametrize("dtype", TYPES, ids=str)
def test_gradients_of_weights_are_in_float32(dtype: np.dtype[Any]) -> None:
    for seed in range(4):
        run = Run("linear", seed, dtype, dtype)
        _, weight, *_ = run.backward(False)
        assert weight.dtype == np.float32
    assert (weight != weight.astype(dtype)).any(), "they hold what 16 bits do not"


@pytest.mark.parametrize("dtype", TYPES, ids=str)
def test_a_sum_of_many_is_rounded_once(dtype: np.dtype[Any]) -> None:
    one, small = np.ones(1, dtype), np.full(1, eps(dtype) / 4, dtype)
    total = one.copy()
    add_up(total, [small] * 8)
    assert float(total[0]) == 1 + 2 * eps(dtype)
    for _ in range(8):
        one += small
    assert float(one[0]) == 1.0, "one by one they are lost"


def test_two_gradients_of_one_tensor_are_one_array() -> None:
    """The first replaces it, the second adds."""
    dtype = TYPES[0]
    run = Run("add", 0, dtype, dtype)
    run.specs = (Spec((2, 3), dtype),) * 2
    x, g = np.ones((2, 3), dtype), np.full((2, 3), 1.5, dtype)
    space = run.operator.output(run.specs)[0].rect
    both = np.zeros((2, 3), dtype)
    call = Call(
        "bench", run.specs, space, run.operator.reads(run.specs, space), run.operator.writes(run.specs, space), default_kernels(),
        StepState(), (x, x), (), (np.zeros((2, 3), dtype),), (), (g,), (Target(both, False), Target(both, True)),
    )
    task_action(run.operator, call, True)()
    np.testing.assert_array_equal(both, np.full((2, 3), 3.0, dtype))
