"""Examples of operators on 16-bit arrays, beside the same numbers in float32."""

from __future__ import annotations

from dataclasses import fields, replace
from typing import Any

import numpy as np
from operator_bench import draw

from taskflow.floats import is_float, is_narrow, sums_in
from taskflow.kernels import KernelSet
from taskflow.operators.operator import Call, Operator, Spec, StepState, Target
from taskflow.operators.sixteen_bit import task_action
from taskflow.regions import Rect

DOUBLE, SINGLE = np.dtype(np.float64), np.dtype(np.float32)
STATISTICS: dict[str, tuple[np.dtype[Any] | None, ...]] = {  # inputs that are statistics and sums, and stay in these types
    "running_statistics": (DOUBLE, SINGLE, SINGLE), "normalize": (None, DOUBLE, SINGLE, SINGLE),
    "cross_entropy_of_blocks": (DOUBLE,), "merge_attention": (None, SINGLE),
}


def eps(dtype: np.dtype[Any]) -> float:
    """The distance from 1 to the next number."""
    return 2.0**-7 if dtype.name == "bfloat16" else 2.0**-10


def of_type(operator: Operator, dtype: np.dtype[Any], narrow: np.dtype[Any]) -> Operator:
    """An operator that says a float type of its own, with another one; bounds as its builder rounds them."""
    said = {f.name: getattr(operator, f.name) for f in fields(operator)}  # type: ignore[arg-type]
    changed: dict[str, Any] = {bound: float(narrow.type(said[bound])) for bound in ("low", "high") if said.get(bound) is not None}
    if isinstance(said.get("dtype"), np.dtype) and is_float(said["dtype"]):
        changed["dtype"] = dtype
    if "values" in said and is_float(said["dtype"]):
        changed["values"] = said["values"].astype(dtype)
    return replace(operator, **changed) if changed else operator  # type: ignore[type-var]


class Run:
    """An operator's example number ``seed`` with the arrays of ``narrow``, in the type ``dtype``: that, or float32. Its arrays
    belong to the kernels' device; what it returns is on the host."""

    def __init__(self, kind: str, seed: int, narrow: np.dtype[Any], dtype: np.dtype[Any], kernels: KernelSet) -> None:
        case = draw(kind, seed)
        self.kernels = kernels
        self.kind, self.dtype, self.operator = kind, dtype, of_type(case.operator, dtype, narrow)
        stays = STATISTICS.get(kind, ())

        def typed(spec: Spec, i: int) -> Spec:
            kept = stays[i] if i < len(stays) else None
            return replace(spec, dtype=kept or (dtype if is_float(spec.dtype) else spec.dtype))

        def numbers(array: Any, dtype: np.dtype[Any]) -> Any:
            return array.astype(narrow).astype(dtype) if is_narrow(dtype) or dtype == SINGLE else array.astype(dtype)

        def given(array: Any, dtype: np.dtype[Any], rect: Rect) -> Any:
            return self._there(numbers(array, dtype)[rect.slices(Rect.of(array.shape))])

        self.specs = tuple(typed(spec, i) for i, spec in enumerate(case.specs))
        self.outputs = self.operator.output(self.specs)
        weight = next((s.dtype for s in self.outputs if s.differentiable), dtype)
        reads, writes = self.operator.reads(self.specs, case.space), self.operator.writes(self.specs, case.space)
        feeds = {name: numbers(a, dtype) if is_float(a.dtype) else a for name, a in case.state.feeds.items()}
        self.call = Call(
            "bench", self.specs, case.space, reads, writes, kernels, StepState(seed=seed, feeds=feeds),
            inputs=tuple(given(a, s.dtype, r) for a, s, r in zip(case.inputs, self.specs, reads.inputs)),
            weights=tuple(given(a, weight, r) for a, r in zip(case.weights, reads.weights)),
            outputs=tuple(kernels.xp.zeros(r.shape, s.dtype) for r, s in zip(writes, self.outputs)),
            saved=tuple(kernels.xp.zeros(s.shape, s.dtype) for s in self.operator.saves(self.specs, case.space)),
        )
        self._grads = tuple(
            given(g, s.dtype, r) if s.differentiable else None
            for g, s, r in zip(case.grads, self.outputs, writes)
        )

    def _there(self, array: Any) -> Any:
        out = self.kernels.xp.empty(array.shape, array.dtype)
        if array.size:
            self.kernels.device.upload(np.array(array, order="C"), out)
        return out

    def _back(self, arrays: Any) -> list[Any]:
        self.kernels.device.verify()
        return [self.kernels.device.to_host(array) for array in arrays]

    def forward(self) -> list[Any]:
        task_action(self.operator, self.call, False)()
        return self._back(self.call.outputs)

    def backward(self, accumulate: bool) -> list[Any]:
        """The gradients of inputs and weights, added to ones if they ``accumulate``."""
        call = self.call
        call.grad_outputs = self._grads
        call.grad_inputs = tuple(
            Target(self._there(np.ones(r.shape, s.dtype)), accumulate) if s.differentiable and not r.empty else None
            for r, s in zip(call.reads.inputs, self.specs)
        )
        call.grad_weights = tuple(
            None if r.empty else Target(self._there(np.ones(r.shape, sums_in(w.dtype))), accumulate)
            for r, w in zip(call.reads.weights, call.weights)
        )
        task_action(self.operator, call, True)()
        return self._back(t.array for t in (*call.grad_inputs, *call.grad_weights) if t is not None)
