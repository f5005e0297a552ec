"""Operators against PyTorch in float64, forward and backward."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from operator_bench import SEEDS, Case, backward, draw, embedded, evaluate, forward

import taskflow.operators as ops
from taskflow.graph import OperatorGraph

torch = pytest.importorskip("torch")
F = torch.nn.functional
pytestmark = pytest.mark.torch
torch.set_num_threads(1)  # small arrays; more threads only get in the way of one another


def _cross_entropy(op: Any, x: Any, target: Any) -> Any:
    scores = x.movedim(-1, 1)  # PyTorch has the classes second
    reduction = op.reduction if bool((target != op.ignored).any()) else "sum"  # a mean over no labels is 0, in PyTorch nan
    return F.cross_entropy(scores, target, ignore_index=op.ignored, reduction=reduction, label_smoothing=op.label_smoothing)


def _class_blocks(op: Any, x: Any, target: Any) -> Any:
    classes, counts = x.shape[-1], target != op.ignored
    right = (1 - op.label_smoothing) * F.one_hot(target, classes).to(x.dtype) + op.label_smoothing / classes
    edges = [b * classes // op.blocks for b in range(op.blocks + 1)]
    parts = [slice(*pair) for pair in zip(edges, edges[1:])]
    pairs = torch.stack([torch.stack((x[..., p].logsumexp(-1), (x * right)[..., p].sum(-1)), -1) for p in parts], -2)
    return pairs * counts[..., None, None]


def _cross_entropy_of_blocks(op: Any, y: Any, target: Any) -> Any:
    losses = y[..., 0].logsumexp(-1) - y[..., 1].sum(-1)
    counted = losses[target != op.ignored]
    return counted.sum() if op.reduction == "sum" or not len(counted) else counted.mean()


def _lstm(op: Any, x: Any, h0: Any, c0: Any, *others: Any) -> Any:
    layer = torch.nn.LSTM(x.shape[2], op.hidden_size, batch_first=True, dtype=torch.float64)
    *tokens, w_ih, w_hh, b_ih, b_hh = others
    if op.reverse:
        x, tokens = x.flip(1), [each.flip(1) for each in tokens]
        y, h, c = _lstm(replace(op, reverse=False), x, h0, c0, *tokens, w_ih, w_hh, b_ih, b_hh)
        return y.flip(1), h, c
    named = {"weight_ih": w_ih, "weight_hh": w_hh, "bias_ih": b_ih, "bias_hh": b_hh}
    flat = {f"{name}_l0": w.flatten(0, 1) for name, w in named.items()}
    if not tokens:
        y, (h, c) = torch.func.functional_call(layer, flat, (x, (h0[None], c0[None])))
        return y, h[0], c[0]
    outputs, h, c = [], h0, c0
    for t in range(x.shape[1]):  # step by step, keeping the states where there is only padding
        _, (new_h, new_c) = torch.func.functional_call(layer, flat, (x[:, t : t + 1], (h[None], c[None])))
        real = (tokens[0][:, t] != op.padding)[:, None]
        h, c = torch.where(real, new_h[0], h), torch.where(real, new_c[0], c)
        outputs.append(h)
    return torch.stack(outputs, 1), h, c


def _causal_conv1d(op: Any, x: Any, weight: Any, *bias: Any) -> Any:
    y = F.conv1d(x.transpose(1, 2), weight, *bias, padding=op.kernel - 1, groups=x.shape[2])[..., : x.shape[1]].transpose(1, 2)
    return F.silu(y) if op.silu else y


def _selective_scan(op: Any, x: Any, z: Any, b: Any, c: Any, a_log: Any, skip: Any) -> Any:
    h, each, dt = 0, [], F.softplus(z)
    for t in range(x.shape[1]):
        h = torch.exp(dt[:, t, :, None] * -torch.exp(a_log)) * h + (dt * x)[:, t, :, None] * b[:, t, None]
        each.append((h * c[:, t, None]).sum(-1) + skip * x[:, t])
    return torch.stack(each, 1)


def _linear_attention(op: Any, q: Any, k: Any, v: Any, g: Any, beta: Any = None) -> Any:
    """PyTorch's own products of each step, and its gradients."""
    times = v.shape[2] // q.shape[2]
    if op.eps is not None:
        q, k = (x / (x.square().sum(-1, True) + op.eps).sqrt() for x in (q, k))
    q, k = (x.repeat_interleave(times, 2) for x in (q, k))
    state, each = torch.zeros(v.shape[0], v.shape[2], q.shape[3], v.shape[3], dtype=v.dtype), []
    for t in range(v.shape[1]):
        state = state * (g[:, t].exp()[..., None] if g.ndim == 4 else g[:, t].exp()[..., None, None])
        u = v[:, t]
        if beta is not None:
            u = beta[:, t, :, None] * (u - torch.einsum("nhkv,nhk->nhv", state, k[:, t]))
        state = state + torch.einsum("nhk,nhv->nhkv", k[:, t], u)
        each.append(op.scale * torch.einsum("nhkv,nhk->nhv", state, q[:, t]))
    return torch.stack(each, 1)


