"""Library model: how a device's libraries execute the work of a piece when a training program drives the device
(`taskflow.programs.TrainingProgram`). Matrix products run in tiles, views are free, and one thread of the host launches every
kernel. How products and attention perform is the device's, which kernels are fused and which attention runs is the program's.

Constants have a source beside them; none depends on a particular network.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil

from taskflow.floats import sum_bytes
from taskflow.graph import OperatorGraph
from taskflow.machine import Device
from taskflow.mapper import narrow_rate
from taskflow.operators.operator import Operator, Spec, Work
from taskflow.optimizer.cost.phases import Phase, arrays, phases
from taskflow.optimizer.cost.products import product_seconds
from taskflow.programs import ONE_PASS, TrainingProgram
from taskflow.regions import Rect

TILES = ((256, 128, 1.0), (128, 128, 0.97), (128, 64, 0.85), (64, 64, 0.7))
"""Rows and columns of results that a multiprocessor works on at once, and which part of the largest tile's rate it reaches: smaller
tiles read their factors more often ("Matrix Multiplication Background User's Guide", NVIDIA: tile and wave quantisation, and its
figure of efficiency by tile size, from which the parts are estimates)."""

FILLING = 32
"""Terms of a contraction whose time a tile needs to start and to write its results (one step of a tile's main loop)."""

LEAST_SPLIT = 512
"""Libraries cut a contraction into parts of some hundred terms or more, where there are fewer tiles than multiprocessors."""

VIEWS = frozenset({"reshape", "transpose", "scale"})
"""Operators that cost nothing: views of memory that products read and write in strides, and factors that they multiply with."""

FUSED, FUSED_COLUMNS = frozenset({"flash_attention", "attention_blocks"}), 128
"""Attention whose scores never leave the chip: a block of queries, as many columns as a head has, goes over all keys that it sees
(Dao, "FlashAttention-2", arXiv 2307.08691, sections 3.2 and 3.3)."""

FUSED_REACHED = (0.75, 0.645)
"""Parts of the peak that such attention reaches forward and backward where the device does not say it: up to 73 % of an A100's peak
against 63 % (there, section 4.1)."""

KEYS_LOST = 192
"""Words that each query would see in the time in which its block of queries starts and ends: of 2,048 words under a causal mask a
kernel reaches 0.84 of what it reaches of very many (figures 4 and 5 there)."""

HEAD, HEAD_LOST = 128, 32
"""Features of a head for which parts of the peak are stated, and how many more would take as long as starting a block does: with
heads of 64 a kernel reaches 0.83 of that (there, figure 5; Shah et al., arXiv 2407.08608, figure 5)."""

CAST_BYTES = 3
"""Bytes of memory for each number that is brought from 16 bits into 8: read and written (its maximum was found before)."""

LOSS_KERNELS = 8
"""Of a cross-entropy from its parts: maximum, difference, exponential, sum, logarithm, choice, mean, and a change of type."""

SOFTMAX_KERNELS = 5
"""Of a softmax without a kernel of its own: type, scale, mask, softmax, type (megatron/model/fused_softmax.py)."""

SOFTMAX_ROWS = 4
"""Its fused kernel takes a number of matrices of scores that this divides (is_kernel_available, there)."""


@dataclass(frozen=True, slots=True)
class Spent:
    """Seconds of the device for a task, and of the host's thread to launch its kernels."""

    device: float
    host: float

    @property
    def seconds(self) -> float:
        """Seconds of the task by itself."""
        return max(self.device, self.host)


def spent(
    operator: Operator, inputs: tuple[Spec, ...], piece: Rect, backward: bool, wanted: Sequence[bool], adds: Sequence[bool],
    device: Device, dtype: object, efficiency: float,
) -> Spent | None:
    """Return the seconds of a piece's task. ``dtype``: in which it multiplies; large products reach ``efficiency`` of the peak
    where the device does not say more. None for work that this model does not cover: convolutions and recurrent layers."""
    if operator.work not in (Work.CONTRACTION, Work.MEMORY):
        return None
    if free(operator, backward) and not any(adds):
        return Spent(0.0, 0.0)
    touched, seconds, kernels, memory = arrays(operator, inputs, piece), 0.0, 0.0, device.memory_rate
    program = device.program
    if backward and program is not None and program.adds_to_zeros and not operator.frozen:
        adds = (*(adds[: len(inputs)] or (False,) * len(inputs)), *(True for _ in touched.weights))
    if operator.work is Work.CONTRACTION:
        products = _Products(device, dtype, efficiency, device.power * (program.products if program else 1.0))
        for phase in phases(operator, inputs, piece, backward, wanted):
            if operator.kind in FUSED:
                keys = operator.flops(inputs, piece) / 4 / max(1, touched.output_elements[0])
                rate = attention_rate(device, dtype, inputs[0].shape[-1], backward, efficiency)
                seconds += _fused(phase, device, rate * max(1.0, keys) / (max(1.0, keys) + KEYS_LOST))
            else:
                seconds += products.seconds(phase)
            kernels += 1
        if backward and len(touched.weights) > 1 and not operator.frozen:  # the bias's gradient, by a pass over the output's
            seconds, kernels = seconds + sum(touched.outputs) / memory, kernels + 1
        # A product does not add: what is added to is read, added, and written.
        results, sums = (*touched.inputs, *touched.weights), (*touched.inputs, *touched.weight_gradients)
        given, summing = len(touched.inputs), program.passing("sums") if program else ONE_PASS
        narrower = program.gradient_bytes / 4 if program and program.gradient_bytes else 1.0
        for i, (n, m, added) in enumerate(zip(results, sums, adds)):
            if added and i < given:
                seconds, kernels = seconds + (n + 2 * m) / memory, kernels + 1
            elif added:  # a weight's
                seconds, kernels = seconds + summing.times * (n + 2 * m * narrower) / memory, kernels + summing.kernels
    else:
        passing = program.passing(operator.kind) if program else ONE_PASS
        for phase in phases(operator, inputs, piece, backward, wanted, adds):
            if free(operator, backward):  # only what is added
                seconds += 3 * sum(n for n, a in zip(touched.inputs, adds) if a) / memory
            else:
                seconds += max(passing.times * phase.nbytes / memory, phase.flops / (device.rate() / 2))
        kernels = _passes(operator, inputs, piece, backward, len(touched.weights)) * passing.kernels + sum(adds)
    return Spent(seconds + kernels * device.launch_seconds, kernels * (program.host_seconds if program else 0.0))


def gradient_width(graph: OperatorGraph, device: Device) -> int:
    """Return the bytes of each number of a sum of weights' gradients, if the device's program does not sum those of 16-bit weights
    in float32, as lowering has it; else 0."""
    program = device.program
    if program is None or not program.gradient_bytes:
        return 0
    sizes = {parameter.spec.dtype.itemsize for parameter in graph.parameters if parameter.trained}
    return program.gradient_bytes if all(size < sum_bytes(size) for size in sizes) else 0


def from_other_end(operator: Operator, inputs: Sequence[Spec], piece: Rect) -> Rect | None:
    """Return, for queries of causal attention that are a part of the sequence, as many as far from its other end: the two together
    see as many keys as any such two. None for other pieces, and where keys go around a ring."""
    if operator.kind != "flash_attention" or not getattr(operator, "causal", False):
        return None
    steps = inputs[0].shape[1]
    low, high = steps - piece.hi[1], steps - piece.lo[1]
    if (low, high) == (piece.lo[1], piece.hi[1]):
        return None
    return Rect((piece.lo[0], low, *piece.lo[2:]), (piece.hi[0], high, *piece.hi[2:]))


def free(operator: Operator, backward: bool) -> bool:
    """True if a task of this kind launches no kernel: a view, or a gradient that is passed on unchanged."""
    return operator.kind in VIEWS or (backward and operator.kind == "add")


def _passes(operator: Operator, inputs: Sequence[Spec], piece: Rect, backward: bool, weights: int) -> int:
    """Kernels of an operator that passes over memory."""
    if operator.kind in ("class_blocks", "cross_entropy", "cross_entropy_of_blocks"):
        return LOSS_KERNELS
    if operator.kind == "softmax" and len(piece.shape) == 4 and piece.shape[0] * piece.shape[1] % SOFTMAX_ROWS:
        return SOFTMAX_KERNELS
    return 2 if backward and weights and not operator.frozen else 1  # of the input's gradient and of the weights'


@dataclass(frozen=True, slots=True)
class _Products:
    """How a device multiplies in a type: ``efficiency`` of the peak where it does not say more, and in a step ``part`` of what it
    reaches alone."""

    device: Device
    dtype: object
    efficiency: float
    part: float

    def seconds(self, phase: Phase) -> float:
        """Return the seconds of one product, from its factors: (rows, terms) x (terms, columns)."""
        left, right, results = phase.factors
        device, memory, peak = self.device, self.device.memory_rate, self.device.product_rate(self.dtype)
        if not phase.flops or not left or not right:
            return phase.nbytes / memory
        terms = phase.flops / 2 / max(1, results)
        rows, columns = max(1.0, results / (right / terms)), max(1.0, results / (left / terms))
        batches = max(1, round(results / (rows * columns)))
        # A step brings both factors into a narrower type; measured products already do so with the left one.
        narrow = narrow_rate(device.products)
        casts = CAST_BYTES * batches * terms * columns / memory if narrow else 0.0
        if (rates := device.products_of(self.dtype)) is not None:
            size = narrow.itemsize if narrow else 1 if "8" in str(self.dtype) else 2
            alone = product_seconds(device, rates, peak, size, ceil(rows), ceil(columns), terms, batches)
            # What is wider than the results that a library writes, as sums of gradients are.
            more = phase.nbytes - batches * 2 * (rows * terms + terms * columns + rows * columns)
            return alone / self.part + casts + max(0.0, more) / memory - device.launch_seconds  # which is counted for every kernel
        reached = peak * self.efficiency * self.part
        alone = tiled(ceil(rows), ceil(columns), terms, batches, device.multiprocessors, reached)
        if narrow:  # the left factor's, too, and a kernel
            casts = casts * (1 + rows / columns) + device.launch_seconds
        return max(alone, phase.nbytes / memory) + casts


def attention_rate(device: Device, dtype: object, head: int, backward: bool, efficiency: float) -> float:
    """Return the operations a second of attention by the program's kernel, with heads of so many features and very many words."""
    kernel = device.program.attention if device.program else ""
    known = dict(device.attention).get(kernel)
    part = FUSED_REACHED[backward] if known is None else known.backward if backward else known.forward
    if known is None:  # where the data sheet says little, products and attention are equally far from it
        part *= efficiency / FUSED_REACHED[0]
    lost = (head / (head + HEAD_LOST)) / (HEAD / (HEAD + HEAD_LOST))
    return device.product_rate(dtype) * part * lost * device.power


def _fused(phase: Phase, device: Device, rate: float) -> float:
    """Seconds of products one of which takes what the other gives where it is: tiles of the last result, each with all terms."""
    results = max(1, phase.factors[2])
    rows = ceil(results / FUSED_COLUMNS)
    arithmetic = tiled(rows, FUSED_COLUMNS, phase.flops / 2 / results, 1, device.multiprocessors, rate)
    return max(arithmetic, phase.nbytes / device.memory_rate)


def tiled(rows: int, columns: int, terms: float, batches: int, multiprocessors: int, rate: float) -> float:
    """Return the seconds of ``batches`` products of (rows, terms) x (terms, columns) on this many multiprocessors, which
    together reach ``rate`` operations a second with the largest tiles. Tiles are computed whole, and in whole waves."""
    best = float("inf")
    for high, wide, part in TILES:
        for a, b in ((high, wide), (wide, high)):
            tiles = ceil(rows / a) * ceil(columns / b) * batches
            waves = ceil(tiles / multiprocessors)
            # Of a contraction that is cut into parts, as many as there are multiprocessors for.
            each = terms if waves > 1 else max(min(terms, LEAST_SPLIT), terms / (multiprocessors // tiles))
            best = min(best, waves * 2 * a * b * (each + FILLING) / (rate / multiprocessors * part))
    return best


def kept_bytes(program: TrainingProgram, operator: Operator, inputs: Sequence[Spec], piece: Rect, tensor: int) -> int:
    """Return the bytes for a piece on one of ``tensor`` devices that share a layer (`Passes.kept`). They count for each number of
    the result, of a loss for each score of a word, and of attention for each pair of words."""
    each = program.passing(operator.kind).kept
    if not each:
        return 0
    if operator.kind in FUSED:
        pairs = operator.flops(inputs, piece) / 4 / inputs[0].shape[-1]
        return round(each * pairs * (2 if getattr(operator, "causal", False) else 1))
    touched = arrays(operator, tuple(inputs), piece)
    if operator.kind in ("cross_entropy", "class_blocks"):
        return round(each * touched.input_elements[0] * (tensor if program.whole_scores else 1))
    return round(each * sum(touched.output_elements))
