"""conv2d: two-dimensional cross-correlation (PyTorch: torch.nn.functional.conv2d, torch.nn.Conv2d)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import lru_cache
from random import Random

import numpy as np

from taskflow.operators.convolution import Convolution
from taskflow.operators.operator import Array, Call, Example, Reads, Spec, Target, iteration_space, register
from taskflow.operators.tensor import Parameter, Tensor
from taskflow.operators.window import Pair, Seen, SlidingWindow, pads, pair
from taskflow.regions import Rect

Group = tuple[slice, slice, int]  # output channels, input channels (both of the piece's arrays), groups


@register("conv2d")
class Conv2d(Convolution):
    """x (N, C, H, W), weight (K, C / groups, kh, kw), bias (K) -> y (N, K, Ho, Wo).

    Cuts of h and w read halos, clipped at the border of the image, where the piece's kernel pads instead; elements of
    the kernel that meet only padding are not read. K cuts the weights (parameter); C is contracted and can be cut if
    there is one group. With several, a piece reads the input channels of the groups that it touches.
    """

    cuts_groups = True

    out_channels: int
    kernel: Pair
    stride: Pair
    padding: tuple[Pair, Pair]  # (top, bottom), (left, right)
    dilation: Pair
    groups: int
    bias: bool

    def output(self, inputs: Sequence[Spec]) -> tuple[Spec, ...]:
        x = self.image(inputs)
        sizes = tuple(window.outputs(size) for window, size in zip(self._windows, x.shape[2:]))
        if min(sizes) < 1:
            raise ValueError(
                f"conv2d: kernel {self.kernel} with dilation {self.dilation} is larger than the input {x} with padding "
                f"{self.padding}"
            )
        return (Spec((x.shape[0], self.out_channels, *sizes), x.dtype),)

    def channels(self, given: int) -> Pair:
        return self.out_channels, given // self.groups

    def reads(self, inputs: Sequence[Spec], piece: Rect) -> Reads:
        n0, k0, _, _, c0 = piece.lo
        n1, k1, _, _, c1 = piece.hi
        rows, columns = self._sees(inputs, piece)
        first, last = c0, c1
        if self.groups > 1:
            each, outputs = inputs[0].shape[1] // self.groups, self.out_channels // self.groups
            first, last = k0 // outputs * each, -(-k1 // outputs) * each
        x = Rect((n0, first, rows.low, columns.low), (n1, last, rows.high, columns.high))
        weight = Rect((k0, c0, rows.first, columns.first), (k1, c1, rows.last, columns.last))
        return self.reading(x, weight, piece)

    def forward(self, call: Call) -> None:
        (x,), weight, (y,) = call.inputs, call.weights[0], call.outputs
        bias = self.added(call)
        if not x.size:  # nothing but padding
            y[...] = 0 if bias is None else bias[:, None, None]
            return
        sliding = (self.stride, self._padding(call), self.dilation)
        for ours, theirs, groups in self._groups(call):
            out = y if _whole(ours, y) else np.empty_like(y[:, ours], order="C")
            call.kernels.conv2d(
                _channels(call, x, theirs), weight[ours], None if bias is None else bias[ours], *sliding, groups, out=out
            )
            if out is not y:
                y[:, ours] = out

    def backward(self, call: Call) -> None:
        (x,), dy, dx, dw = call.inputs, call.grad, call.grad_inputs[0], call.grad_weights[0]
        self.bias_gradient(call)
        if not call.reads.inputs[0].volume:
            return
        for group in self._groups(call):
            if dx is not None:
                self._input_gradient(call, group, dx)
            if dw is not None:
                ours, theirs, groups = group
                call.kernels.conv2d_backward_weight(
                    _channels(call, x, theirs), _channels(call, dy, ours), self.stride, self._padding(call), self.dilation, groups,
                    out=dw.array[ours], accumulate=dw.accumulate,
                )

    def _input_gradient(self, call: Call, group: Group, dx: Target) -> None:
        ours, theirs, groups = group
        whole = _whole(theirs, dx.array)
        out = dx.array if whole else np.empty_like(dx.array[:, theirs], order="C")
        call.kernels.conv2d_backward_data(
            _channels(call, call.grad, ours), call.weights[0][ours], self.stride, self._padding(call), self.dilation, groups,
            out=out, accumulate=whole and dx.accumulate,
        )
        if not whole:
            Target(dx.array[:, theirs], dx.accumulate).put(out)

    def flops(self, inputs: Sequence[Spec], piece: Rect) -> int:
        return 2 * piece.volume * self.kernel[0] * self.kernel[1]

    @property
    def _windows(self) -> tuple[SlidingWindow, SlidingWindow]:
        return _windows(self.kernel, self.stride, self.padding, self.dilation)

    def _sees(self, inputs: Sequence[Spec], piece: Rect) -> tuple[Seen, Seen]:
        (rows, columns), (_, _, height, width) = self._windows, inputs[0].shape
        return rows.sees(height, piece.lo[2], piece.hi[2]), columns.sees(width, piece.lo[3], piece.hi[3])

    def _padding(self, call: Call) -> tuple[Pair, Pair]:
        """Padding of this piece: what lies outside the image."""
        rows, columns = self._sees(call.specs, call.piece)
        return rows.padding, columns.padding

    def _groups(self, call: Call) -> Iterator[Group]:
        """The piece in parts that hold whole groups, or a part of one."""
        k0, k1 = call.piece.lo[1], call.piece.hi[1]
        outputs, each = self.out_channels // self.groups, call.specs[0].shape[1] // self.groups
        if self.groups == 1:
            yield slice(0, k1 - k0), slice(0, call.reads.inputs[0].shape[1]), 1
            return
        origin, at = k0 // outputs, k0
        while at < k1:
            group = at // outputs
            # A group that is cut goes by itself, whole ones together.
            whole = at % outputs == 0 and (k1 - at) // outputs
            stop = at + whole * outputs if whole else min(k1, (group + 1) * outputs)
            count = whole or 1
            yield slice(at - k0, stop - k0), slice((group - origin) * each, (group - origin + count) * each), count
            at = stop

    @classmethod
    def example(cls, random: Random) -> Example:
        groups = random.choice((1, 1, 1, 2, 3))
        channels, outputs = groups * random.randint(1, 3), groups * random.randint(1, 3)
        kernel, stride, dilation = ((random.randint(1, 3), random.randint(1, 3)) for _ in range(3))
        edges = [random.randint(0, 2) for _ in range(4)]
        padding = ((edges[0], edges[1]), (edges[2], edges[3]))
        operator = cls(outputs, kernel, stride, padding, dilation, groups, random.random() < 0.5)
        sizes = [
            max(1, d * (k - 1) + 1 - sum(p)) + random.randint(0, 5) for k, d, p in zip(kernel, dilation, padding)
        ]
        spec = Spec((random.randint(1, 3), channels, *sizes), np.dtype(np.float64))
        if any(seen.empty for seen in operator._sees((spec,), iteration_space(operator, (spec,)))):
            return cls.example(random)  # the whole output would see nothing but padding
        return Example(operator, (spec,))


@lru_cache(maxsize=256)
def _windows(kernel: Pair, stride: Pair, padding: tuple[Pair, Pair], dilation: Pair) -> tuple[SlidingWindow, SlidingWindow]:
    rows, columns = (SlidingWindow(k, s, *p, d) for k, s, p, d in zip(kernel, stride, padding, dilation))
    return rows, columns


def _whole(part: slice, array: Array) -> bool:
    return bool(part.stop - part.start == array.shape[1])


def _channels(call: Call, array: Array, part: slice) -> Array:
    """Some channels of (N, C, H, W), contiguous."""
    return array if _whole(part, array) else call.kernels.xp.ascontiguousarray(array[:, part])


def conv2d(
    input: Tensor,
    out_channels: int,
    kernel_size: int | Sequence[int],
    stride: int | Sequence[int] = 1,
    padding: int | Sequence[int | Sequence[int]] = 0,
    dilation: int | Sequence[int] = 1,
    groups: int = 1,
    bias: bool = True,
    *,
    name: str | None = None,
    parameters: Sequence[Parameter] | None = None,
) -> Tensor:
    """Slide filters over images.

    Args: input (N, C, H, W). ``kernel_size``, ``stride``, ``dilation``: one integer, or (height, width). ``padding``
    with zeros: one integer, (height, width), or ((top, bottom), (left, right)). ``groups``: output channels see only
    the input channels of their group. ``parameters`` shares another layer's (weight, bias).
    Returns (N, out_channels, Ho, Wo).
    """
    operator = Conv2d(
        out_channels,
        pair("conv2d", "kernel_size", kernel_size, 1),
        pair("conv2d", "stride", stride, 1),
        pads("conv2d", padding),
        pair("conv2d", "dilation", dilation, 1),
        groups,
        bias,
    )
    return input.graph.apply(operator, (input,), name=name, parameters=parameters)[0]
