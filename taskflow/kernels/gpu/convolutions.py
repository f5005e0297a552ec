"""Convolutions by cuDNN, as graphs of its frontend (`import cudnn`), planned once for each shape and then kept."""

from __future__ import annotations

import ctypes
import sys
import sysconfig
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Any

import numpy as np

from taskflow.kernels.kernel_set import Array, Padding, Pair

Shape = tuple[int, ...]
FLOAT, BFLOAT = "FLOAT", "BFLOAT16"
MOST_WORKSPACE = 4 << 30
"""Bytes of working memory that a plan may ask for."""
ALIGNMENT = 16
"""Bytes: what the frontend tells cuDNN that every tensor's address is a multiple of."""


class Direction(Enum):
    """The one of image, weight and output that is computed from the other two."""

    FORWARD = "conv_fprop"
    DATA = "conv_dgrad"
    WEIGHT = "conv_wgrad"


@dataclass(frozen=True, slots=True)
class Variant:
    """One way to multiply: the types of operands and result, and the numerical notes that exclude plans of cuDNN."""

    operands: str
    result: str
    without: tuple[str, ...]


_ORDER = ("NONDETERMINISTIC",)
_EXACT = (*_ORDER, "DOWN_CONVERT_INPUTS", "REDUCED_PRECISION_REDUCTION")
VARIANTS: dict[str, tuple[Variant, ...]] = {
    "fp32": (Variant(FLOAT, FLOAT, (*_EXACT, "TENSOR_CORE")), Variant(FLOAT, FLOAT, _EXACT)),
    "tf32": (Variant(FLOAT, FLOAT, _ORDER),),
    "bf16": (Variant(BFLOAT, FLOAT, _ORDER), Variant(BFLOAT, BFLOAT, _ORDER), Variant(FLOAT, FLOAT, _ORDER)),
}
"""By precision, from the best to what is left: in fp32 no plan rounds its operands; none changes the order of its sums from run to
run. Sums are in float32; a result in bfloat16 is rounded once more, for cuDNNs that have no other."""


@dataclass(frozen=True, slots=True)
class Sliding:
    """Geometry of one convolution: shapes, strides, padding and dilation."""

    direction: Direction
    image: Shape
    weight: Shape
    output: Shape
    stride: Pair
    padding: Padding
    dilation: Pair

    @property
    def operands(self) -> tuple[Shape, Shape, Shape]:
        """Return the shapes of both operands and of the result."""
        if self.direction is Direction.FORWARD:
            return self.image, self.weight, self.output
        if self.direction is Direction.DATA:
            return self.output, self.weight, self.image
        return self.image, self.output, self.weight

    def __str__(self) -> str:
        first, second, result = ("x".join(map(str, shape)) for shape in self.operands)
        return f"{self.direction.value} of {first} and {second} to {result}"


@dataclass(frozen=True, slots=True)
class Planned:
    """A planned graph: its tensors (two operands and the result), the size of its workspace in bytes, and how it multiplies."""

    graph: Any
    tensors: tuple[Any, Any, Any]
    workspace: int
    variant: Variant


def describe(cudnn: Any, sliding: Sliding, variant: Variant, handle: Any = None) -> tuple[Any, tuple[Any, Any, Any]]:
    """Return the graph of one convolution, not yet planned, and its tensors: images (N, C, H, W), sums in float32."""
    kind = cudnn.data_type
    operands, result_kind = getattr(kind, variant.operands), getattr(kind, variant.result)
    graph = cudnn.pygraph(
        io_data_type=operands, intermediate_data_type=kind.FLOAT, compute_data_type=kind.FLOAT, handle=handle
    )
    first, second, result = sliding.operands
    a = graph.tensor(dim=list(first), stride=_strides(first), data_type=operands, name="first")
    b = graph.tensor(dim=list(second), stride=_strides(second), data_type=operands, name="second")
    (top, bottom), (left, right) = sliding.padding
    out = getattr(graph, sliding.direction.value)(
        a, b, pre_padding=[top, left], post_padding=[bottom, right], stride=list(sliding.stride),
        dilation=list(sliding.dilation), compute_data_type=kind.FLOAT,
    )
    out.set_output(True).set_data_type(result_kind).set_dim(list(result)).set_stride(_strides(result))
    return graph, (a, b, out)


def _strides(shape: Shape) -> list[int]:
    """Strides of contiguous memory, in elements."""
    strides = [1]
    for size in reversed(shape[1:]):
        strides.insert(0, strides[0] * size)
    return strides


def _strays(array: Array) -> bool:
    return bool(array.data.ptr % ALIGNMENT)


_handles: dict[tuple[int, int], tuple[Any, Any]] = {}  # by frontend and stream: one a process


def _handle_on(cudnn: Any, stream: Any) -> Any:
    """cuDNN's handle on a stream, kept with the frontend that made it."""
    key = id(cudnn), int(stream.ptr)
    if key not in _handles:
        handle = cudnn.create_handle()
        cudnn.set_stream(handle=handle, stream=stream.ptr)
        _handles[key] = handle, cudnn
    return _handles[key][0]


def load_cudnn() -> None:
    """Load libcudnn from a folder of ``sys.path`` in which cuDNN's frontend would not look. The frontend then gets it from the
    linker by name. Nothing is loaded if the frontend finds a library by itself."""
    name = "nvidia/cudnn/lib/libcudnn.so.9"
    if (Path(sysconfig.get_path("purelib")) / name).exists():
        return
    for folder in sys.path:
        if (path := Path(folder) / name).exists():
            with suppress(OSError):  # then the frontend says what is missing
                ctypes.CDLL(str(path), mode=ctypes.RTLD_GLOBAL)
                return


