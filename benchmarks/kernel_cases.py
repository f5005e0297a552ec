"""The kernels that benchmarks/kernels.py times beside PyTorch: one call of a kernel set, and torch's operator for the same.

PyTorch's calls are its own backward operators (torch.ops.aten), so that neither autograd nor a graph is timed. They
allocate their results; the kernel sets write into arrays that they are given.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from taskflow.kernels import KernelSet
from taskflow.models import BLOCKS

Call = Callable[[], object]


@dataclass(frozen=True, slots=True)
class Case:
    """A row: how a kernel set does it, and how torch does (None: it has nothing of the kind)."""

    name: str
    ours: Callable[[KernelSet], Call]
    torch: Callable[[Any], Call] | None = None


def array(dtype: Any, *shape: int) -> Any:
    """Normal numbers, the same for the same shape."""
    return np.random.default_rng(sum(shape)).normal(size=shape).astype(dtype)


def pooling(dtype: Any, images: int) -> Iterator[Case]:
    """The networks' poolings: ResNet-101's first, Inception-v3's, ResNet-101's last."""
    for label, shape, kernel, stride, pad in (
        (f"max_pool 3x3/2 {images} x 64 x 112", (images, 64, 112, 112), 3, 2, 1),
        (f"max_pool 3x3/2 {images} x 192 x 71", (images, 192, 71, 71), 3, 2, 0),
        (f"max_pool 2x2/2 {images} x 6 x 28", (images, 6, 28, 28), 2, 2, 0),
    ):
        size = [(n + 2 * pad - kernel) // stride + 1 for n in shape[2:]]
        around = tuple((pad, (o - 1) * stride + kernel - n - pad) for o, n in zip(size, shape[2:]))
        x, dx, dy = array(dtype, *shape), np.empty(shape, dtype), array(dtype, *shape[:2], *size)
        out, index = np.empty_like(dy), np.zeros(dy.shape, np.uint8)
        seen = np.ascontiguousarray(x[..., : x.shape[2] + min(0, around[0][1]), : x.shape[3] + min(0, around[1][1])])
        gradient = np.empty_like(seen)
        given = ((kernel, kernel), (stride, stride), tuple((low, max(0, high)) for low, high in around))

        def forward(s: KernelSet, given=given, seen=seen, out=out, index=index) -> Call:  # type: ignore[no-untyped-def]
            return lambda: s.max_pool2d(seen, *given, out=out, index=index)

        def backward(s, given=given, seen=seen, out=out, index=index, dy=dy, into=gradient) -> Call:  # type: ignore[no-untyped-def]
            s.max_pool2d(seen, *given, out=out, index=index)
            return lambda: s.max_pool2d_backward(dy, index, *given, out=into)

        def torch_forward(t, x=x, k=kernel, s=stride, p=pad) -> Call:  # type: ignore[no-untyped-def]
            a = t.from_numpy(x)
            return lambda: t.ops.aten.max_pool2d_with_indices(a, [k, k], [s, s], [p, p])

        def torch_backward(t, x=x, dy=dy, k=kernel, s=stride, p=pad) -> Call:  # type: ignore[no-untyped-def]
            a, g = t.from_numpy(x), t.from_numpy(dy)
            which = t.ops.aten.max_pool2d_with_indices(a, [k, k], [s, s], [p, p])[1]
            return lambda: t.ops.aten.max_pool2d_with_indices_backward(g, a, [k, k], [s, s], [p, p], [1, 1], False, which)

        yield Case(label, forward, torch_forward)
        yield Case(f"{label} backward", backward, torch_backward)
    for label, shape, kernel, pad in (
        (f"avg_pool 3x3/1 {images} x 288 x 35", (images, 288, 35, 35), 3, 1),
        (f"global avg_pool {images} x 2048 x 7", (images, 2048, 7, 7), 7, 0),
    ):
        size = tuple(n + 2 * pad - kernel + 1 for n in shape[2:])
        x, dx, dy = array(dtype, *shape), np.empty(shape, dtype), array(dtype, *shape[:2], *size)
        out, scale = np.empty_like(dy), np.full(size, 1 / kernel**2, dtype)
        given = ((kernel, kernel), (1, 1), ((pad, pad), (pad, pad)), scale)
        options = ([kernel, kernel], [1, 1], [pad, pad], False, True, None)

        def torch_sum(t, x=x, o=options) -> Call:  # type: ignore[no-untyped-def]
            a = t.from_numpy(x)
            return lambda: t.ops.aten.avg_pool2d(a, *o)

        def torch_sum_backward(t, x=x, dy=dy, o=options) -> Call:  # type: ignore[no-untyped-def]
            a, g = t.from_numpy(x), t.from_numpy(dy)
            return lambda: t.ops.aten.avg_pool2d_backward(g, a, *o)

        yield Case(label, lambda s, x=x, g=given, y=out: lambda: s.sum_pool2d(x, *g, out=y), torch_sum)
        yield Case(
            f"{label} backward", lambda s, dy=dy, g=given, y=dx: lambda: s.sum_pool2d_backward(dy, *g, out=y),
            torch_sum_backward,
        )


def normalisation(dtype: Any, images: int) -> Iterator[Case]:
    """Batch norm as the operators call it (moments and affine; products and two affines), layer norm of 2560 rows."""
    for channels, side in ((64, 112), (1024, 14), (2048, 7)):
        shape = (images, channels, side * side)
        x, dy, out = array(dtype, *shape), array(dtype, *shape), np.empty(shape, dtype)
        each, sums = np.ones(channels, dtype), np.empty((2, channels))
        square = (images, channels, side, side)

        def forward(s, x=x, each=each, sums=sums, out=out) -> Call:  # type: ignore[no-untyped-def]
            return lambda: (s.channel_moments(x, sums), s.channel_affine(x, each, each, out))

        def backward(s, x=x, dy=dy, each=each, sums=sums, out=out) -> Call:  # type: ignore[no-untyped-def]
            return lambda: (
                s.channel_products(x, dy, sums), s.channel_affine(dy, each, each, out),
                s.channel_affine(x, each, each, out, True),
            )

        def torch_forward(t, x=x, each=each, square=square) -> Call:  # type: ignore[no-untyped-def]
            a, e = t.from_numpy(x).view(square), t.from_numpy(each)
            return lambda: t.ops.aten.native_batch_norm(a, e, e, e.clone(), e.clone(), True, 0.1, 1e-5)

        def torch_backward(t, x=x, dy=dy, each=each, square=square) -> Call:  # type: ignore[no-untyped-def]
            a, g, e = t.from_numpy(x).view(square), t.from_numpy(dy).view(square), t.from_numpy(each)
            _, mean, inverse = t.ops.aten.native_batch_norm(a, e, e, e.clone(), e.clone(), True, 0.1, 1e-5)
            return lambda: t.ops.aten.native_batch_norm_backward(g, a, e, e, e, mean, inverse, True, 1e-5, [True] * 3)

        yield Case(f"batch_norm {images} x {channels} x {side}", forward, torch_forward)
        yield Case(f"batch_norm {images} x {channels} x {side} backward", backward, torch_backward)
    rows, width = 2560, 1024
    x, dy, out = array(dtype, rows, width), array(dtype, rows, width), np.empty((rows, width), dtype)
    weight, bias, statistics = array(dtype, width), array(dtype, width), np.empty((rows, 2), dtype)

    def layer_backward(s: KernelSet) -> Call:
        s.layer_norm(x, weight, bias, 1e-5, out, statistics)
        sums = np.empty((2, width), dtype)
        return lambda: s.layer_norm_backward(x, weight, statistics, dy, out, sums)

    def torch_layer(t: Any) -> Call:
        a, w, b = map(t.from_numpy, (x, weight, bias))
        return lambda: t.ops.aten.native_layer_norm(a, [width], w, b, 1e-5)

    def torch_layer_backward(t: Any) -> Call:
        a, g, w, b = map(t.from_numpy, (x, dy, weight, bias))
        _, mean, inverse = t.ops.aten.native_layer_norm(a, [width], w, b, 1e-5)
        return lambda: t.ops.aten.native_layer_norm_backward(g, a, [width], mean, inverse, w, b, [True] * 3)

    yield Case("layer_norm 2560 x 1024", lambda s: lambda: s.layer_norm(x, weight, bias, 1e-5, out, statistics), torch_layer)
    yield Case("layer_norm 2560 x 1024 backward", layer_backward, torch_layer_backward)


def pointwise(dtype: Any) -> Iterator[Case]:
    """Activations and dropout of 2560 x 1024 elements, 10 MB in float32."""
    shape = (2560, 1024)
    x, dy, out = array(dtype, *shape), array(dtype, *shape), np.empty(shape, dtype)
    aten: dict[str, Callable[[Any, Any, Any], object]] = {
        "relu": lambda t, g, y: t.ops.aten.threshold_backward(g, y, 0),
        "sigmoid": lambda t, g, y: t.ops.aten.sigmoid_backward(g, y),
        "tanh": lambda t, g, y: t.ops.aten.tanh_backward(g, y),
    }
    for name, call in aten.items():
        def torch_forward(t, name=name) -> Call:  # type: ignore[no-untyped-def]
            a, function = t.from_numpy(x), getattr(t, name)
            return lambda: function(a)

        def torch_backward(t, call=call) -> Call:  # type: ignore[no-untyped-def]
            g, y = t.from_numpy(dy), t.from_numpy(x)
            return lambda: call(t, g, y)

        yield Case(f"{name} 2560 x 1024", lambda s, n=name: lambda: s.activate(n, x, out), torch_forward)
        yield Case(f"{name} 2560 x 1024 backward", lambda s, n=name: lambda: s.activate_backward(n, x, dy, out), torch_backward)
    for how in ("none", "tanh"):
        def torch_gelu(t, how=how) -> Call:  # type: ignore[no-untyped-def]
            a = t.from_numpy(x)
            return lambda: t.ops.aten.gelu(a, approximate=how)

        def torch_gelu_backward(t, how=how) -> Call:  # type: ignore[no-untyped-def]
            a, g = t.from_numpy(x), t.from_numpy(dy)
            return lambda: t.ops.aten.gelu_backward(g, a, approximate=how)

        yield Case(f"gelu ({how}) 2560 x 1024", lambda s, h=how: lambda: s.gelu(x, h == "tanh", out), torch_gelu)
        yield Case(
            f"gelu ({how}) 2560 x 1024 backward", lambda s, h=how: lambda: s.gelu_backward(x, h == "tanh", dy, out),
            torch_gelu_backward,
        )
    mask = np.ones(shape, bool)

    def torch_dropout(t: Any) -> Call:
        a = t.from_numpy(x)
        return lambda: t.ops.aten.native_dropout(a, 0.5, True)

    def torch_dropout_backward(t: Any) -> Call:
        g, m = t.from_numpy(dy), t.from_numpy(mask)
        return lambda: t.ops.aten.native_dropout_backward(g, m, 2.0)

    yield Case("dropout 2560 x 1024", lambda s: lambda: s.dropout((1, 2), 3, shape, (0, 0), 0.5, x, out, mask), torch_dropout)
    yield Case(
        "dropout 2560 x 1024 backward", lambda s: lambda: s.dropout_backward(mask, 0.5, dy, out), torch_dropout_backward
    )


def rows(dtype: Any) -> Iterator[Case]:
    """Softmax of attention's scores and of a vocabulary, cross-entropy, embedding."""
    heads, steps = 64 * 16, 64
    scores, weights = array(dtype, heads * steps, steps), np.empty((heads * steps, steps), dtype)
    ends = np.tile(np.arange(1, steps + 1), heads)

    def torch_causal(t: Any) -> Call:
        a, seen = t.from_numpy(scores).view(heads, steps, steps), t.ones(steps, steps, dtype=t.bool).tril()
        return lambda: t.softmax(a.masked_fill(~seen, -t.inf), -1)

    yield Case("causal softmax 1024 x 64 x 64", lambda s: lambda: s.softmax(scores, weights, ends), torch_causal)
    count, classes = 256, 32_000
    logits, y = array(dtype, count, classes), np.empty((count, classes), dtype)
    target = np.arange(count) * 37 % classes

    def torch_loss(t: Any, smoothing: float) -> Call:
        a, b = t.from_numpy(logits), t.from_numpy(target)
        return lambda: t.nn.functional.cross_entropy(a, b, reduction="sum", label_smoothing=smoothing)

    def torch_loss_backward(t: Any) -> Call:
        a, b = t.from_numpy(logits), t.from_numpy(target)
        logs = t.log_softmax(a, -1)
        one = t.ones((), dtype=a.dtype)
        total = t.full((), float(count), dtype=a.dtype)

        def run() -> None:
            g = t.ops.aten.nll_loss_backward(one, logs, b, None, 2, -100, total)
            t.ops.aten._log_softmax_backward_data(g, logs, -1, a.dtype)

        return run

    for smoothing, label in ((0.0, "cross_entropy"), (0.1, "smoothed cross_entropy")):
        yield Case(
            f"{label} 256 x 32000", lambda s, e=smoothing: lambda: s.cross_entropy(logits, target, -100, y, e),
            lambda t, e=smoothing: torch_loss(t, e),
        )
    yield Case(
        "cross_entropy 256 x 32000 backward",
        lambda s: lambda: s.cross_entropy_backward(y, target, -100, 1.0, y), torch_loss_backward,
    )
    split, pairs, shares = (classes, BLOCKS, 0), np.empty((count, 2 * BLOCKS)), np.empty((count, BLOCKS))
    dx = np.empty_like(y)  # in place, numbers would shrink from call to call until they are denormal

    def in_blocks(s: Any) -> Call:
        def run() -> None:
            s.class_blocks(logits, target, -100, split, y, pairs)
            s.cross_entropy_of_blocks(pairs, target, -100, shares)

        return run

    def in_blocks_backward(s: Any) -> Call:
        def run() -> None:
            s.cross_entropy_of_blocks_backward(shares, target, -100, 1.0, pairs)
            s.class_blocks_backward(y, target, -100, split, pairs, dx)

        return run

    yield Case(f"cross_entropy in {BLOCKS} blocks 256 x 32000", in_blocks, lambda t: torch_loss(t, 0.0))
    yield Case(f"cross_entropy in {BLOCKS} blocks 256 x 32000 backward", in_blocks_backward, torch_loss_backward)
    index, dy, table = np.arange(2560) * 7919 % 10_000, array(dtype, 2560, 512), np.zeros((10_000, 512), dtype)

    def torch_embedding(t: Any) -> Call:
        g, i = t.from_numpy(dy), t.from_numpy(index)
        return lambda: t.ops.aten.embedding_dense_backward(g, i, 10_000, -1, False)

    yield Case(
        "embedding 2560 of 10000 x 512 backward", lambda s: lambda: s.embedding_backward(index, 0, dy, table), torch_embedding
    )


