"""filter2d: convolution of images by filters that are computed, such as standardised ones (PyTorch: torch.nn.functional.conv2d)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from random import Random

from taskflow.operators.conv2d import Conv2d
from taskflow.operators.operator import INPUTS, Call, Dim, Example, Operator, Reads, Soap, Spec, Work, register, takes
from taskflow.operators.tensor import Tensor
from taskflow.operators.window import pads, pair
from taskflow.regions import Rect


@register("filter2d")
class Filter2d(Operator):
    """x (N, C, H, W), filters (K, C / groups, kh, kw) -> y (N, K, Ho, Wo): what `conv2d` computes, with a tensor in place of its
    weight. Its iteration space, cuts and halos are those of ``convolution``, which has no bias; K cuts the filters."""

    work = Work.CONVOLUTION
    kept = INPUTS

    convolution: Conv2d

    def output(self, inputs: Sequence[Spec]) -> tuple[Spec, ...]:
        takes("filter2d", inputs, 2)
        x, filters = inputs
        try:
            result = self.convolution.output((x,))
        except ValueError as error:
            raise ValueError(f"filter2d{str(error).removeprefix('conv2d')}") from error
        wanted = Spec(self.convolution.weights((x,))[0].shape, x.dtype)
        if filters != wanted:
            raise ValueError(f"filter2d: the filters of {x} must be {wanted}, got {filters}")
        return result

    def dims(self, inputs: Sequence[Spec]) -> tuple[Dim, ...]:
        return tuple(
            replace(dim, soap=Soap.ATTRIBUTE) if dim.soap is Soap.PARAMETER else dim for dim in self.convolution.dims(inputs[:1])
        )

    def reads(self, inputs: Sequence[Spec], piece: Rect) -> Reads:
        found = self.convolution.reads(inputs[:1], piece)
        return Reads((*found.inputs, *found.weights))

    def writes(self, inputs: Sequence[Spec], piece: Rect) -> tuple[Rect, ...]:
        return self.convolution.writes(inputs[:1], piece)

    def forward(self, call: Call) -> None:
        self.convolution.forward(_with_weight(call))

    def backward(self, call: Call) -> None:
        self.convolution.backward(_with_weight(call))

    def flops(self, inputs: Sequence[Spec], piece: Rect) -> int:
        return self.convolution.flops(inputs[:1], piece)

    @classmethod
    def example(cls, random: Random) -> Example:
        drawn = Conv2d.example(random)
        assert isinstance(drawn.operator, Conv2d)
        convolution = replace(drawn.operator, bias=False)
        (x,) = drawn.inputs
        return Example(cls(convolution), (x, Spec(convolution.weights((x,))[0].shape, x.dtype)))


def _with_weight(call: Call) -> Call:
    """The call of `conv2d` that has the filters as its weight."""
    return replace(
        call, specs=call.specs[:1], reads=Reads(call.reads.inputs[:1], call.reads.inputs[1:]), inputs=call.inputs[:1],
        weights=call.inputs[1:], grad_inputs=call.grad_inputs[:1], grad_weights=call.grad_inputs[1:],
    )


def filter2d(
    input: Tensor,
    filters: Tensor,
    stride: int | Sequence[int] = 1,
    padding: int | Sequence[int | Sequence[int]] = 0,
    dilation: int | Sequence[int] = 1,
    groups: int = 1,
    *,
    name: str | None = None,
) -> Tensor:
    """Slide filters that are computed over images; `conv2d` is for filters that are parameters.

    Args: input (N, C, H, W); filters (K, C / groups, kh, kw). ``stride``, ``padding``, ``dilation``, ``groups``: as `conv2d` has
    them. Returns (N, K, Ho, Wo).
    """
    if len(filters.shape) != 4:
        raise ValueError(f"filter2d: filters must be (K, C / groups, kh, kw), got {filters}")
    count, _, *kernel = filters.shape
    operator = Filter2d(Conv2d(
        count, pair("filter2d", "kernel_size", kernel, 1), pair("filter2d", "stride", stride, 1), pads("filter2d", padding),
        pair("filter2d", "dilation", dilation, 1), groups, False,
    ))
    return input.graph.apply(operator, (input, filters), name=name)[0]
