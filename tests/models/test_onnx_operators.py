"""Every ONNX operator that is understood, with random options: each initializer arrives and predictions are those of onnx's
reference evaluator, or the import refuses."""

from __future__ import annotations

import warnings
from random import Random
from typing import Any

import numpy as np
import pytest

import taskflow
from taskflow.models.notes import ImportNote
from taskflow.models.onnx import from_onnx

onnx = pytest.importorskip("onnx", reason="onnx is not installed: pip install 'soap-taskflow[onnx]'")
import onnx_cases_numbers  # noqa: E402, F401  it fills MAKERS
from onnx.reference import ReferenceEvaluator  # noqa: E402
from onnx_cases import MAKERS, case_of  # noqa: E402

from taskflow.models.onnx.context import HANDLERS  # noqa: E402
from taskflow.models.onnx.follow import follow  # noqa: E402

CASES = 24  # of each operator
CLOSE = 2e-5  # float32, sums in another order


def feeds_of(model: Any, seed: int) -> dict[str, Any]:
    numbers, found = np.random.default_rng(seed), {}
    for value in model.graph.input:
        shape = [d.dim_value for d in value.type.tensor_type.shape.dim]
        floats = value.type.tensor_type.elem_type == onnx.TensorProto.FLOAT
        found[value.name] = numbers.normal(size=shape).astype("float32") if floats else numbers.integers(0, 2, shape)
    return found


def compared(model: Any, seed: int) -> None:
    """Import without the import's own proof, and compare all outputs."""
    weights: dict[str, Any] = {}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ImportNote)
        graph = from_onnx(model, loss=None, weights=weights, verify=False)
    followed = follow(onnx, model, "net", None)
    account = followed.account
    where = (set(account.parameters), set(account.states), set(account.constants), set(account.unused))
    for array in model.graph.initializer:
        assert any(array.name in group for group in where), f"{array.name} is in no group of {where}"
    run = taskflow.Executor(graph, taskflow.choose("data", graph, taskflow.host(1))[0], machine=taskflow.host(1))
    assert set(run.weights() or {}) == set(weights), "everything that is trained or kept has numbers of the file"
    run.set_parameters(weights)
    feeds = feeds_of(model, seed)
    with np.errstate(all="ignore"):
        theirs = ReferenceEvaluator(model).run(None, feeds)
    feeds = {name: feed for name, feed in feeds.items() if name in followed.context.values}
    tensors = [followed.context.values[value.name].name for value in model.graph.output]
    ours = run.predict(feeds, tensors)
    for name, their in zip(tensors, theirs):
        assert ours[name].shape == their.shape
        np.testing.assert_allclose(ours[name], their, rtol=0, atol=CLOSE * (1 + np.abs(their).max(initial=0)))


@pytest.mark.parametrize("kind", list(MAKERS))
def test_an_operator_computes_what_onnx_computes_or_is_refused(kind: str) -> None:
    refused = []
    for seed in range(CASES):
        model = case_of(kind, seed)
        try:
            compared(model, seed)
        except ValueError as error:
            assert str(error).startswith("from_onnx: net: ") and "\n" not in str(error), error
            refused.append(str(error))
    assert len(refused) <= CASES * 2 // 3, "\n".join(refused)


def test_every_operator_has_cases() -> None:
    assert HANDLERS.keys() <= MAKERS.keys()


def mutated(model: Any, r: Random) -> Any:
    """A model with one thing changed: bytes, a name, an operator, a shape, an attribute, a missing input or initializer."""
    graph, how = model.graph, r.randrange(8)
    node = r.choice(graph.node)
    if how == 0:
        content = bytearray(model.SerializeToString())
        for _ in range(r.randint(1, 4)):
            content[r.randrange(len(content))] = r.randrange(256)
        return onnx.load_from_string(bytes(content))
    if how == 1 and node.input:
        node.input[r.randrange(len(node.input))] = r.choice(["", "gone", *(i.name for i in (*graph.initializer, *graph.input))])
    elif how == 2 and graph.initializer:
        del graph.initializer[r.randrange(len(graph.initializer))]
    elif how == 3 and graph.initializer:
        r.choice(graph.initializer).dims[:] = [r.randint(0, 4) for _ in range(r.randint(0, 3))]
    elif how == 4 and node.attribute:
        attribute = r.choice(node.attribute)
        attribute.ints[:] = [r.randint(-3, 5) for _ in range(r.randint(0, 5))]
        attribute.i, attribute.f = r.randint(-5, 5), r.choice([0.0, -1.0, float("nan")])
    elif how == 5:
        node.op_type = r.choice([*MAKERS, "Foo"])
    elif how == 6:
        node.output[0] = r.choice(["", "x0", "w0", "other"])
    elif how == 7 and node.input:
        del node.input[r.randrange(len(node.input))]
    return model


@pytest.mark.parametrize("part", range(4))
def test_damaged_files_are_refused_in_one_line_or_imported(part: int) -> None:
    r, refused = Random(part), 0
    for _ in range(150):
        model = case_of(r.choice(list(MAKERS)), r.randrange(1000))
        try:
            model = mutated(model, r)
        except Exception as error:
            assert type(error).__name__ == "DecodeError"
            continue
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            try:
                from_onnx(model)
            except ValueError as error:
                assert str(error).startswith("from_onnx: ") and "\n" not in str(error), error
                refused += 1
    assert 20 < refused < 150
