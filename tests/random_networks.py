"""Random small networks in float64, of all operators that fit, for what must hold of every network."""

from __future__ import annotations

from collections.abc import Callable
from math import prod
from random import Random
from typing import Any

import numpy as np

import taskflow as tf
from taskflow.graph import OperatorGraph
from taskflow.operators.tensor import Tensor
from taskflow.rules import SGD, Adam, AdamW, UpdateRule

MOST_ELEMENTS = 6000  # of a tensor
RULES: tuple[UpdateRule, ...] = (
    SGD(0.01), SGD(0.01, momentum=0.9, weight_decay=0.01),
    # A large epsilon, since Adam divides gradients that are zero but for rounding by their own size.
    Adam(0.003, eps=1e-3), AdamW(0.003, eps=1e-3),
)
Grow = Callable[[Tensor, list[Tensor], Random], Tensor]


def _like(x: Tensor, pool: list[Tensor], r: Random) -> Tensor:
    return r.choice([t for t in pool if t.shape == x.shape])


def _convolved(x: Tensor, pool: list[Tensor], r: Random) -> Tensor:
    groups = r.choice((1, 1, 1, x.shape[1]))
    return tf.conv2d(
        x, r.choice((2, 3, 4)) if groups == 1 else groups, r.choice((1, 2, 3, (1, 3))), stride=r.choice((1, 1, 2)),
        padding=r.choice((0, 1, (1, 0))), dilation=r.choice((1, 1, 2)), groups=groups, bias=r.random() < 0.5,
    )


def _narrowed(x: Tensor, pool: list[Tensor], r: Random) -> Tensor:
    dim = r.randrange(1, len(x.shape))
    start = r.randrange(x.shape[dim])
    return tf.narrow(x, dim, start, r.randint(1, x.shape[dim] - start))


def _joined(x: Tensor, pool: list[Tensor], r: Random, dim: int) -> Tensor:
    def others(t: Tensor) -> tuple[int, ...]:
        return (*t.shape[:dim], *t.shape[dim + 1:])

    return tf.concat([x, r.choice([t for t in pool if others(t) == others(x)])], dim)


def _selected(x: Tensor, pool: list[Tensor], r: Random) -> Tensor:
    n, steps, features = x.shape
    return tf.reshape(tf.select(x, 1, r.randrange(steps)), (n, 1, features))


def _attending(x: Tensor, pool: list[Tensor], r: Random) -> Tensor:
    heads = r.choice([h for h in (1, 2, 3) if x.shape[2] % h == 0])
    return tf.multi_head_attention(x, _like(x, pool, r), heads, causal=r.random() < 0.5)


def _fused(x: Tensor, pool: list[Tensor], r: Random) -> Tensor:
    """Fused attention in heads of the features, of which two or three may share a key head."""
    n, steps, features = x.shape
    heads = r.choice([h for h in (1, 2, 3, 6) if features % h == 0])
    groups = r.choice([g for g in (1, 2, 3, 6) if heads % g == 0])
    other = r.choice([t for t in pool if t.shape[::2] == x.shape[::2]])
    causal, each = r.random() < 0.7, features // heads
    q = tf.reshape(x, (n, steps, heads, each))
    k, v = (tf.reshape(tf.linear(other, groups * each), (n, other.shape[1], groups, each)) for _ in range(2))
    if each % 2 == 0:
        q, k = tf.rotary(q, 10.0), tf.rotary(k, 10.0)
    y = tf.flash_attention(
        q, k, v, causal=causal, window=r.choice((None, 1, 2)) if causal else None, dropout=r.choice((0.0, 0.3)),
        key_blocks=r.choice((None, 1, min(3, other.shape[1]))),
    )
    return tf.reshape(y, x.shape)