def _masked_scatter(op: Any, x: Any, tokens: Any, rows: Any) -> Any:
    each = zip(x, tokens, rows)  # a mask takes rows of all samples one after the other
    made = [(torch.zeros_like(a) if op.adds else a).masked_scatter((t == op.token)[:, None], r) for a, t, r in each]
    return torch.stack(made) + (x if op.adds else 0)


def _gru(op: Any, x: Any, h0: Any, *weights: Any) -> Any:
    layer = torch.nn.GRU(x.shape[2], op.hidden_size, batch_first=True, dtype=torch.float64)
    names = ("weight_ih_l0", "weight_hh_l0", "bias_ih_l0", "bias_hh_l0")
    flat = {name: weight.flatten(0, 1) for name, weight in zip(names, weights)}
    y, h = torch.func.functional_call(layer, flat, (x.flip(1) if op.reverse else x, h0[None]))
    return y.flip(1) if op.reverse else y, h[0]


def _extreme(op: Any, x: Any) -> Any:
    if op.first:
        return (torch.min if op.least else torch.max)(x, op.over[0], op.keepdim).values
    return (torch.amin if op.least else torch.amax)(x, op.over, op.keepdim)


def _elu(op: Any, x: Any) -> Any:
    return torch.ops.aten.elu(x, op.alpha, op.scale, op.rate)


def _divide_integers(op: Any, x: Any) -> Any:
    if op.rest:
        return (torch.fmod if op.toward_zero else torch.remainder)(x, op.number)
    return torch.div(x, op.number, rounding_mode="trunc" if op.toward_zero else "floor")


def _scatter_reduce(op: Any, x: Any, index: Any) -> Any:
    wide = index.reshape(*index.shape, *[1] * (x.ndim - 2)).expand(x.shape)
    none = torch.zeros(x.shape[0], op.size, *x.shape[2:], dtype=x.dtype)
    return none.scatter_reduce(1, wide, x, op.reduction, include_self=False)


def _gather(op: Any, x: Any, index: Any) -> Any:
    wide = index.reshape(*index.shape, *(1,) * (x.ndim - 2)).expand(*index.shape, *x.shape[2:])
    return torch.take_along_dim(x, wide, 1)


def _fft(op: Any, real: Any, imag: Any = None) -> Any:
    z = torch.complex(real, torch.zeros_like(real) if imag is None else imag)
    y = (torch.fft.ifft(z, norm="forward") if op.inverse else torch.fft.fft(z))[..., : op.count] * op.factor
    return y.real, y.imag


def _scatter_add(op: Any, x: Any, index: Any) -> Any:
    wide = index.reshape(*index.shape, *(1,) * (x.ndim - 2)).expand(x.shape)
    return torch.zeros(x.shape[0], op.size, *x.shape[2:], dtype=x.dtype).scatter_add(1, wide, x)


