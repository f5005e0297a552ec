"""Convolutions: cuDNN's, as graphs of its frontend (`import cudnn`), planned once for each shape and then kept."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from typing import Any

import numpy as np

from taskflow.kernels.kernel_set import Array, Padding, Pair

Shape = tuple[int, ...]


class Direction(Enum):
    """What is computed from the two others of image, weight and output."""

    FORWARD = "conv_fprop"
    DATA = "conv_dgrad"
    WEIGHT = "conv_wgrad"


@dataclass(frozen=True, slots=True)
class Sliding:
    """How windows go over images: one convolution of given shapes. ``precision``: in bf16 the operands come as bfloat16."""

    direction: Direction
    image: Shape
    weight: Shape
    output: Shape
    stride: Pair
    padding: Padding
    dilation: Pair
    precision: str

    @property
    def operands(self) -> tuple[Shape, Shape, Shape]:
        """The shapes of both operands and of the result."""
        if self.direction is Direction.FORWARD:
            return self.image, self.weight, self.output
        if self.direction is Direction.DATA:
            return self.output, self.weight, self.image
        return self.image, self.output, self.weight


@dataclass(frozen=True, slots=True)
class Planned:
    """A graph, its tensors (two operands and the result), and the bytes that it works in."""

    graph: Any
    tensors: tuple[Any, Any, Any]
    workspace: int


def describe(cudnn: Any, sliding: Sliding, handle: Any = None) -> tuple[Any, tuple[Any, Any, Any]]:
    """The graph of one convolution, not yet planned, and its tensors: float32 images (N, C, H, W), sums in float32, and in fp32
    no plan that rounds its operands or whose sums change their order from run to run."""
    kind = cudnn.data_type
    graph = cudnn.pygraph(
        io_data_type=kind.FLOAT, intermediate_data_type=kind.FLOAT, compute_data_type=kind.FLOAT, handle=handle
    )
    given = kind.BFLOAT16 if sliding.precision == "bf16" else kind.FLOAT
    first, second, result = sliding.operands
    a = graph.tensor(dim=list(first), stride=_strides(first), data_type=given, name="first")
    b = graph.tensor(dim=list(second), stride=_strides(second), data_type=given, name="second")
    (top, bottom), (left, right) = sliding.padding
    out = getattr(graph, sliding.direction.value)(
        a, b, pre_padding=[top, left], post_padding=[bottom, right], stride=list(sliding.stride),
        dilation=list(sliding.dilation), compute_data_type=kind.FLOAT,
    )
    out.set_output(True).set_data_type(kind.FLOAT).set_dim(list(result)).set_stride(_strides(result))
    return graph, (a, b, out)


def _strides(shape: Shape) -> list[int]:
    """Of contiguous memory, in elements."""
    strides = [1]
    for size in reversed(shape[1:]):
        strides.insert(0, strides[0] * size)
    return strides


class Convolutions:
    """Plans and runs convolutions of float32 arrays on one GPU.

    Args: the array module, the stream, how float32 multiplies, and what rounds an array to bfloat16 (as uint16). Raises
    ImportError if the frontend or cuDNN is not there.
    """

    def __init__(self, xp: Any, stream: Any, precision: str, rounded: Callable[[Array], Array]) -> None:
        import cudnn

        self._cudnn: Any = cudnn
        self._xp, self._precision, self._rounded = xp, precision, rounded
        self._handle: Any = cudnn.create_handle()
        cudnn.set_stream(handle=self._handle, stream=stream.ptr)
        self._planned: dict[Sliding, Planned | None] = {}
        self._workspace: Any = xp.empty(0, np.uint8)

    def run(
        self, direction: Direction, image: Array, weight: Array, output: Array, stride: Pair, padding: Padding, dilation: Pair,
        accumulate: bool = False,
    ) -> bool:
        """Fill the one of image, weight and output that ``direction`` computes (or add to it). False, and nothing is done, if
        cuDNN has no plan for it."""
        arrays = (image, weight, output)
        if not all(a.dtype == np.float32 and a.size and a.flags.c_contiguous for a in arrays):
            return False
        shapes = tuple(image.shape), tuple(weight.shape), tuple(output.shape)
        sliding = Sliding(direction, *shapes, stride, padding, dilation, self._precision)
        if sliding not in self._planned:
            self._planned[sliding] = self._plan(sliding)
        planned = self._planned[sliding]
        if planned is None:
            return False
        if direction is Direction.FORWARD:
            first, second, result = image, weight, output
        elif direction is Direction.DATA:
            first, second, result = output, weight, image
        else:
            first, second, result = image, output, weight
        if self._precision == "bf16":
            first, second = self._rounded(first), self._rounded(second)
        into = self._xp.empty_like(result) if accumulate else result
        if planned.workspace > self._workspace.size:
            self._workspace = self._xp.empty(planned.workspace, np.uint8)
        pointers = {tensor: int(array.data.ptr) for tensor, array in zip(planned.tensors, (first, second, into))}
        planned.graph.execute(pointers, int(self._workspace.data.ptr), handle=self._handle)
        if accumulate:
            result += into
        return True

    def _plan(self, sliding: Sliding) -> Planned | None:
        """None if cuDNN has none."""
        cudnn = self._cudnn
        notes = cudnn.numerical_note
        try:
            graph, tensors = describe(cudnn, sliding, self._handle)
            graph.validate()
            graph.build_operation_graph()
            graph.create_execution_plans([cudnn.heur_mode.A, cudnn.heur_mode.FALLBACK])
            unwanted = [notes.NONDETERMINISTIC]
            if sliding.precision == "fp32":
                unwanted += [notes.TENSOR_CORE, notes.DOWN_CONVERT_INPUTS, notes.REDUCED_PRECISION_REDUCTION]
            graph.deselect_numeric_notes(unwanted)
            graph.check_support()
            graph.build_plans()
        except (cudnn.cudnnGraphNotSupportedError, NotImplementedError):
            return None
        return Planned(graph, tensors, int(graph.get_workspace_size()))
