"""Work that is timed: JAX's operators by shape, compiled."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp

from taskflow.probe.cases import Case
from taskflow.probe.script_jax.clock import CompiledTime, taken

ROW = 5  # operators in a row that XLA makes one kernel of; each has a part of it
Call = Callable[..., Any]


def conv2d_of(case: Case) -> Call:
    """A convolution that pads to keep the size."""
    kernel, stride = case.sizes[-2:]
    padding = [(kernel // 2, kernel // 2)] * 2
    return lambda x, weight: jax.lax.conv_general_dilated(x, weight, (stride, stride), padding)


def depthwise_of(case: Case) -> Call:
    """A convolution of each channel by itself."""
    padding = [(case.sizes[-1] // 2,) * 2] * 2
    return lambda x, weight: jax.lax.conv_general_dilated(x, weight, (1, 1), padding, feature_group_count=case.sizes[1])


def rotary_of(case: Case) -> Call:
    """Rotations by tables that are there."""
    table = jnp.ones((case.sizes[1], 1, case.sizes[3]))

    def call(x: Any) -> Any:
        first, second = jnp.split(x, 2, -1)
        return x * table.astype(x.dtype) + jnp.concatenate((-second, first), -1) * table.astype(x.dtype)

    return call


def lstm(x: Any, of_x: Any, of_h: Any, bias_x: Any, bias_h: Any) -> Any:
    """A layer of LSTM that begins with zeros."""

    def step(state: Any, gates: Any) -> Any:
        h, c = state
        i, f, g, o = jnp.split(gates + h @ of_h.T, 4, -1)
        c = jax.nn.sigmoid(f) * c + jax.nn.sigmoid(i) * jnp.tanh(g)
        h = jax.nn.sigmoid(o) * jnp.tanh(c)
        return (h, c), h

    zeros = jnp.zeros((len(x), of_h.shape[1]), x.dtype)
    return jnp.swapaxes(jax.lax.scan(step, (zeros, zeros), jnp.swapaxes(x @ of_x.T + bias_x + bias_h, 0, 1))[1], 0, 1)


def gru(x: Any, of_x: Any, of_h: Any, bias_x: Any, bias_h: Any) -> Any:
    """A layer of GRU that begins with zeros."""

    def step(h: Any, given: Any) -> Any:
        r, z, n = jnp.split(given, 3, -1)
        hr, hz, hn = jnp.split(h @ of_h.T + bias_h, 3, -1)
        z = jax.nn.sigmoid(z + hz)
        h = (1 - z) * jnp.tanh(n + jax.nn.sigmoid(r + hr) * hn) + z * h
        return h, h

    zeros = jnp.zeros((len(x), of_h.shape[1]), x.dtype)
    return jnp.swapaxes(jax.lax.scan(step, zeros, jnp.swapaxes(x @ of_x.T + bias_x, 0, 1))[1], 0, 1)


def rms_norm(x: Any, weight: Any) -> Any:
    """Normalisation by the root of the mean square, which XLA makes of its parts in any case."""
    return x * jax.lax.rsqrt((x * x).mean(-1, keepdims=True) + 1e-5) * weight


def attention_of(case: Case) -> Call:
    """Attention by the kernel that JAX chooses. Cases have heads before positions, JAX has them behind."""

    def call(q: Any, k: Any, v: Any) -> Any:
        turned = [jnp.swapaxes(value, 1, 2) for value in (q, k, v)]
        return jax.nn.dot_product_attention(*turned, is_causal=bool(case.sizes[-1]))

    return call


def experts_of(case: Case) -> Call:
    """Gated layers of experts, to which rows are given in the order of the experts."""
    _, count, chosen, _, _ = case.sizes

    def call(x: Any, which: Any, wide: Any, narrow: Any, weights: Any) -> Any:
        order = jnp.argsort(which.reshape(-1))
        counts = jnp.bincount(which.reshape(-1), length=count)
        gate, up = jnp.split(jax.lax.ragged_dot(x[order // chosen], jnp.swapaxes(wide, 1, 2), counts), 2, -1)
        out = jax.lax.ragged_dot(jax.nn.silu(gate) * up, jnp.swapaxes(narrow, 1, 2), counts)
        return jnp.zeros_like(x).at[order // chosen].add(out * weights.reshape(-1)[order, None])

    return call


def normalised(x: Any, *axes: int) -> Any:
    """Values less their mean, by their deviation."""
    return (x - x.mean(axes, keepdims=True)) * jax.lax.rsqrt(x.var(axes, keepdims=True) + 1e-5)


def batch_norm(x: Any, weight: Any, bias: Any) -> Any:
    """Batch normalisation in training."""
    return normalised(x, 0, 2) * weight[:, None] + bias[:, None]


def cross_entropy(scores: Any, labels: Any) -> Any:
    """The mean loss of scores."""
    return -jnp.take_along_axis(jax.nn.log_softmax(scores), labels[:, None], 1).mean()


def pool(x: Any) -> Any:
    """The largest of each four pixels."""
    return jax.lax.reduce_window(x, -jnp.inf, jax.lax.max, (1, 1, 2, 2), (1, 1, 2, 2), "VALID")


def dropout(x: Any) -> Any:
    """Numbers of which a tenth is dropped."""
    return jnp.where(jax.random.bernoulli(jax.random.key(0), 0.9, x.shape), x / 0.9, 0)


OF_SIZES: dict[str, Callable[[Case], Call]] = {
    "conv2d": conv2d_of, "depthwise": depthwise_of, "attention": attention_of, "experts": experts_of, "rotary": rotary_of,
}  # fmt: skip
"""Of operators whose calls depend on their sizes."""
CALLS: dict[str, Call] = {
    "linear": lambda x, weight, bias: x @ weight.T + bias, "matmul": jnp.matmul, "softmax": jax.nn.softmax,
    "layer_norm": lambda x, weight, bias: normalised(x, -1) * weight + bias,
    "rms_norm": rms_norm, "rms_norm_parts": rms_norm, "lstm": lstm, "gru": gru, "swiglu": lambda x, y: jax.nn.silu(x) * y,
    "batch_norm": batch_norm, "cross_entropy": cross_entropy, "embedding": lambda which, table: table[which], "pool": pool,
    "turned": lambda x: jnp.swapaxes(x, 1, 2), "gelu": jax.nn.gelu, "silu": jax.nn.silu, "relu": jax.nn.relu, "add": jnp.add,
    "mul": jnp.multiply, "dropout": dropout, "mean": lambda x: x.mean(-1), "view": lambda x: x.reshape(-1),
}  # fmt: skip
FUSED = ("gelu", "silu", "relu", "add", "mul", "dropout", "swiglu", "rotary")


def call_of(case: Case) -> tuple[Call, int]:
    """Return what computes a case, and how often it does so: what XLA joins with its neighbours stands several times in a row."""
    call = OF_SIZES[case.name](case) if case.name in OF_SIZES else CALLS[case.name]
    if case.name not in FUSED:
        return call, 1

    def row(x: Any, *others: Any) -> Any:
        for number in range(ROW):
            x = call(x + number if number else x, *others)  # no two are alike, so that none is left out
        return x

    return row, ROW


def arrays_of(case: Case, dtype: Any) -> tuple[list[Any], list[Any]]:
    """Return a case's arguments: integers first (only the tables and labels have any), and then numbers."""
    keys = jax.random.split(jax.random.key(0), len(case.shapes))
    integers = [jax.random.randint(key, shape[1:], 0, -shape[0]) for key, shape in zip(keys, case.shapes) if shape[0] < 0]
    return integers, [jax.random.normal(key, shape, dtype) for key, shape in zip(keys, case.shapes) if shape[0] > 0]