def _experts(x: Tensor, pool: list[Tensor], r: Random) -> Tensor:
    """A layer of experts, by places or without a capacity, with the input passing by."""
    experts, features = r.choice((2, 3, 4)), x.shape[2]
    scores = tf.linear(x, experts)
    if r.random() < 0.4:
        weights, chosen, loss, _, _ = tf.top_k_routing(scores, 2)
        y = tf.einsum("gskm,gsk->gsm", tf.routed_linear(x, chosen, experts, features), weights)
    else:
        places = r.choice((1, 2, 4))
        weights, slots, loss, _, _ = tf.top2_gating(scores, places, count_all=r.random() < 0.5)
        y = tf.combine(tf.expert_linear(tf.dispatch(x, slots, experts, places), features), weights, slots)
    return tf.add(x, tf.mul(y, tf.reshape(loss, (x.shape[0], 1, 1))) if r.random() < 0.3 else y)


IMAGES: dict[str, Grow] = {  # (N, C, H, W)
    "conv2d": _convolved,
    "conv_transpose2d": lambda x, p, r: tf.conv_transpose2d(x, r.choice((1, 2, 3)), r.choice((1, 2, 3)), stride=r.choice((1, 2))),
    "max_pool2d": lambda x, p, r: tf.max_pool2d(x, r.choice((2, 3, (1, 2))), r.choice((None, 1, 2)), r.choice((0, 0, 1))),
    "avg_pool2d": lambda x, p, r: tf.avg_pool2d(
        x, r.choice((2, 3)), r.choice((None, 1)), r.choice((0, 1)), count_include_pad=r.random() < 0.5
    ),
    "adaptive_avg_pool2d": lambda x, p, r: tf.adaptive_avg_pool2d(x, r.choice((1, 2, 3))),
    "normalize": lambda x, p, r: tf.batch_norm(x),
    "group_norm": lambda x, p, r: tf.group_norm(x, r.choice([d for d in range(1, x.shape[1] + 1) if x.shape[1] % d == 0])),
    "relu": lambda x, p, r: tf.relu(x),
    "gelu": lambda x, p, r: tf.gelu(x, r.choice(("none", "tanh"))),
    "hardswish": lambda x, p, r: tf.hardswish(x),
    "add": lambda x, p, r: tf.add(x, _like(x, p, r)),
    "mul": lambda x, p, r: tf.mul(x, _like(x, p, r)),
    "concat": lambda x, p, r: _joined(x, p, r, 1),
    "pad": lambda x, p, r: tf.pad(x, [r.randint(0, 2) for _ in range(4)], r.choice((0.0, 0.5))),
    "narrow": _narrowed,
    "dropout": lambda x, p, r: tf.dropout(x, 0.3),
    "stochastic_depth": lambda x, p, r: tf.stochastic_depth(x, 0.3),
    "add_weight": lambda x, p, r: tf.add_weight(x, (x.shape[1], 1, 1)),
    "transpose": lambda x, p, r: tf.transpose(x, 2, 3),
    "split": lambda x, p, r: r.choice(tf.split(x, max(1, x.shape[1] // 2), 1)),
}
SEQUENCES: dict[str, Grow] = {  # (N, steps, features)
    "linear": lambda x, p, r: tf.linear(x, r.choice((1, 3, 4, 6)), bias=r.random() < 0.6),
    "lstm": lambda x, p, r: tf.lstm(x, r.choice((2, 3, 4)), r.choice((1, 2)), steps=r.choice((None, 1, 2)))[0],
    "softmax": _attending,
    "layer_norm": lambda x, p, r: tf.layer_norm(x),
    "matmul": lambda x, p, r: tf.matmul(x, x, transpose_other=True),
    "einsum": lambda x, p, r: tf.einsum("ntf,nsf->nts", x, r.choice([t for t in p if t.shape[2] == x.shape[2]])),
    "sigmoid": lambda x, p, r: tf.sigmoid(x),
    "tanh": lambda x, p, r: tf.tanh(tf.shift(x, 0.3)),
    "sub": lambda x, p, r: tf.sub(x, _like(x, p, r)),
    "concat": lambda x, p, r: _joined(x, p, r, 2),
    "dropout": lambda x, p, r: tf.dropout(x, 0.4),
    "positional_encoding": lambda x, p, r: tf.positional_encoding(x),
    "transpose": lambda x, p, r: tf.transpose(x, 1, 2),
    "reshape": lambda x, p, r: tf.reshape(x, (x.shape[0], x.shape[2], x.shape[1])),
    "mul_weight": lambda x, p, r: tf.mul_weight(x, r.choice((x.shape[2:], (x.shape[1], 1), x.shape[1:]))),
    "reduce": lambda x, p, r: tf.sum(x, 1, keepdim=True),
    "select": _selected,
    "rms_norm": lambda x, p, r: tf.rms_norm(x),
    "silu": lambda x, p, r: tf.silu(x),
    "swiglu": lambda x, p, r: tf.swiglu(x, _like(x, p, r)),
    "flash_attention": _fused,
    "top_k_routing": _experts,
}


def network(seed: int) -> tuple[OperatorGraph, dict[str, Any], UpdateRule, float | None]:
    """A graph, a batch for it, an update rule and a norm to clip gradients to: the same for the same seed."""
    r, numbers, graph = Random(seed), np.random.default_rng(seed), OperatorGraph("float64", f"random {seed}")
    n, feeds = r.choice((1, 2, 3, 5, 6, 8)), {}
    ways, shape = IMAGES, (n, r.choice((1, 2, 3)), r.choice((1, 5, 6, 8)), r.choice((4, 7)))
    kind = r.choice(("images", "sequences", "words"))
    if kind != "images":
        ways, shape = SEQUENCES, (n, r.choice((1, 3, 4, 6)), r.choice((2, 3, 6)))
    if kind == "words":
        feeds["x"] = numbers.integers(0, 7, shape[:2])
        x = tf.embedding(tf.input(graph, shape[:2], "int64", name="x"), 7, shape[2])
    else:
        feeds["x"] = numbers.standard_normal(shape)
        x = tf.input(graph, shape, name="x")
    pool = grown(x, ways, r)
    for number in range(r.choice((1, 1, 2))):
        x = r.choice(pool) if number else pool[-1]
        _lose(graph, x, f"wanted {number}", feeds, r, numbers)
    return graph, feeds, r.choice(RULES), r.choice((None, None, 0.1))


def grown(x: Tensor, ways: dict[str, Grow], r: Random) -> list[Tensor]:
    """``x`` and what random operators make of it and of one another, as far as they fit (a window may be larger than its image)."""
    pool = [x]
    for _ in range(r.randint(2, 9)):
        try:
            made = ways[r.choice(list(ways))](r.choice(pool[-3:]), pool, r)
        except ValueError:
            continue
        if prod(made.shape) <= MOST_ELEMENTS:
            pool.append(made)
    return pool


def _lose(graph: OperatorGraph, x: Tensor, name: str, feeds: dict[str, Any], r: Random, numbers: np.random.Generator) -> None:
    """Add a loss of ``x``: of classes, of distances, or its mean."""
    kind = r.choice(("classes", "distances", "mean"))
    if kind == "mean":
        return graph.minimize(tf.mean(x))
    if kind == "distances":
        feeds[name] = numbers.standard_normal(x.shape)
        return graph.minimize(tf.mse_loss(x, tf.input(graph, x.shape, name=name), reduction=r.choice(("mean", "sum"))))
    scores = tf.linear(tf.flatten(x, 1), r.choice((2, 5, 9)))
    labels = numbers.integers(0, scores.shape[1], scores.shape[:1])
    if r.random() < 0.4:
        labels[1:][numbers.random(len(labels) - 1) < 0.3] = -100  # left out
    feeds[name] = labels
    return graph.minimize(tf.cross_entropy(
        scores, tf.input(graph, scores.shape[:1], "int64", name=name), reduction=r.choice(("mean", "sum")),
        label_smoothing=r.choice((0.0, 0.0, 0.1)), blocks=r.choice((None, 2)),
    ))
