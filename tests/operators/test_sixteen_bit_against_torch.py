"""Layers in bfloat16 and float16 beside PyTorch's in the same types: values and gradients, to torch.testing's tolerances."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import taskflow as tf
from taskflow.graph import OperatorGraph
from taskflow.mapper import OpConfig, Strategy
from taskflow.operators.tensor import Tensor
from taskflow.rules import SGD
from taskflow.runtime.executor import Executor

torch = pytest.importorskip("torch")
pytest.importorskip("ml_dtypes")
pytestmark = pytest.mark.torch
F = torch.nn.functional
TYPES = ["bfloat16", "float16"]


def numbers(*shape: int, seed: int = 0) -> np.ndarray[Any, Any]:
    return np.random.default_rng((seed, *shape)).normal(size=shape).astype(np.float32)


def masters(run: Executor) -> dict[str, Any]:
    """The float32 copies of the weights."""
    return dict(run.gather(run.master_holdings.values()))


class Both:
    """Inputs through a layer of ours and through PyTorch's, with the squared distance from a target as the loss."""

    def __init__(self, dtype: str, *shapes: tuple[int, ...]) -> None:
        self.dtype, self.kind = dtype, getattr(torch, dtype)
        self.graph = OperatorGraph(dtype)
        self.values = [numbers(*shape, seed=i) for i, shape in enumerate(shapes)]
        # To each input zeros are added, whose gradient is the input's.
        self.inputs = [tf.input(self.graph, shape, name=f"x{i}") for i, shape in enumerate(shapes)]
        self.ours = [tf.add_weight(x, x.shape, name=f"w{i}") for i, x in enumerate(self.inputs)]
        self.theirs = [torch.tensor(v).to(self.kind).requires_grad_() for v in self.values]

    def compare(
        self, made: Tensor, wanted: Any, parameters: dict[str, Any] | None = None, *, loose: float = 1.0
    ) -> None:
        """``parameters``: PyTorch's by our names. ``loose``: times the usual tolerances."""
        given = {name: p.detach().float().numpy() for name, p in (parameters or {}).items()}
        target = numbers(*made.shape, seed=9)
        label = tf.input(self.graph, made.shape, name="target")
        self.graph.minimize(tf.mse_loss(made, label, reduction="sum", name="loss"))
        whole = Strategy(1, {node.name: OpConfig((1,) * len(node.dims), (0,)) for node in self.graph})
        run = Executor(self.graph, whole, SGD(1.0), fetch=(made,), loss_scaling=None)
        starts = {f"w{i}": np.zeros(v.shape, np.float32) for i, v in enumerate(self.values)}
        run.set_parameters({**given, **starts})
        before = masters(run)
        loss = run.train({**{f"x{i}": v for i, v in enumerate(self.values)}, "target": target})
        after = masters(run)
        theirs = ((wanted.float() - torch.tensor(target).to(self.kind).float()) ** 2).sum()
        theirs.backward()
        usual = {"bfloat16": (1.6e-2, 1e-5), "float16": (1e-3, 1e-5)}[self.dtype]  # of torch.testing.assert_close

        def close(found: Any, exact: Any, what: str) -> None:
            most = float(np.abs(exact).max())
            # An element that is the small difference of large ones has their error.
            np.testing.assert_allclose(
                np.asarray(found, np.float32), exact, rtol=loose * usual[0], atol=loose * usual[0] * most, err_msg=what
            )

        close(run.fetched(made), wanted.detach().float().numpy(), "values")
        assert loss == pytest.approx(float(theirs.detach()), rel=loose * usual[0])
        gradients = {**{f"w{i}": x.grad for i, x in enumerate(self.theirs)}, **{n: p.grad for n, p in (parameters or {}).items()}}
        for name, gradient in gradients.items():
            close(before[name] - after[name], gradient.float().numpy(), f"gradient of {name}")


def layer(both: Both, module: Any) -> Any:
    return module.to(both.kind)