def _mask_padding(op: Any, x: Any, tokens: Any) -> Any:
    hidden = (tokens == op.padding).reshape(x.shape[0], *(1,) * (x.ndim - 2), x.shape[-1])
    return x.masked_fill(hidden, op.value)


def _conv2d(op: Any, x: Any, weight: Any, bias: Any = None) -> Any:
    (top, bottom), (left, right) = op.padding
    return F.conv2d(F.pad(x, (left, right, top, bottom)), weight, bias, op.stride, 0, op.dilation, op.groups)


def _moments(op: Any, x: Any) -> Any:
    rows = x.movedim(1, -1).reshape(len(x) // op.samples, -1, x.shape[1])
    return torch.stack((rows.sum(1), (rows * rows).sum(1)), 1)


def _positions(op: Any, x: Any) -> Any:
    _, steps, width = x.shape
    waves = torch.zeros(steps, width, dtype=x.dtype)
    for t in range(steps):
        for column in range(width):
            angle = torch.tensor(t / 10000 ** (2 * (column // 2) / width), dtype=x.dtype)
            waves[t, column] = torch.cos(angle) if column % 2 else torch.sin(angle)
    return x + waves


def _seen(op: Any, queries: int, keys: int, lengths: Any) -> Any:
    """Which keys a query sees, (samples or 1, 1, queries, keys)."""
    seen = torch.ones(queries, keys, dtype=torch.bool)
    if op.causal:
        seen = seen.tril(keys - queries)
        if op.window is not None:
            seen &= ~torch.ones(queries, keys, dtype=torch.bool).tril(keys - queries - op.window)
    return seen[None, None] if lengths is None else seen & (torch.arange(keys) < lengths[:, None, None, None])


def _flash_attention(op: Any, q: Any, k: Any, v: Any, lengths: Any = None) -> Any:
    seen = _seen(op, q.shape[1], k.shape[1], lengths).expand(q.shape[0], 1, -1, -1)
    any_seen = seen.any(-1, keepdim=True)  # PyTorch makes a row of which nothing is left NaN; here it is zero
    q, k, v = (x.transpose(1, 2) for x in (q, k, v))
    y = F.scaled_dot_product_attention(q, k, v, attn_mask=seen | ~any_seen, scale=op.scale, enable_gqa=True)
    return (y * any_seen).transpose(1, 2)


def _attention_blocks(op: Any, q: Any, k: Any, v: Any, lengths: Any = None) -> Any:
    per_group = q.shape[2] // k.shape[2]
    q, k, v = q.transpose(1, 2), *(x.transpose(1, 2).repeat_interleave(per_group, 1) for x in (k, v))
    scores, outputs, sums = op.scale * q @ k.transpose(-1, -2), [], []
    seen = _seen(op, q.shape[2], k.shape[2], lengths).expand(scores.shape)
    edges = [b * k.shape[2] // op.blocks for b in range(op.blocks + 1)]
    for first, last in zip(edges, edges[1:]):
        here, any_seen = seen[..., first:last], seen[..., first:last].any(-1)
        some = scores[..., first:last].masked_fill(~(here | ~any_seen[..., None]), -torch.inf)
        outputs.append((some.softmax(-1) @ v[..., first:last, :] * any_seen[..., None]).transpose(1, 2))
        sums.append((some.logsumexp(-1) * any_seen).transpose(1, 2))
    return torch.stack(outputs, -2), torch.stack(sums, -1)


def _top_k_routing(op: Any, x: Any) -> Any:
    """Token by token, in evaluation, where every choice is tried."""
    groups, tokens, experts = x.shape
    gates = x.softmax(-1)
    grouped = gates.unflatten(-1, (op.expert_groups, -1))
    best_groups = grouped.topk(max(1, op.k // op.chosen_groups)).values.sum(-1).topk(op.chosen_groups).indices
    ours = F.one_hot(best_groups, op.expert_groups).sum(-2, keepdim=True).transpose(-1, -2)
    best = (grouped.detach() * ours).flatten(-2).topk(op.k).indices
    values = torch.take_along_dim(gates, best, -1)
    weights = values / values.sum(-1, keepdim=True) if op.normalize else values
    slots, load = torch.full_like(best, -1), torch.zeros(groups, experts, dtype=torch.int64)
    full, counts = torch.zeros(groups, op.k, dtype=torch.int64), torch.zeros(groups, experts, dtype=x.dtype)
    for g in range(groups):
        places = [0] * experts
        for i in range(op.k):
            for s in range(tokens):
                e = int(best[g, s, i])
                if op.capacity is None or places[e] < op.capacity:
                    slots[g, s, i] = e if op.capacity is None else e * op.capacity + places[e]
                else:
                    full[g, i] += 1
                load[g, e] += 1  # whether or not it finds a place
                counts[g, e] += i < op.balance
                places[e] += 1
    loss = (counts / tokens * gates.mean(1)).sum(-1) / experts
    return weights * (slots >= 0), slots, loss, load, full


def _slot_array(slots: Any, experts: int, capacity: int) -> Any:
    """1 at a token's slots, (groups, tokens, choices, experts * capacity)."""
    many = experts * capacity
    return F.one_hot(torch.where(slots < many, slots, many), many + 1)[..., :many].to(torch.float64)


def _dispatch(op: Any, x: Any, slots: Any) -> Any:
    at = _slot_array(slots, op.experts, op.capacity)
    return torch.einsum("gskp,gsm->gpm", at, x).unflatten(1, (op.experts, op.capacity))


def _combine(op: Any, x: Any, weights: Any, slots: Any) -> Any:
    at = _slot_array(slots, x.shape[1], x.shape[2])
    return torch.einsum("gskp,gsk,gpm->gsm", at, weights, x.flatten(1, 2))


def _combine_weights(op: Any, weights: Any, slots: Any) -> Any:
    at = _slot_array(slots, op.experts, op.capacity).unflatten(-1, (op.experts, op.capacity))
    # The mask's own gradient is zero.
    return torch.einsum("gskec,gsk->gsec", at, weights), at.sum(2) + 0 * weights.sum()


def _routed_linear(op: Any, x: Any, chosen: Any, weight: Any) -> Any:
    weight = torch.cat((weight, torch.zeros_like(weight[:1])))  # of those that chose nobody
    x = x[:, :, None].expand(*chosen.shape, -1) if x.ndim == 3 else x
    return torch.einsum("gskm,gskhm->gskh", x, weight[chosen])


def _merge_attention(op: Any, x: Any, sums: Any, lengths: Any = None) -> Any:
    edges = [b * op.keys // x.shape[3] for b in range(x.shape[3] + 1)]
    seen = _seen(op, x.shape[1], op.keys, lengths)[:, 0]
    seen = torch.stack([seen[..., a:b].any(-1) for a, b in zip(edges, edges[1:])], -1)[:, :, None]
    any_seen = seen.any(-1, keepdim=True)
    weights = sums.masked_fill(~(seen | ~any_seen), -torch.inf).softmax(-1) * any_seen
    return (weights[..., None] * x).sum(-2)


def _rotary(op: Any, x: Any) -> Any:
    """As published code has it: angles in both halves, and ``rotate_half``."""
    features = x.shape[-1]
    rates = 1.0 / op.theta ** (torch.arange(0, features, 2, dtype=torch.float64) / features)
    if op.scaling is not None:  # Llama 3.1
        factor, low, high, context = op.scaling
        lengths = 2 * torch.pi / rates
        between = (context / lengths - low) / (high - low)
        mixed = (1 - between) * rates / factor + between * rates
        slowed = torch.where(lengths > context / low, rates / factor, rates)
        medium = (lengths >= context / high) & (lengths <= context / low)
        rates = torch.where(medium, mixed, slowed)
    if op.rates is not None:
        rates = torch.tensor(op.rates, dtype=torch.float64)
    angles = torch.outer(torch.arange(x.shape[1], dtype=torch.float64) + op.offset, rates)
    if op.neighbours:  # each pair as a complex number
        turns = torch.polar(torch.full_like(angles, op.factor), angles).reshape(x.shape[1], *(1,) * (x.ndim - 3), -1)
        return torch.view_as_real(torch.view_as_complex(x.unflatten(-1, (-1, 2)).contiguous()) * turns).flatten(-2)
    angles = torch.cat((angles, angles), -1).reshape(x.shape[1], *(1,) * (x.ndim - 3), features)
    half = torch.cat((-x[..., features // 2 :], x[..., : features // 2]), -1)
    return op.factor * (x * angles.cos() + half * angles.sin())


def _softmax(op: Any, x: Any, lengths: Any = None) -> Any:
    if lengths is not None:
        # PyTorch makes a row of which nothing is left NaN, also in its gradient; here it is zero.
        ends = lengths.reshape(-1, *[1] * (x.ndim - 1))
        x = x.masked_fill(torch.arange(x.shape[-1]) >= ends, -torch.inf).masked_fill(ends == 0, 0)
    if op.causal:
        rows, columns = x.shape[-2:]
        x = x.masked_fill(torch.ones(rows, columns).tril(columns - rows) == 0, -torch.inf)
    y = torch.softmax(x, op.dim)
    return y if lengths is None else y.masked_fill(ends == 0, 0)


TORCH = {
    "add_weight": lambda op, x, weight: x + weight,
    "mul_weight": lambda op, x, weight: x * weight,
    "expand_weight": lambda op, weight: weight.expand(op.whole),
    "hardtanh": lambda op, x: F.hardtanh(x, op.low, op.high),
    "clamp": lambda op, x: torch.clamp(x, op.low, op.high),
    "leaky_relu": lambda op, x: F.leaky_relu(x, op.slope),
    "hardsigmoid": lambda op, x: F.relu6(x + 3) / 6,  # F.hardsigmoid's own gradient has 1 / 6 in single precision only
    "hardswish": lambda op, x: F.hardswish(x),
    "shift": lambda op, x: x + op.number,
    "stochastic_depth": lambda op, x: x,  # in evaluation
    "gelu": lambda op, x: F.gelu(x, approximate=op.approximate),
    "layer_norm": lambda op, x, weight, bias: F.layer_norm(x, x.shape[-1:], weight, bias, op.eps),
    "group_norm": lambda op, x, weight, bias: F.group_norm(x, op.groups, weight, bias, op.eps),
    "mse_loss": lambda op, x, target: F.mse_loss(x, target, reduction=op.reduction),
    "narrow": lambda op, x: torch.narrow(x, op.dim, op.start, op.length),
    "positional_encoding": _positions,
    "reduce": lambda op, x: (torch.mean if op.mean else torch.sum)(x, op.over, op.keepdim),
    "moments": _moments,
    "adaptive_avg_pool2d": lambda op, x: F.adaptive_avg_pool2d(x, op.size),
    "avg_pool2d": lambda op, x: F.avg_pool2d(
        x, op.kernel, op.stride, op.padding, op.ceil_mode, op.count_include_pad
    ),
    "max_pool2d": lambda op, x: F.max_pool2d(x, op.kernel, op.stride, op.padding, op.dilation, op.ceil_mode),
    "pad": lambda op, x: F.pad(x, [w for pair in reversed(op.edges) for w in pair], value=op.value),
    "abs": lambda op, x: torch.abs(x),
    "add": lambda op, a, b: a + b,
    "attention_blocks": _attention_blocks,
    "class_blocks": _class_blocks,
    "combine": _combine,
    "combine_weights": _combine_weights,
    "concat": lambda op, *xs: torch.cat(xs, op.dim),
    "conv2d": _conv2d,
    "cos": lambda op, x: torch.cos(x),
    "erf": lambda op, x: torch.erf(x),
    "exp": lambda op, x: torch.exp(x),
    "log": lambda op, x: torch.log(x),
    "pow": lambda op, x: x**op.exponent,
    "rsqrt": lambda op, x: torch.rsqrt(x),
    "sin": lambda op, x: torch.sin(x),
    "sqrt": lambda op, x: torch.sqrt(x),
    "conv_transpose2d": lambda op, x, weight, bias=None: F.conv_transpose2d(
        x, weight, bias, op.stride, op.padding, op.output_padding, op.groups, op.dilation
    ),
    "cross_entropy": _cross_entropy,
    "cross_entropy_of_blocks": _cross_entropy_of_blocks,
    "dispatch": _dispatch,
    "dropout": lambda op, x: F.dropout(x, op.p, training=False),
    "einsum": lambda op, *xs: torch.einsum(op.equation, *xs),
    "embedding": lambda op, x, weight: F.embedding(x, weight),
    "argmax": lambda op, x: x.argmax(-1),
    "causal_conv1d": _causal_conv1d,
    "fft": _fft,
    "expand": lambda op, x: x.expand(op.shape),
    "expert_linear": lambda op, x, weight: torch.einsum("gecm,ehm->gech", x, weight),
    "filter2d": lambda op, x, filters: _conv2d(op.convolution, x, filters),
    "flash_attention": _flash_attention,
    "detach": lambda op, x: x.detach() + 0 * x,
    "divide_integers": _divide_integers,
    "full_like": lambda op, x: torch.full_like(x, op.number) + 0 * x,
    "scatter_add": _scatter_add,
    "scatter_reduce": _scatter_reduce,
    "gather": _gather,
    "grid_sample": lambda op, x, grid: F.grid_sample(x, grid, op.mode, op.padding, op.corners),
    "linear": lambda op, x, *weights: F.linear(x, *weights),
    "cumsum": lambda op, x: torch.cumsum(x, op.dim),
    "elu": _elu,
    "extreme": _extreme,
    "gru": _gru,
    "logcumsumexp": lambda op, x: torch.logcumsumexp(x, op.dim),
    "logsumexp": lambda op, x: torch.logsumexp(x, op.over, op.keepdim),
    "mish": lambda op, x: F.mish(x),
    "softplus": lambda op, x: F.softplus(x, op.beta, op.threshold),
    "lstm": _lstm,
    "mask_padding": _mask_padding,
    "per_label": lambda op, x, labels: x / max(1, int((labels != op.ignore_index).sum())),
    "masked_scatter": _masked_scatter,
    "merge_attention": _merge_attention,
    "matmul": lambda op, a, b: torch.matmul(a, b.transpose(-1, -2) if op.transpose_other else b),
    "mul": lambda op, a, b: a * b,
    "relu": lambda op, x: torch.relu(x),
    "reshape": lambda op, x: x.reshape(op.shape),
    "rms_norm": lambda op, x, weight: F.rms_norm(x, x.shape[-1:], weight + op.offset, op.eps),
    "rotary": _rotary,
    "routed_linear": _routed_linear,
    "scale": lambda op, x: x * op.factor,
    "sigmoid": lambda op, x: torch.sigmoid(x),
    "linear_attention": _linear_attention,
    "selective_scan": _selective_scan,
    "silu": lambda op, x: F.silu(x),
    "slogdet": lambda op, x: tuple(torch.linalg.slogdet(x)),
    "softmax": _softmax,
    "split": lambda op, x: torch.split(x, op.sections, op.dim),
    "step": lambda op, x: getattr(torch, op.function)(x),
    "sub": lambda op, a, b: a - b,
    "swiglu": lambda op, gate, x: F.silu(gate) * x,
    "tanh": lambda op, x: torch.tanh(x),
    "top_k": lambda op, x: tuple(torch.topk(x, op.k)),
    "top_k_routing": _top_k_routing,
    "transpose": lambda op, x: x.transpose(op.dim0, op.dim1),
    "where": lambda op, x, a, b: torch.where(getattr(torch, op.relation)(x, op.number), a, b) + 0 * x,  # so that x has a gradient
}


IN_EVALUATION = ("dropout", "stochastic_depth", "flash_attention", "attention_blocks", "top_k_routing")
"""Kinds that draw random numbers in training."""


def _close(actual: np.ndarray, expected: Any, where: str) -> None:
    np.testing.assert_allclose(actual, expected.detach().numpy(), rtol=1e-10, atol=1e-10, err_msg=where)


@pytest.mark.parametrize("kind", sorted(TORCH))
def test_operator_equals_torch(kind: str) -> None:
    for seed in SEEDS:
        _compare(kind, seed, draw(kind, seed, data=1 if kind in IN_EVALUATION else 0))


def _compare(kind: str, seed: int, case: Case) -> None:
    call = forward(case)
    gradients = backward(case, call)
    arrays, rects = (*case.inputs, *case.weights), (*call.reads.inputs, *call.reads.weights)
    tensors = [torch.tensor(a, requires_grad=a.dtype.kind == "f") for a in arrays]
    results = TORCH[kind](case.operator, *tensors)
    results = results if isinstance(results, tuple) else (results,)
    assert [tuple(r.shape) for r in results] == [spec.shape for spec in case.outputs]
    for number, (output, result) in enumerate(zip(call.outputs, results)):
        _close(output, result, f"example {seed} {case.operator}: output {number}")
    floats = [(result, torch.tensor(g)) for result, g in zip(results, case.grads) if result.is_floating_point()]
    if floats:
        torch.autograd.backward(*zip(*floats))
    for number, (gradient, tensor) in enumerate(zip(gradients, tensors)):
        if gradient is not None:
            gradient = embedded(gradient, rects[number], tensor.shape)
            _close(gradient, tensor.grad, f"example {seed} {case.operator}: gradient {number}")


@pytest.mark.parametrize("steps", [None, 1, 2, 3, 7])
@pytest.mark.parametrize("layers", [1, 2, 3])
def test_layers_of_lstm_equal_torch(layers: int, steps: int | None) -> None:
    samples, length, features, hidden = 3, 7, 4, 5
    torch.manual_seed(layers)
    reference = torch.nn.LSTM(features, hidden, layers, batch_first=True, dtype=torch.float64)
    x, h0, c0 = (
        torch.randn(shape, dtype=torch.float64, requires_grad=True)
        for shape in ((samples, length, features), (layers, samples, hidden), (layers, samples, hidden))
    )
    y, (h_n, c_n) = reference(x, (h0, c0))

    graph = OperatorGraph("float64")
    entry = ops.input(graph, x.shape, name="x")
    starts = [[ops.input(graph, (samples, hidden), name=f"{w}{i}") for i in range(layers)] for w in "hc"]
    output, (h, c) = ops.lstm(entry, hidden, layers, state=(starts[0], starts[1]), steps=steps, name="rnn")
    parameters = {
        f"rnn.l{i}.{name}": getattr(reference, f"{name}_l{i}").detach().numpy().reshape(4, hidden, *rest)
        for i in range(layers)
        for name, rest in (
            ("weight_ih", (hidden if i else features,)), ("weight_hh", (hidden,)), ("bias_ih", ()), ("bias_hh", ()),
        )
    }
    assert {p.name for p in graph.parameters} == set(parameters)  # the same names however the steps are cut
    feeds = {"x": x.detach().numpy()}
    for i in range(layers):
        feeds |= {f"h{i}": h0[i].detach().numpy(), f"c{i}": c0[i].detach().numpy()}
    results = [y, *h_n, *c_n]
    seeds = [torch.randn_like(r) for r in results]
    tensors, gradients = evaluate(graph, feeds, parameters, dict(zip([output, *h, *c], map(torch.Tensor.numpy, seeds))))
    for tensor, result in zip([output, *h, *c], results):
        _close(tensors[tensor], result, tensor.name)
    torch.autograd.backward(results, seeds)
    _close(gradients["x"], x.grad, "x")
    for i in range(layers):
        _close(gradients[f"h{i}"], h0.grad[i], f"h{i}")
        _close(gradients[f"c{i}"], c0.grad[i], f"c{i}")
        for name in ("weight_ih", "weight_hh", "bias_ih", "bias_hh"):
            flat = gradients[f"rnn.l{i}.{name}"]
            _close(flat.reshape(4 * hidden, *flat.shape[2:]), getattr(reference, f"{name}_l{i}").grad, f"{name} {i}")


def test_mean_cross_entropy_equals_torch_when_nothing_is_ignored() -> None:
    graph = OperatorGraph("float64")
    logits, target = ops.input(graph, (4, 3, 6), name="x"), ops.input(graph, (4, 3), "int64", name="t")
    loss = ops.cross_entropy(logits, target)
    numbers = np.random.default_rng(0)
    feeds = {"x": numbers.normal(size=(4, 3, 6)), "t": numbers.integers(0, 6, (4, 3))}
    tensors, _ = evaluate(graph, feeds, {}, {})
    expected = F.cross_entropy(torch.tensor(feeds["x"]).flatten(0, 1), torch.tensor(feeds["t"]).flatten())
    _close(tensors[loss], expected, "loss")


@pytest.mark.parametrize("causal", [False, True])
def test_attention_to_padded_memory_equals_torch(causal: bool) -> None:
    samples, steps, size, width, heads = 4, 5, 5, 6, 2
    numbers = np.random.default_rng(0)
    graph = OperatorGraph("float64")
    query, memory = (ops.input(graph, (samples, n, width), name=name) for n, name in ((steps, "q"), (size, "m")))
    tokens = ops.input(graph, (samples, size), "int64", name="tokens")
    y = ops.multi_head_attention(query, memory, heads, causal=causal, padding=(tokens, 0), name="mha")
    words = np.arange(size) < np.array([1, 3, 5, 2])[:, None]
    feeds = {
        "q": numbers.normal(size=query.shape), "m": numbers.normal(size=memory.shape), "tokens": words.astype(np.int64)
    }
    parameters = {p.name: numbers.normal(size=p.shape) for p in graph.parameters}
    seed = numbers.normal(size=y.shape)
    tensors, gradients = evaluate(graph, feeds, parameters, {y: seed})

    q, m = (torch.tensor(feeds[name], requires_grad=True) for name in "qm")
    weights = {name: torch.tensor(value, requires_grad=True) for name, value in parameters.items()}

    def project(x: Any, which: str) -> Any:
        flat = F.linear(x, weights[f"mha.{which}_proj.weight"], weights[f"mha.{which}_proj.bias"])
        return flat.unflatten(2, (heads, -1)).transpose(1, 2)

    seen = torch.tensor(words)[:, None, None, :]
    if causal:
        seen = seen & torch.ones(steps, size, dtype=torch.bool).tril()
    context = F.scaled_dot_product_attention(project(q, "q"), project(m, "k"), project(m, "v"), attn_mask=seen)
    out = F.linear(context.transpose(1, 2).flatten(2), weights["mha.out_proj.weight"], weights["mha.out_proj.bias"])
    _close(tensors[y], out, "output")
    out.backward(torch.tensor(seed))
    for name, tensor in (("q", q), ("m", m), *weights.items()):
        _close(gradients[name], tensor.grad, name)
    assert not gradients["m"][0, 1:].any()  # nothing flows to padding


def test_lengths_beyond_the_memory_are_refused() -> None:
    graph = OperatorGraph("float64")
    x, lengths = ops.input(graph, (2, 3), name="x"), ops.input(graph, (2,), "int64", name="lengths")
    ops.softmax(x, lengths=lengths, name="weights")
    with pytest.raises(ValueError, match="weights: lengths must be from 0 to 3, got 4"):
        evaluate(graph, {"x": np.zeros((2, 3)), "lengths": np.array([1, 4])}, {}, {})
