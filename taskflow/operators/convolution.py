"""Convolution: shared base of conv2d and conv_transpose2d: images and groups of channels, an optional bias, the dimensions."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from typing import ClassVar, final

from taskflow.operators.operator import Array, Call, Keeps, Operator, Reads, Work
from taskflow.operators.spec import Dim, Init, Soap, Spec, WeightSpec, positive, takes
from taskflow.operators.window import Pair
from taskflow.regions import Rect


class Convolution(Operator):
    """Base of operators of images (N, C, H, W), a weight of four dimensions and perhaps a bias (K) that give images (N, K, Ho, Wo).
    Their iteration space is (n, k, h, w, c); c, the input channels of a group, is contracted, and the pieces along it each give
    a part of the sum."""

    __slots__ = ()

    work = Work.CONVOLUTION
    splits_backward = True
    inputs_for_weights = True
    cuts_groups: ClassVar[bool]
    """Whether output channels can be cut if there are several groups."""
    kept = Keeps(outputs=False)
    summed = 1

    out_channels: int
    kernel: Pair
    groups: int
    bias: bool

    @abstractmethod
    def channels(self, given: int) -> Pair:
        """Return the first two sizes of the weight, for ``given`` input channels. PyTorch's initial values depend on the
        second."""

    def weights(self, inputs: Sequence[Spec]) -> tuple[WeightSpec, ...]:
        rows, each = self.channels(inputs[0].shape[1])
        init = Init("uniform", (each * self.kernel[0] * self.kernel[1]) ** -0.5)  # as torch.nn's modules of these names start
        weight = WeightSpec("weight", (rows, each, *self.kernel), init)
        return (weight, WeightSpec("bias", (self.out_channels,), init)) if self.bias else (weight,)

    def dims(self, inputs: Sequence[Spec]) -> tuple[Dim, ...]:
        samples, channels, height, width = self.output(inputs)[0].shape
        return (
            Dim("n", samples, Soap.SAMPLE),
            Dim("k", channels, Soap.PARAMETER, divisible=self.cuts_groups or self.groups == 1),
            Dim("h", height, Soap.ATTRIBUTE),
            Dim("w", width, Soap.ATTRIBUTE),
            Dim("c", inputs[0].shape[1] // self.groups, Soap.REDUCTION, divisible=self.groups == 1),
        )

    @final
    def image(self, inputs: Sequence[Spec]) -> Spec:
        """Return the only input. Raises ValueError unless it is images whose channels the groups divide."""
        takes(self.kind, inputs, 1)
        (x,) = inputs
        positive(self.kind, out_channels=self.out_channels, groups=self.groups)
        if len(x.shape) != 4 or not x.differentiable:
            raise ValueError(f"{self.kind}: input must be a float tensor (N, C, H, W), got {x}")
        if x.shape[1] % self.groups or self.out_channels % self.groups:
            raise ValueError(
                f"{self.kind}: groups={self.groups} must divide the input's {x.shape[1]} and the output's "
                f"{self.out_channels} channels"
            )
        return x

    @final
    def reading(self, x: Rect, weight: Rect, piece: Rect) -> Reads:
        """Return these reads and the bias; of the pieces that share an output, only the first adds the bias."""
        if not self.bias:
            return Reads((x,), (weight,))
        first = piece.lo[4] == 0
        return Reads((x,), (weight, Rect((piece.lo[1],), (piece.hi[1] if first else piece.lo[1],))))

    @final
    def added(self, call: Call) -> Array | None:
        """Return the bias that this piece adds, if any."""
        return call.weights[1] if self.bias and call.weights[1].size else None

    @final
    def bias_gradient(self, call: Call) -> None:
        """Compute the gradient of the bias, if the piece adds it and the gradient is wanted."""
        if self.bias and call.reads.weights[1].volume and (db := call.grad_weights[1]) is not None:
            flat = call.grad.reshape(*call.grad.shape[:2], -1)
            call.kernels.channel_sums(flat, out=db.array, accumulate=db.accumulate)
