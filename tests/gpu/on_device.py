"""Runs pieces of operators on two kernel sets and compares all that comes out: for tests, and for benchmarks/gpu_smoke.py."""

from __future__ import annotations

from random import Random
from typing import Any

import numpy as np
from operator_bench import Case, draw, forward, poison

from taskflow.kernels import NumpyKernels
from taskflow.operators.operator import Call, Target

REFERENCE = NumpyKernels()


def to_device(kernels: Any, array: np.ndarray | None) -> Any:
    if array is None:
        return None
    out = kernels.xp.empty(array.shape, array.dtype)
    if array.size:
        kernels.device.upload(np.ascontiguousarray(array), out)
    return out


def run(case: Case, call: Call, accumulate: bool) -> dict[str, np.ndarray]:
    """Forward and backward of a call whose arrays belong to its kernels' device: all that comes out, on the host."""
    kernels, operator = call.kernels, case.operator
    found: dict[str, np.ndarray] = {}
    call.outputs = tuple(to_device(kernels, poison(r.shape, s.dtype)) for r, s in zip(call.writes, case.outputs))
    call.saved = tuple(to_device(kernels, np.zeros(s.shape, s.dtype)) for s in operator.saves(case.specs, call.piece))
    if operator.kind == "state":
        call.outputs = (to_device(kernels, case.held[call.writes[0].slices(case.outputs[0].rect)]),)
    operator.forward(call)
    kernels.device.verify()
    for i, output in enumerate(call.outputs):
        found[f"output {i}"] = kernels.device.to_host(output)
    call.grad_outputs = tuple(
        to_device(kernels, g[r.slices(s.rect)]) if s.differentiable else None
        for g, r, s in zip(case.grads, call.writes, case.outputs)
    )
    targets = []
    for rect, spec in zip((*call.reads.inputs, *call.reads.weights), (*case.specs, *case.weights)):
        wanted = np.dtype(spec.dtype).kind == "f" and not rect.empty
        start = np.full(rect.shape, 0.5 if accumulate else np.nan, spec.dtype)
        targets.append(Target(to_device(kernels, start), accumulate) if wanted else None)
    count = len(case.specs)
    call.grad_inputs, call.grad_weights = tuple(targets[:count]), tuple(targets[count:])
    if any(g is not None for g in call.grad_outputs):
        operator.backward(call)
        for i, target in enumerate(targets):
            if target is not None:
                found[f"gradient {i}"] = kernels.device.to_host(target.array)
    return found


def compare(kind: str, seed: int, kernels: Any) -> None:
    """AssertionError unless up to three pieces of an example of an operator give what the reference gives, forward and backward."""
    case = draw(kind, seed, seed % 2)
    case.kernels = REFERENCE
    pieces = case.pieces(Random(seed))
    for number, piece in enumerate(Random(seed).sample(pieces, min(len(pieces), 3))):
        whole = forward(case, piece)
        results = []
        for of in (REFERENCE, kernels):
            call = Call(
                whole.name, whole.specs, piece, whole.reads, whole.writes, of, case.state,
                inputs=tuple(to_device(of, a) for a in whole.inputs), weights=tuple(to_device(of, a) for a in whole.weights),
            )
            results.append(run(case, call, accumulate=bool((seed + number) % 2)))
        expected, actual = results
        assert expected.keys() == actual.keys()
        for what, value in expected.items():
            np.testing.assert_allclose(
                actual[what], value, rtol=1e-11, atol=1e-12, err_msg=f"{case.operator}, example {seed}, {piece}: {what}"
            )