def convolution(dtype: Any, images: int) -> Iterator[Case]:
    """The fallback without a library: columns and a matrix product."""
    for channels, side, kernel, stride in ((64, 56, 3, 1), (256, 14, 3, 1), (512, 28, 1, 2)):
        pad, size = kernel // 2, (side - 1) // stride + 1
        x, weight = array(dtype, images, channels, side, side), array(dtype, channels, channels, kernel, kernel)
        dy, out = array(dtype, images, channels, size, size), np.empty((images, channels, size, size), dtype)
        dx, dw = np.empty_like(x), np.empty_like(weight)
        after = (size - 1) * stride + kernel - side - pad
        if after < 0:
            x, dx = (np.ascontiguousarray(a[..., :after, :after]) for a in (x, dx))
        given = ((stride, stride), ((pad, max(0, after)),) * 2, (1, 1), 1)

        def forward(s, x=x, w=weight, g=given, out=out) -> Call:  # type: ignore[no-untyped-def]
            return lambda: s.conv2d(x, w, None, *g, out=out)

        def backward(s, x=x, w=weight, g=given, dy=dy, dx=dx, dw=dw) -> Call:  # type: ignore[no-untyped-def]
            return lambda: (s.conv2d_backward_data(dy, w, *g, out=dx), s.conv2d_backward_weight(x, dy, *g, out=dw))

        def torch_forward(t, x=x, w=weight, s=stride, p=pad) -> Call:  # type: ignore[no-untyped-def]
            a, b = t.from_numpy(x), t.from_numpy(w)
            return lambda: t.nn.functional.conv2d(a, b, None, s, p)

        def torch_backward(t, x=x, w=weight, dy=dy, s=stride, p=pad) -> Call:  # type: ignore[no-untyped-def]
            a, b, g = t.from_numpy(x), t.from_numpy(w), t.from_numpy(dy)
            return lambda: t.ops.aten.convolution_backward(
                g, a, b, None, [s, s], [p, p], [1, 1], False, [0, 0], 1, [True, True, False]
            )

        label = f"conv {kernel}x{kernel}/{stride} {images} x {channels} x {side}"
        yield Case(label, forward, torch_forward)
        yield Case(f"{label} backward", backward, torch_backward)


def cases(dtype: Any, images: int) -> list[Case]:
    """All of them."""
    return [
        *pooling(dtype, images), *normalisation(dtype, images), *pointwise(dtype), *rows(dtype), *convolution(dtype, images)
    ]
