"""conv_transpose2d: enlarges images by filters, the gradient of a convolution (PyTorch: torch.nn.ConvTranspose2d)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from random import Random

import numpy as np

from taskflow.operators.convolution import Convolution
from taskflow.operators.operator import Array, Call, Example, Reads, Spec, iteration_space, register
from taskflow.operators.tensor import Parameter, Tensor
from taskflow.operators.window import Pair, pair
from taskflow.regions import Rect


@register("conv_transpose2d")
class ConvTranspose2d(Convolution):
    """x (N, C, H, W), weight (C, K / groups, kh, kw), bias (K) -> y (N, K, Ho, Wo), where Ho = (H - 1) stride - 2 padding +
    dilation (kh - 1) + output_padding + 1.

    Input i and element j of the kernel add to output i stride - padding + dilation j, so this is `conv2d`'s gradient of its
    input, and calls the same kernels. A piece of h and w reads the inputs that add to it (a halo), and only the kernel elements
    by which they do. K cuts the weights (parameter) and C is contracted; both can be cut if there is one group.
    """

    cuts_groups = False
    uniform = False

    out_channels: int
    kernel: Pair
    stride: Pair
    padding: Pair
    output_padding: Pair
    dilation: Pair
    groups: int
    bias: bool

    def output(self, inputs: Sequence[Spec]) -> tuple[Spec, ...]:
        x = self.image(inputs)
        if any(more >= max(s, d) for more, s, d in zip(self.output_padding, self.stride, self.dilation)):
            raise ValueError(
                f"conv_transpose2d: output_padding must be smaller than the stride {self.stride} or the dilation "
                f"{self.dilation}, got {self.output_padding}; larger images need a larger stride or less padding"
            )
        sizes = [
            (size - 1) * s - 2 * p + d * (k - 1) + more + 1
            for size, k, s, p, more, d in zip(
                x.shape[2:], self.kernel, self.stride, self.padding, self.output_padding, self.dilation
            )
        ]
        if min(sizes) < 1:
            raise ValueError(f"conv_transpose2d: padding {self.padding} leaves nothing of the output of {x}, got size {sizes}")
        return (Spec((x.shape[0], self.out_channels, *sizes), x.dtype),)

    def channels(self, given: int) -> Pair:
        return given, self.out_channels // self.groups

    def reads(self, inputs: Sequence[Spec], piece: Rect) -> Reads:
        n0, k0, _, _, c0 = piece.lo
        n1, k1, _, _, c1 = piece.hi
        rows, columns = self._reached(inputs, piece)
        first, last = (c0, c1) if self.groups == 1 else (0, inputs[0].shape[1])
        one, end = (k0, k1) if self.groups == 1 else (0, self.out_channels // self.groups)
        x = Rect((n0, first, rows.low, columns.low), (n1, last, rows.high, columns.high))
        weight = Rect((first, one, rows.first, columns.first), (last, end, rows.last, columns.last))
        return self.reading(x, weight, piece)

    def forward(self, call: Call) -> None:
        (x,), weight, (y,) = call.inputs, call.weights[0], call.outputs
        bias = self.added(call)
        if not x.size:  # between what the filters reach
            y[...] = 0 if bias is None else bias[:, None, None]
            return
        rows, columns = self._reached(call.specs, call.piece)
        inside = (slice(None), slice(None), rows.inside, columns.inside)
        whole = y[inside].shape == y.shape
        out = y if whole else np.empty_like(y[inside], order="C")
        sliding = (self.stride, (rows.padding, columns.padding), self.dilation, self.groups)
        call.kernels.conv2d_backward_data(x, weight, *sliding, out=out)
        if not whole:
            y[...] = 0
            y[inside] = out
        if bias is not None:
            y += bias[:, None, None]

    def backward(self, call: Call) -> None:
        (x,), dy, dx, dw = call.inputs, call.grad, call.grad_inputs[0], call.grad_weights[0]
        self.bias_gradient(call)
        if not call.reads.inputs[0].volume:
            return
        rows, columns = self._reached(call.specs, call.piece)
        seen: Array = call.kernels.xp.ascontiguousarray(dy[:, :, rows.inside, columns.inside])
        sliding = (self.stride, (rows.padding, columns.padding), self.dilation, self.groups)
        if dx is not None:
            out = np.empty_like(dx.array, order="C") if dx.accumulate else dx.array
            call.kernels.conv2d(seen, call.weights[0], None, *sliding, out=out)
            if dx.accumulate:
                dx.put(out)
        if dw is not None:
            call.kernels.conv2d_backward_weight(seen, x, *sliding, out=dw.array, accumulate=dw.accumulate)

    def flops(self, inputs: Sequence[Spec], piece: Rect) -> int:
        # Unlike conv2d's, whose kernels multiply with padding too: how many elements reach an output depends on where it lies.
        samples, channels, _, _, contracted = piece.shape
        rows, columns = self._reached(inputs, piece)
        return 2 * samples * channels * contracted * rows.products * columns.products

    def _reached(self, inputs: Sequence[Spec], piece: Rect) -> tuple[Reached, Reached]:
        rows, columns = (
            _reached(inputs[0].shape[2 + i], self.kernel[i], self.stride[i], self.padding[i], self.dilation[i],
                     piece.lo[2 + i], piece.hi[2 + i])
            for i in range(2)
        )
        return rows, columns

    @classmethod
    def example(cls, random: Random) -> Example:
        groups = random.choice((1, 1, 1, 2, 3))
        channels, outputs = groups * random.randint(1, 3), groups * random.randint(1, 3)
        kernel, stride, dilation = ((random.randint(1, 3), random.randint(1, 3)) for _ in range(3))
        more = tuple(random.randrange(max(s, d)) for s, d in zip(stride, dilation))
        padding = tuple(random.randint(0, d * (k - 1)) for k, d in zip(kernel, dilation))
        sizes = [
            max(1, -(-(2 * p - d * (k - 1) - o) // s) + 1) + random.randint(0, 4)
            for k, s, d, p, o in zip(kernel, stride, dilation, padding, more)
        ]
        operator = cls(
            outputs, kernel, stride, (padding[0], padding[1]), (more[0], more[1]), dilation, groups, random.random() < 0.5
        )
        spec = Spec((random.randint(1, 3), channels, *sizes), np.dtype(np.float64))
        seen = operator._reached((spec,), iteration_space(operator, (spec,)))
        if any(side.high <= side.low for side in seen):
            return cls.example(random)  # the whole output would be the bias
        return Example(operator, (spec,))


@dataclass(frozen=True, slots=True)
class Reached:
    """Effect of a range of outputs along one dimension. Inputs low:high and kernel elements first:last add to it, both as few
    as possible, by ``products`` products. ``inside``: the outputs of the range between the first and the last that all of these
    reach. ``padding``: how many outputs on each side they also reach, which belong to other pieces or to none."""

    low: int
    high: int
    first: int
    last: int
    products: int
    inside: slice
    padding: Pair


@lru_cache(maxsize=1 << 16)
def _reached(size: int, kernel: int, stride: int, before: int, dilation: int, low: int, high: int) -> Reached:
    touched = []
    for j in range(kernel):
        offset = dilation * j - before
        # The inputs i whose output i stride + offset lies in low:high.
        first, last = max(0, -((offset - low) // stride)), min(size - 1, (high - 1 - offset) // stride)
        if first <= last:
            touched.append((j, first, last))
    if not touched:
        return Reached(0, 0, 0, 0, 0, slice(0, 0), (0, 0))
    start, stop = min(a for _, a, _ in touched), max(b for _, _, b in touched)
    one, end = touched[0][0], touched[-1][0]
    # Outputs between the first and the last that these reach, counted from ``low``.
    least, most = start * stride - before + dilation * one - low, stop * stride - before + dilation * end + 1 - low
    inside = slice(max(0, least), min(high - low, most))
    products = sum(b - a + 1 for _, a, b in touched)
    return Reached(start, stop + 1, one, end + 1, products, inside, (max(0, -least), max(0, most - (high - low))))


def conv_transpose2d(
    input: Tensor,
    out_channels: int,
    kernel_size: int | Sequence[int],
    stride: int | Sequence[int] = 1,
    padding: int | Sequence[int] = 0,
    output_padding: int | Sequence[int] = 0,
    groups: int = 1,
    bias: bool = True,
    dilation: int | Sequence[int] = 1,
    *,
    name: str | None = None,
    parameters: Sequence[Parameter] | None = None,
) -> Tensor:
    """Enlarge images by filters: each input adds its multiple of the kernel to the output.

    Args: input (N, C, H, W). ``kernel_size``, ``stride``, ``dilation``: one integer, or (height, width). ``padding``: rows and
    columns cut off on each side of the output. ``output_padding``: rows and columns added at the end (fewer than the stride or
    the dilation). ``groups``: output channels see only the input channels of their group; channels then cannot be cut.
    ``parameters`` shares another layer's (weight, bias). Returns (N, out_channels, Ho, Wo), Ho = (H - 1) stride - 2 padding +
    dilation (kernel - 1) + output_padding + 1.
    """
    operator = ConvTranspose2d(
        out_channels,
        pair("conv_transpose2d", "kernel_size", kernel_size, 1),
        pair("conv_transpose2d", "stride", stride, 1),
        pair("conv_transpose2d", "padding", padding, 0),
        pair("conv_transpose2d", "output_padding", output_padding, 0),
        pair("conv_transpose2d", "dilation", dilation, 1),
        groups,
        bias,
    )
    return input.graph.apply(operator, (input,), name=name, parameters=parameters)[0]
