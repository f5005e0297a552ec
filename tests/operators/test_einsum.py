"""einsum beyond the common properties: equations as PyTorch reads them, several operands, halves of which nothing is left."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from random import Random
from typing import Any

import numpy as np
import pytest
from operator_bench import backward, draw, evaluate, forward

import taskflow.operators as ops
from taskflow.graph import OperatorGraph
from taskflow.kernels import NumpyKernels
from taskflow.operators.einsum import Einsum
from taskflow.operators.operator import Soap, Spec, iteration_space
from taskflow.operators.reduce import Reduce
from taskflow.operators.tensor import Tensor

DOUBLE = np.dtype(np.float64)


def _graph(*shapes: tuple[int, ...]) -> tuple[OperatorGraph, list[Tensor]]:
    graph = OperatorGraph("float64")
    return graph, [ops.input(graph, shape, name=f"x{i}") for i, shape in enumerate(shapes)]


def _compare(equation: str, shapes: list[tuple[int, ...]]) -> OperatorGraph:
    torch = pytest.importorskip("torch")
    graph, tensors = _graph(*shapes)
    result = ops.einsum(equation, *tensors)
    numbers = np.random.default_rng(len(equation))
    feeds = {t.name: numbers.normal(size=t.shape) for t in tensors}
    others = [torch.tensor(feeds[t.name], requires_grad=True) for t in tensors]
    expected = torch.einsum(equation, *others)
    assert result.shape == tuple(expected.shape), equation
    seed = numbers.normal(size=result.shape)
    values, gradients = evaluate(graph, feeds, {}, {result: seed})
    np.testing.assert_allclose(values[result], expected.detach().numpy(), rtol=1e-10, atol=1e-10, err_msg=equation)
    expected.backward(torch.tensor(seed))
    for tensor, other in zip(tensors, others):
        np.testing.assert_allclose(gradients[tensor.name], other.grad.numpy(), rtol=1e-10, atol=1e-10, err_msg=equation)
    return graph


@pytest.mark.torch
@pytest.mark.parametrize(("equation", "shapes"), [
    ("ij,jk->ik", [(3, 4), (4, 5)]),
    ("ij,jk", [(3, 4), (4, 5)]),
    ("ba", [(3, 4)]),  # without an arrow: in alphabetical order
    ("i,j->ji", [(3,), (4,)]),
    ("i,i->", [(5,), (5,)]),
    ("...ij,...jk->...ik", [(2, 3, 4, 5), (2, 3, 5, 2)]),
    ("b...->...b", [(2, 3, 4)]),
    ("...a,...a", [(2, 3), (2, 3)]),
    ("nhtd,nhsd->nhts", [(2, 3, 4, 5), (2, 3, 6, 5)]),
    ("ij, k -> i", [(3, 4), (5,)]),  # j and k are in one operand only
    ("ij,jk,kl->il", [(3, 4), (4, 5), (5, 2)]),
    ("i,i,i->i", [(4,), (4,), (4,)]),
    ("i,j,k->", [(2,), (3,), (4,)]),
    ("abc,cd,be,ef->adf", [(2, 3, 4), (4, 5), (3, 2), (2, 3)]),
])
def test_equations_equal_torch(equation: str, shapes: list[tuple[int, ...]]) -> None:
    _compare(equation, shapes)


@pytest.mark.torch
def test_random_equations_of_several_operands_equal_torch() -> None:
    for seed in range(60):
        random = Random(seed)
        sizes = {letter: random.randint(1, 4) for letter in "abcdef"}
        terms = ["".join(random.sample("abcdef", random.randint(1, 4))) for _ in range(random.randint(1, 5))]
        seen = sorted(set("".join(terms)))
        out = "".join(random.sample(seen, random.randint(0, len(seen))))
        _compare(f"{','.join(terms)}->{out}", [tuple(sizes[x] for x in term) for term in terms])


def test_several_operands_are_multiplied_in_the_cheap_order() -> None:
    graph, tensors = _graph((100, 2), (2, 100), (100, 3))
    ops.einsum("ij,jk,kl->il", *tensors, name="chain")
    made = {node.name: node.outputs[0].shape for node in graph if node.operator.kind == "einsum"}
    assert made == {"chain.0": (3, 2), "chain": (100, 3)}


def test_letters_are_the_iteration_space() -> None:
    operator, specs = Einsum("nik,nkj->nji"), (Spec((2, 3, 4), DOUBLE), Spec((2, 4, 5), DOUBLE))
    assert [(d.name, d.size, d.soap) for d in operator.dims(specs)] == [
        ("n", 2, Soap.SAMPLE), ("j", 5, Soap.ATTRIBUTE), ("i", 3, Soap.ATTRIBUTE), ("k", 4, Soap.REDUCTION)
    ]
    assert operator.output(specs)[0].shape == (2, 5, 3)


class Counting(NumpyKernels):
    """Counts a multiplication and an addition for each term of its products."""

    flops = 0

    def matmul(self, a: Any, b: Any, out: Any, accumulate: bool = False) -> None:
        self.flops += 2 * out.size * a.shape[-1]
        super().matmul(a, b, out, accumulate)


@pytest.mark.parametrize("seed", range(40))
def test_flops_are_those_of_the_kernels(seed: int) -> None:
    """Of a product two such products backward; of a sum as many as there are elements, as `reduce` counts them."""
    case = replace(draw("einsum", seed), kernels=Counting())
    call, kernels = forward(case), case.kernels
    assert isinstance(kernels, Counting)
    ahead, kernels.flops = kernels.flops, 0
    backward(case, call)
    counted = case.operator.flops(case.specs, case.space), case.operator.backward_flops(case.specs, case.space)
    if len(case.specs) == 2:
        assert counted == (ahead, kernels.flops)
    else:
        (x,) = case.specs
        summed = Reduce(tuple(range(1, len(x.shape))), False, False)
        space = iteration_space(summed, case.specs)
        assert ahead == kernels.flops == 0
        assert counted == (summed.flops(case.specs, space), summed.backward_flops(case.specs, space))


def _build(equation: str, *shapes: tuple[int, ...]) -> Callable[[], object]:
    return lambda: ops.einsum(equation, *_graph(*shapes)[1])


@pytest.mark.parametrize(("build", "message"), [
    (_build("ij,jk->ik", (3, 4)), "has 2 operands, got 1 tensors"),
    (_build("ii->i", (3, 3)), "each at most once in one of them, got 'ii'"),
    (_build("ij->ik", (3, 3)), "must occur in an operand, got 'ik'"),
    (_build("ij->iij", (3, 3)), "at most once"),
    (_build("i1->i", (3, 3)), "must be letters"),
    (_build("ij,jk->ik", (3, 4), (5, 6)), "'j' is 4 and 5: sizes must be equal"),
    (_build("ijk->i", (3, 4)), "'ijk' must name every dimension"),
    (_build("...i,...i->...", (2, 3), (2, 4, 3)), "equally many dimensions"),
    (lambda: Einsum("ij,kl->il").output((Spec((2, 3), DOUBLE),) * 2), "others of two operands in both"),
    (lambda: Einsum("i,i,i->i").output((Spec((2,), DOUBLE),) * 3), "one or two operands"),
])
def test_what_cannot_be_read_is_refused(build: Callable[[], object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        build()