@pytest.mark.parametrize("dtype", TYPES)
def test_linear(dtype: str) -> None:
    both = Both(dtype, (8, 5, 24))
    module = layer(both, torch.nn.Linear(24, 16))
    both.compare(
        tf.linear(both.ours[0], 16, name="fc"), module(both.theirs[0]), {"fc.weight": module.weight, "fc.bias": module.bias}
    )


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("way", ["layer_norm", "rms_norm"])
def test_norms(dtype: str, way: str) -> None:
    both = Both(dtype, (6, 4, 32))
    if way == "layer_norm":
        module = layer(both, torch.nn.LayerNorm(32))
        ours, parameters = tf.layer_norm(both.ours[0], name="norm"), {"norm.weight": module.weight, "norm.bias": module.bias}
    else:
        module = layer(both, torch.nn.RMSNorm(32, eps=1e-5))
        ours, parameters = tf.rms_norm(both.ours[0], 1e-5, name="norm"), {"norm.weight": module.weight}
    # PyTorch adds up the 24 rows of the bias' gradient in 16 bits, where ours are added in float32.
    both.compare(ours, module(both.theirs[0]), parameters, loose=2.0)


@pytest.mark.parametrize("dtype", TYPES)
def test_softmax(dtype: str) -> None:
    both = Both(dtype, (6, 4, 10))
    both.compare(tf.softmax(both.ours[0]), F.softmax(both.theirs[0], -1))


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("causal", [False, True])
def test_attention(dtype: str, causal: bool) -> None:
    both = Both(dtype, *[(2, 9, 3, 8)] * 3)  # samples, words, heads, features
    q, k, v = (x.transpose(1, 2) for x in both.theirs)
    wanted = F.scaled_dot_product_attention(q, k, v, is_causal=causal).transpose(1, 2)
    # PyTorch rounds the attention's weights before it multiplies by them, where ours are in float32: two roundings for one.
    both.compare(tf.flash_attention(*both.ours, causal=causal), wanted, loose=2.0)


@pytest.mark.parametrize("dtype", TYPES)
def test_activations(dtype: str) -> None:
    ways: list[tuple[Callable[..., Tensor], Callable[..., Any]]] = [
        (tf.relu, F.relu), (tf.gelu, F.gelu), (tf.silu, F.silu), (tf.tanh, torch.tanh), (tf.sigmoid, torch.sigmoid),
    ]
    for ours, theirs in ways:
        both = Both(dtype, (5, 12))
        both.compare(ours(both.ours[0]), theirs(both.theirs[0]))


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("blocks", [None, 3])
def test_cross_entropy(dtype: str, blocks: int | None) -> None:
    """Against float32's of the same 16-bit scores: PyTorch's own in 16 bits rounds the loss, which ours does not."""
    both = Both(dtype, (16, 12))
    graph, labels = both.graph, np.random.default_rng(3).integers(0, 12, 16)
    label = tf.input(graph, (16,), "int64", name="label")
    graph.minimize(tf.cross_entropy(both.ours[0], label, blocks=blocks, name="loss"))
    assert graph.losses[0].dtype == np.float32
    whole = Strategy(1, {node.name: OpConfig((1,) * len(node.dims), (0,)) for node in graph})
    run = Executor(graph, whole, SGD(1.0), loss_scaling=None)
    run.set_parameters({"w0": np.zeros((16, 12), np.float32)})
    loss = run.train({"x0": both.values[0], "label": labels})
    exact = F.cross_entropy(both.theirs[0].float(), torch.tensor(labels))
    exact.backward()
    assert loss == pytest.approx(float(exact.detach()), rel=1e-5)
    rounding = {"bfloat16": 2.0**-8, "float16": 2.0**-11}[dtype]
    np.testing.assert_allclose(
        -masters(run)["w0"], both.theirs[0].grad.float().numpy(), rtol=2 * rounding, atol=1e-7
    )
    rough = F.cross_entropy(both.theirs[0].detach(), torch.tensor(labels))
    assert loss == pytest.approx(float(rough), rel=1.6e-2)
