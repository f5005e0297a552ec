"""Cases of operators that a probe times, by name and sizes: what each is given, computes and moves. For any framework."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import prod

SOFTMAX = 5  # operations for each pair of words
CELL = 4  # operations for each element of a recurrent layer's gates


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

    def nbytes(self, itemsize: int) -> int:
        """Return the bytes that are read and written once, of numbers of so many bytes."""
        given = sum(8 * prod(shape[1:]) if shape[0] < 0 else itemsize * prod(shape) for shape in self.shapes)
        return int(given + itemsize * self.results)


def linear(rows: int, terms: int, columns: int) -> Case:
    """A product with a layer's weight."""
    shapes = ((rows, terms), (columns, terms), (columns,))
    return Case("product", "linear", (rows, terms, columns), shapes, 2.0 * rows * terms * columns, rows * columns)


def matmul(batches: int, rows: int, terms: int, columns: int) -> Case:
    """Products of a batch of matrices."""
    shapes = ((batches, rows, terms), (batches, terms, columns))
    flops = 2.0 * batches * rows * terms * columns
    return Case("product", "matmul", (batches, rows, terms, columns), shapes, flops, batches * rows * columns)


def conv2d(samples: int, taken: int, given: int, height: int, width: int, kernel: int, stride: int) -> Case:
    """A convolution that pads to keep the size."""
    shapes = ((samples, taken, height, width), (given, taken, kernel, kernel))
    results = samples * given * -(-height // stride) * -(-width // stride)
    sizes = (samples, taken, given, height, width, kernel, stride)
    return Case("convolution", "conv2d", sizes, shapes, 2.0 * results * taken * kernel * kernel, results)


def depthwise(samples: int, channels: int, height: int, width: int, kernel: int) -> Case:
    """A convolution of each channel by itself that keeps the size."""
    shapes = ((samples, channels, height, width), (channels, 1, kernel, kernel))
    results = samples * channels * height * width
    return Case("convolution", "depthwise", (samples, channels, height, width, kernel), shapes, 2.0 * results * kernel**2, results)


def recurrent(name: str, gates: int) -> Callable[[int, int, int, int], Case]:
    """Return what makes cases of a recurrent layer, which has a product for each step."""

    def make(samples: int, steps: int, taken: int, hidden: int) -> Case:
        shapes = ((samples, steps, taken), (gates * hidden, taken), (gates * hidden, hidden), *2 * ((gates * hidden,),))
        flops = samples * steps * gates * hidden * (2.0 * (taken + hidden) + CELL)
        return Case("recurrent", name, (samples, steps, taken, hidden), shapes, flops, samples * steps * hidden)

    return make


def attention(samples: int, heads: int, queries: int, keys: int, width: int, causal: int) -> Case:
    """Attention by the kernel that the framework chooses."""
    shapes = ((samples, heads, queries, width), *2 * ((samples, heads, keys, width),))
    pairs = queries * (queries + 1) / 2 if causal else queries * keys
    flops = samples * heads * pairs * (4.0 * width + SOFTMAX)
    results = samples * heads * queries * width
    return Case("attention", "attention", (samples, heads, queries, keys, width, causal), shapes, flops, results)


def layer_norm(rows: int, width: int) -> Case:
    """Layer normalisation."""
    return Case("norm", "layer_norm", (rows, width), ((rows, width), (width,), (width,)), 0.0, rows * width)


def rms_norm(name: str) -> Callable[[int, int], Case]:
    """Return what makes cases of a normalisation by the root of the mean square: a framework's, or of elementary functions."""

    def make(rows: int, width: int) -> Case:
        return Case("norm", name, (rows, width), ((rows, width), (width,)), 0.0, rows * width)

    return make


def rotary(samples: int, steps: int, heads: int, width: int) -> Case:
    """Positions as rotations of pairs of numbers, of elementary functions."""
    sizes = (samples, steps, heads, width)
    return Case("rotary", "rotary", sizes, (sizes,), 0.0, samples * steps * heads * width)


def batch_norm(samples: int, channels: int, positions: int) -> Case:
    """Batch normalisation in training."""
    shapes = ((samples, channels, positions), (channels,), (channels,))
    return Case("batch_norm", "batch_norm", (samples, channels, positions), shapes, 0.0, samples * channels * positions)


def passing(name: str, group: str, given: int = 1) -> Callable[[int], Case]:
    """Return what makes cases of an operator that works element by element."""

    def make(elements: int) -> Case:
        shapes = ((elements // 64, 64),) * given
        return Case(group, name, (elements,), shapes, 0.0, elements // 64 * 64)

    return make


def softmax(rows: int, width: int) -> Case:
    """Softmax over rows."""
    return Case("softmax", "softmax", (rows, width), ((rows, width),), 0.0, rows * width)


def cross_entropy(rows: int, classes: int) -> Case:
    """The mean loss of scores."""
    return Case("loss", "cross_entropy", (rows, classes), ((rows, classes), (-classes, rows)), 0.0, 1)


def embedding(rows: int, words: int, width: int) -> Case:
    """Rows of a table."""
    return Case("embedding", "embedding", (rows, words, width), ((-words, rows), (words, width)), rows * width, rows * width)


def pool(samples: int, channels: int, height: int, width: int) -> Case:
    """The largest of each four pixels."""
    results = samples * channels * (height // 2) * (width // 2)
    sizes = (samples, channels, height, width)
    return Case("pool", "pool", sizes, (sizes,), 0.0, results)


def turned(samples: int, heads: int, steps: int, width: int) -> Case:
    """A copy into another order of axes."""
    sizes = (samples, heads, steps, width)
    return Case("copy", "turned", sizes, (sizes,), 0.0, samples * heads * steps * width)


def mean(elements: int) -> Case:
    """Means of rows."""
    return Case("other", "mean", (elements,), ((elements // 64, 64),), 0.0, elements // 64)


def experts(rows: int, count: int, chosen: int, width: int, inner: int) -> Case:
    """Gated layers of experts, ``chosen`` of which each row is given to, in the order of the experts."""
    shapes = ((rows, width), (-count, rows, chosen), (count, 2 * inner, width), (count, width, inner), (rows, chosen))
    flops = 6.0 * rows * chosen * width * inner
    return Case("product", "experts", (rows, count, chosen, width, inner), shapes, flops, rows * width)


MAKERS: dict[str, Callable[..., Case]] = {
    "linear": linear, "matmul": matmul, "conv2d": conv2d, "attention": attention, "layer_norm": layer_norm,
    "depthwise": depthwise, "lstm": recurrent("lstm", 4), "gru": recurrent("gru", 3), "rms_norm": rms_norm("rms_norm"),
    "rms_norm_parts": rms_norm("rms_norm_parts"), "rotary": rotary, "swiglu": passing("swiglu", "activation", 2),
    "batch_norm": batch_norm, "softmax": softmax, "cross_entropy": cross_entropy, "embedding": embedding, "pool": pool,
    "turned": turned, "experts": experts, "gelu": passing("gelu", "activation"), "silu": passing("silu", "activation"),
    "relu": passing("relu", "activation"), "add": passing("add", "residual", 2), "mul": passing("mul", "other", 2),
    "dropout": passing("dropout", "residual"), "mean": mean, "view": passing("view", "view"),
}  # fmt: skip


def cases_of(named: Sequence[tuple[str, tuple[int, ...]]]) -> list[Case]:
    """Return the cases of some names with sizes."""
    return [MAKERS[name](*sizes) for name, sizes in named]


def usual(gpu: bool) -> list[tuple[str, tuple[int, ...]]]:
    """Return names and sizes that a machine is described by, without regard to any network: larger ones on a GPU."""
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
    found += [("depthwise", (8, c, side, side, k)) for c in channels for k in (3, 7)]
    hidden, long = ((512, 1024), 256) if gpu else ((96, 256), 64)
    found += [(name, (n, steps, width, width)) for name in ("lstm", "gru") for width in hidden
              for n, steps in ((4, long), (32, 16))]
    lengths = (512, 2048, 4096) if gpu else (48, 160, 320)
    found += [("attention", (4, 8, n, n, 128 if gpu else 32, causal)) for n in lengths for causal in (0, 1)]
    for name in ("layer_norm", "rms_norm", "rms_norm_parts"):
        found += [(name, (n, width)) for n, width in ((rows[0], wide[0]), (rows[1], wide[1]), (rows[2], wide[1]))]
    found += [("batch_norm", (8, c, side * side)) for c in (8, *channels)]
    found += [("softmax", (n, width)) for n, width in ((rows[0], wide[0]), (rows[2], wide[1]))]
    words = 32000 if gpu else 1500
    found += [("cross_entropy", (n, c)) for n, c in ((rows[0], wide[0]), (rows[1], wide[1]), (rows[2] // 2, words))]
    found += [("embedding", (n, words, width)) for n in (rows[0], rows[2]) for width in wide[:2]]
    found += [("pool", (8, c, side, side)) for c in channels]
    found += [("turned", (4, 8, n, 128 if gpu else 32)) for n in lengths[:2]]
    found += [("rotary", (4, n, 8, 128 if gpu else 32)) for n in lengths[:2]]
    found += [(name, (n,)) for name in ("add", "mul", "gelu", "silu", "relu", "mean", "swiglu") for n in elements]
    found += [("dropout", (n,)) for n in elements[1:3]]
    return [*found, ("view", (1 << 14,))]


# ---- messages --------------------------------------------------------------------------------------------------------
SMALLEST, LARGEST = 1 << 8, 1 << 22  # bytes on a CPU; on a GPU
LARGEST_GPU = 1 << 28
OF_A_PLAN: list[tuple[str, tuple[int, ...]]] = []
"""Operators of a plan: taskflow writes them here."""
OF_A_PLAN_BYTES: list[int] = []
"""Sizes of a plan's messages: taskflow writes them here."""


def sizes_of(gpu: bool) -> list[int]:
    """Return the bytes of the arrays that are sent."""
    largest, found = LARGEST_GPU if gpu else LARGEST, [SMALLEST]
    while found[-1] < largest:
        found.append(found[-1] * (16 if gpu else 8))
    return sorted({*found, largest, *OF_A_PLAN_BYTES})


def groups_of(nodes: Sequence[int]) -> list[tuple[str, list[int]]]:
    """Return groups of ranks: within the first node, one of each node, and all; twos and the whole. ``nodes``: ranks of each."""
    starts, world = [sum(nodes[:i]) for i in range(len(nodes))], sum(nodes)
    found: dict[tuple[int, ...], str] = {}
    inside = list(range(nodes[0]))
    for count in sorted({2, len(inside) // 2, len(inside)}):
        if 2 <= count <= len(inside):
            found[tuple(inside[:count])] = "within"
    if len(nodes) > 1:
        found[tuple(starts[:2])] = "between"
        found[tuple(starts)] = "between"
        found[tuple(range(world))] = "across"
    return [(kind, list(ranks)) for ranks, kind in found.items()]