class Convolutions:
    """Plans and runs convolutions of float32 arrays on one GPU.

    Args: the array module, the stream, how float32 multiplies, a function that rounds an array to bfloat16 (as uint16), and one
    that widens such an array to float32 (or adds it to one). Raises whatever the frontend raises when it is imported or finds
    no library.
    """

    def __init__(
        self, xp: Any, stream: Any, precision: str, rounded: Callable[[Array], Array],
        widen: Callable[[Array, Array, bool], None],
    ) -> None:
        load_cudnn()
        import cudnn

        self._cudnn: Any = cudnn
        self._xp, self._variants, self._rounded, self._widen = xp, VARIANTS[precision], rounded, widen
        self._handle: Any = _handle_on(cudnn, stream)
        self._planned: dict[Sliding, Planned | None] = {}
        self._proved: set[Sliding] = set()  # has run: what fails from now on is no lack of support
        self._workspaces: list[Any] = [xp.empty(0, np.uint8)]  # the last serves; recorded steps may still use the others
        self.declined: dict[str, str] = {}
        """Convolutions that are done by patches and products, and what cuDNN said about them."""

    def run(
        self, direction: Direction, image: Array, weight: Array, output: Array, stride: Pair, padding: Padding, dilation: Pair,
        accumulate: bool = False,
    ) -> bool:
        """Fill (or add to) the one of image, weight and output that ``direction`` computes. Returns False, and does nothing, if
        cuDNN has no plan for it."""
        arrays = (image, weight, output)
        if not all(a.dtype == np.float32 and a.size and a.flags.c_contiguous for a in arrays):
            return False
        sliding = Sliding(
            direction, tuple(image.shape), tuple(weight.shape), tuple(output.shape), stride, padding, dilation
        )
        if sliding not in self._planned:
            self._planned[sliding] = self._plan(sliding)
        planned = self._planned[sliding]
        if planned is None:
            return False
        try:  # where it fails, nothing has been added to the result
            self._execute(planned, direction, arrays, accumulate)
            self._proved.add(sliding)
        except Exception as error:
            if sliding in self._proved:
                raise
            self._decline(sliding, error)
            self._planned[sliding] = None
            return False
        return True

    def _execute(self, planned: Planned, direction: Direction, arrays: tuple[Array, Array, Array], accumulate: bool) -> None:
        image, weight, output = arrays
        if direction is Direction.FORWARD:
            first, second, result = image, weight, output
        elif direction is Direction.DATA:
            first, second, result = output, weight, image
        else:
            first, second, result = image, output, weight
        variant = planned.variant
        if variant.operands == BFLOAT:
            first, second = self._rounded(first), self._rounded(second)
        first, second = self._aligned(first), self._aligned(second)
        narrow = variant.result == BFLOAT
        into = result
        if narrow or accumulate or _strays(result):
            into = self._xp.empty(result.shape, np.uint16 if narrow else np.float32)
        if planned.workspace > self._workspaces[-1].size:
            self._workspaces.append(self._xp.empty(planned.workspace, np.uint8))
        pointers = {tensor: int(array.data.ptr) for tensor, array in zip(planned.tensors, (first, second, into))}
        planned.graph.execute(pointers, int(self._workspaces[-1].data.ptr), handle=self._handle)
        if narrow:
            self._widen(into, result, accumulate)
        elif accumulate:
            result += into
        elif into is not result:
            result[...] = into

    def _aligned(self, array: Array) -> Array:
        """The array, or a copy if it begins where cuDNN would not read it: a weight within its layer's memory, a few samples."""
        if not _strays(array):
            return array
        copy = self._xp.empty(array.shape, array.dtype)
        copy[...] = array
        return copy

    def _plan(self, sliding: Sliding) -> Planned | None:
        """The first variant that cuDNN has a plan for; None if it has none. It says so in whatever way it likes: its versions
        raise errors of several types for that."""
        error: Exception | None = None
        for variant in self._variants:
            try:
                return self._plan_as(sliding, variant)
            except Exception as found:
                error = found
        assert error is not None
        self._decline(sliding, error)
        return None

    def _plan_as(self, sliding: Sliding, variant: Variant) -> Planned:
        cudnn = self._cudnn
        graph, tensors = describe(cudnn, sliding, variant, self._handle)
        graph.validate()
        graph.build_operation_graph()
        graph.create_execution_plans([cudnn.heur_mode.A, cudnn.heur_mode.FALLBACK])
        graph.deselect_numeric_notes([getattr(cudnn.numerical_note, name) for name in variant.without])
        graph.deselect_workspace_greater_than(MOST_WORKSPACE)
        graph.check_support()
        graph.build_plans()
        return Planned(graph, tensors, int(graph.get_workspace_size()), variant)

    def _decline(self, sliding: Sliding, error: Exception) -> None:
        """Say the first time that cuDNN does not do something, and note it every time."""
        message = f"{type(error).__name__}: {' '.join(str(error).split())[:200]}"
        if not self.declined:
            print(f"taskflow: cuDNN declines {sliding} ({message}); this goes by patches and products", file=sys.stderr)
        self.declined[str(sliding)] = message
