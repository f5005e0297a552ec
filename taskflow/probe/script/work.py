"""Work that is timed: PyTorch's operators by shape."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

import torch
from torch import nn

APART_BYTES, MOST_COPIES = 1 << 25, 8  # copies of a case's arrays have so many bytes, so that caches are as cold as in a step


SOFTMAX = 5  # operations for each pair of words


@dataclass(frozen=True)
class Case:
    """An operator with its sizes. ``group``: of operators that pass over memory alike. ``shapes``: of what it is given; negative
    sizes: integers below their amount. ``flops``: of forward; of a table the numbers that are looked up."""

    group: str
    name: str
    sizes: tuple[int, ...]
    shapes: tuple[tuple[int, ...], ...]
    flops: float
    results: int
    call: Callable[..., Any]

    def nbytes(self, dtype: torch.dtype) -> int:
        """Return the bytes that are read and written once."""
        size = dtype.itemsize
        given = sum(8 * prod(shape[1:]) if shape[0] < 0 else size * prod(shape) for shape in self.shapes)
        return int(given + size * self.results)


def linear(rows: int, terms: int, columns: int) -> Case:
    """A product with a layer's weight."""
    shapes = ((rows, terms), (columns, terms), (columns,))
    return Case("product", "linear", (rows, terms, columns), shapes, 2.0 * rows * terms * columns, rows * columns,
                nn.functional.linear)


def matmul(batches: int, rows: int, terms: int, columns: int) -> Case:
    """Products of a batch of matrices."""
    shapes = ((batches, rows, terms), (batches, terms, columns))
    flops = 2.0 * batches * rows * terms * columns
    return Case("product", "matmul", (batches, rows, terms, columns), shapes, flops, batches * rows * columns, torch.matmul)