def placed(case: Case, call: Call, integers: list[Any], *numbers: Any) -> Any:
    """Call with arguments in the case's order."""
    whole, real = iter(integers), iter(numbers)
    return call(*(next(whole if shape[0] < 0 else real) for shape in case.shapes))


def timed_case(case: Case, dtype: Any, devices: Sequence[Any], seconds: float) -> list[CompiledTime]:
    """Return what forward and backward of a case take on all devices at once. Forward keeps what backward reads, as in training."""
    call, times = call_of(case)
    arrays = arrays_of(case, dtype)
    forward = jax.jit(lambda integers, numbers: jax.vjp(partial(placed, case, call, integers), *numbers))
    backward = jax.jit(lambda back, ones: back(ones))
    pairs = everywhere(forward, devices, *arrays)
    ways = [jax.block_until_ready([(back, jnp.ones_like(result)) for result, back in pairs()])]
    actions = (pairs, lambda: [backward(*one) for one in ways[0]])
    return [CompiledTime(one.seconds / times, one.spread) for one in (taken(action, seconds / 2) for action in actions)]


def everywhere(compiled: Call, devices: Sequence[Any], *arguments: Any) -> Callable[[], list[Any]]:
    """Return what begins compiled code on all devices, each with arguments of its own."""
    given = [jax.device_put(arguments, device) for device in devices]
    return lambda: [compiled(*each) for each in given]