def conv2d(samples: int, taken: int, given: int, height: int, width: int, kernel: int, stride: int) -> Case:
    """A convolution that pads to keep the size."""
    shapes = ((samples, taken, height, width), (given, taken, kernel, kernel))
    results = samples * given * -(-height // stride) * -(-width // stride)

    def call(x: Any, weight: Any) -> Any:
        return nn.functional.conv2d(x, weight, stride=stride, padding=kernel // 2)

    sizes = (samples, taken, given, height, width, kernel, stride)
    return Case("convolution", "conv2d", sizes, shapes, 2.0 * results * taken * kernel * kernel, results, call)


def attention(samples: int, heads: int, queries: int, keys: int, width: int, causal: int) -> Case:
    """Attention by the kernel that PyTorch chooses."""
    shapes = ((samples, heads, queries, width), *2 * ((samples, heads, keys, width),))

    def call(q: Any, k: Any, v: Any) -> Any:
        return nn.functional.scaled_dot_product_attention(q, k, v, is_causal=bool(causal))

    pairs = queries * (queries + 1) / 2 if causal else queries * keys
    flops = samples * heads * pairs * (4.0 * width + SOFTMAX)
    results = samples * heads * queries * width
    return Case("attention", "attention", (samples, heads, queries, keys, width, causal), shapes, flops, results, call)


def layer_norm(rows: int, width: int) -> Case:
    """Layer normalisation."""
    call = lambda x, weight, bias: nn.functional.layer_norm(x, (width,), weight, bias)  # noqa: E731
    return Case("norm", "layer_norm", (rows, width), ((rows, width), (width,), (width,)), 0.0, rows * width, call)


def rms_norm(rows: int, width: int) -> Case:
    """Normalisation by the root of the mean square."""
    call = lambda x, weight: nn.functional.rms_norm(x, (width,), weight)  # noqa: E731
    return Case("norm", "rms_norm", (rows, width), ((rows, width), (width,)), 0.0, rows * width, call)


def batch_norm(samples: int, channels: int, positions: int) -> Case:
    """Batch normalisation in training."""
    call = lambda x, weight, bias: nn.functional.batch_norm(x, None, None, weight, bias, training=True)  # noqa: E731
    shapes = ((samples, channels, positions), (channels,), (channels,))
    return Case("batch_norm", "batch_norm", (samples, channels, positions), shapes, 0.0, samples * channels * positions, call)


def passing(name: str, group: str, call: Callable[..., Any], given: int = 1) -> Callable[[int], Case]:
    """Return what makes cases of an operator that works element by element."""

    def made(elements: int) -> Case:
        shapes = ((elements // 64, 64),) * given
        return Case(group, name, (elements,), shapes, 0.0, elements // 64 * 64, call)

    return made


def softmax(rows: int, width: int) -> Case:
    """Softmax over rows."""
    return Case("softmax", "softmax", (rows, width), ((rows, width),), 0.0, rows * width, lambda x: torch.softmax(x, -1))


def cross_entropy(rows: int, classes: int) -> Case:
    """The mean loss of scores."""
    return Case("loss", "cross_entropy", (rows, classes), ((rows, classes), (-classes, rows)), 0.0, 1, nn.functional.cross_entropy)


def embedding(rows: int, words: int, width: int) -> Case:
    """Rows of a table."""
    call = lambda which, table: nn.functional.embedding(which, table)  # noqa: E731
    return Case("embedding", "embedding", (rows, words, width), ((-words, rows), (words, width)), rows * width, rows * width, call)


def pool(samples: int, channels: int, height: int, width: int) -> Case:
    """The largest of each four pixels."""
    shapes = ((samples, channels, height, width),)
    results = samples * channels * (height // 2) * (width // 2)
    return Case("pool", "pool", (samples, channels, height, width), shapes, 0.0, results, lambda x: nn.functional.max_pool2d(x, 2))


def turned(samples: int, heads: int, steps: int, width: int) -> Case:
    """A copy into another order of axes."""
    return Case("copy", "turned", (samples, heads, steps, width), ((samples, heads, steps, width),), 0.0,
                samples * heads * steps * width, lambda x: x.transpose(1, 2).contiguous())  # fmt: skip


def mean(elements: int) -> Case:
    """Means of rows."""
    rows = elements // 64
    return Case("other", "mean", (elements,), ((rows, 64),), 0.0, rows, lambda x: x.mean(-1))


def experts(rows: int, count: int, chosen: int, width: int, inner: int) -> Case:
    """Gated layers of experts, ``chosen`` of which each row is given to, in the order of the experts."""
    shapes = ((rows, width), (-count, rows, chosen), (count, 2 * inner, width), (count, width, inner), (rows, chosen))

    def call(x: Any, which: Any, wide: Any, narrow: Any, weights: Any) -> Any:
        order = which.view(-1).argsort()
        counts = torch.bincount(which.view(-1), minlength=count)
        gate, up = grouped(x[order // chosen], wide, counts).chunk(2, -1)
        made = grouped(nn.functional.silu(gate) * up, narrow, counts) * weights.view(-1)[order, None]
        return torch.zeros_like(x).index_add(0, order // chosen, made)

    flops = 6.0 * rows * chosen * width * inner
    return Case("product", "experts", (rows, count, chosen, width, inner), shapes, flops, rows * width, call)


def grouped(rows: Any, weights: Any, counts: Any) -> Any:
    """Products of as many rows with each expert's weights as ``counts`` says."""
    if hasattr(nn.functional, "grouped_mm"):
        return nn.functional.grouped_mm(rows, weights.transpose(1, 2), offs=counts.cumsum(0).to(torch.int32))
    return torch.cat([nn.functional.linear(some, one) for some, one in zip(rows.split(counts.tolist()), weights)])


MAKERS: dict[str, Callable[..., Case]] = {
    "linear": linear, "matmul": matmul, "conv2d": conv2d, "attention": attention, "layer_norm": layer_norm, "rms_norm": rms_norm,
    "batch_norm": batch_norm, "softmax": softmax, "cross_entropy": cross_entropy, "embedding": embedding, "pool": pool,
    "turned": turned, "experts": experts, "gelu": passing("gelu", "activation", nn.functional.gelu),
    "silu": passing("silu", "activation", nn.functional.silu), "relu": passing("relu", "activation", torch.relu),
    "add": passing("add", "residual", torch.add, 2), "mul": passing("mul", "other", torch.mul, 2),
    "dropout": passing("dropout", "residual", lambda x: nn.functional.dropout(x, 0.1)),
    "mean": mean, "view": passing("view", "view", lambda x: x.view(-1)),
}  # fmt: skip


def cases_of(named: Sequence[tuple[str, tuple[int, ...]]]) -> list[Case]:
    """Return the cases of some names with sizes."""
    return [MAKERS[name](*sizes) for name, sizes in named]


def usual(device: torch.device) -> list[tuple[str, tuple[int, ...]]]:
    """Return names and sizes that a machine is described by, without regard to any network: larger ones on a GPU."""
    gpu = device.type == "cuda"
    wide = (1024, 4096, 12288) if gpu else (96, 384, 1280)
    rows = (128, 1024, 8192) if gpu else (32, 256, 1152)
    elements = (1 << 14, 1 << 20, 1 << 24, 1 << 27) if gpu else (1 << 10, 1 << 15, 3 << 17, 1 << 21)
    found: list[tuple[str, tuple[int, ...]]] = [("linear", (n, wide[0], wide[1])) for n in rows]
    both = ((wide[0], wide[0]), (wide[1], wide[1]), (wide[2], wide[1]), (wide[1], wide[2]))
    found += [("linear", (rows[1], a, b)) for a, b in both]
    found += [("linear", (rows[2], a, b)) for a, b in ((wide[0], wide[0]), (wide[1], wide[0]), (wide[1], wide[1]))]
    found += [("matmul", (8, rows[1], 64, rows[1])), ("matmul", (8, rows[1], rows[1], 64)), ("matmul", (64, 64, 32, 64))]
    found += [("experts", (n, count, 2, wide[0], wide[1])) for n in rows[1:] for count in (4, 8)]
    channels, side = ((256, 512), 28) if gpu else ((24, 72), 12)
    found += [("conv2d", (8, a, b, side, side, k, s))
              for a, b in ((3, channels[0]), (channels[0],) * 2, (channels[1],) * 2) for k, s in ((3, 1), (1, 2))]
    lengths = (512, 2048, 4096) if gpu else (48, 160, 320)
    found += [("attention", (4, 8, n, n, 128 if gpu else 32, causal)) for n in lengths for causal in (0, 1)]
    for name in ("layer_norm", "rms_norm"):
        found += [(name, (n, width)) for n, width in ((rows[0], wide[0]), (rows[1], wide[1]), (rows[2], wide[1]))]
    found += [("batch_norm", (8, c, side * side)) for c in (8, *channels)]
    found += [("softmax", (n, width)) for n, width in ((rows[0], wide[0]), (rows[2], wide[1]))]
    words = 32000 if gpu else 1500
    found += [("cross_entropy", (n, c)) for n, c in ((rows[0], wide[0]), (rows[1], wide[1]), (rows[2] // 2, words))]
    found += [("embedding", (n, words, width)) for n in (rows[0], rows[2]) for width in wide[:2]]
    found += [("pool", (8, c, side, side)) for c in channels]
    found += [("turned", (4, 8, n, 128 if gpu else 32)) for n in lengths[:2]]
    found += [(name, (n,)) for name in ("add", "mul", "gelu", "silu", "relu", "mean") for n in elements]
    found += [("dropout", (n,)) for n in elements[1:3]]
    return [*found, ("view", (1 << 14,))]


def arrays_of(case: Case, dtype: torch.dtype, device: torch.device, most: float = MOST_COPIES) -> list[list[torch.Tensor]]:
    """Return several copies of a case's arguments, as many as ``most``."""
    copies = max(1, int(min(MOST_COPIES, most, APART_BYTES // max(1, case.nbytes(dtype)))))

    def made(shape: tuple[int, ...]) -> torch.Tensor:
        if shape[0] < 0:
            return torch.randint(-shape[0], shape[1:], device=device)
        return torch.randn(shape, dtype=torch.float32, device=device).to(dtype).requires_grad_()

    return [[made(shape) for shape in case.shapes] for _ in range(copies)]


def phases_of(case: Case, arrays: Sequence[Sequence[torch.Tensor]]) -> list[Callable[[], Any]]:
    """Return forward and backward of all copies, one after the other. Both keep what they make until the next time."""
    made: list[Any] = []
    trained = [value for given in arrays for value in given if value.requires_grad]
    with torch.no_grad():
        ones = [torch.ones_like(case.call(*given)) for given in arrays]

    def forward() -> None:
        made[:] = [case.call(*given) for given in arrays]

    def backward() -> Any:
        return torch.autograd.grad(made, trained, ones)

    return [forward, backward]
