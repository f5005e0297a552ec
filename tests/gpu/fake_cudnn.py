"""A module in place of cuDNN's frontend: it takes the calls that we make, and computes by numpy what their numbers say.

What it refuses can be chosen. It shows that graphs, plans and pointers are put together rightly, not what cuDNN supports.
"""

from __future__ import annotations

import ctypes
from types import SimpleNamespace
from typing import Any

import numpy as np

from taskflow.kernels import NumpyKernels

data_type = SimpleNamespace(FLOAT=np.float32, BFLOAT16=np.uint16)
heur_mode = SimpleNamespace(A="A", FALLBACK="FALLBACK")
NOTES = ("NONDETERMINISTIC", "DOWN_CONVERT_INPUTS", "REDUCED_PRECISION_REDUCTION", "TENSOR_CORE")
numerical_note = SimpleNamespace(**{name: name for name in NOTES})


class cudnnGraphNotSupportedError(RuntimeError):
    """As the frontend raises it."""


class Tensor:
    def __init__(self, dim: list[int], stride: list[int], data_type: Any, name: str) -> None:
        assert len(dim) == len(stride) == 4 and name
        self.dim, self.stride, self.kind = dim, stride, data_type

    def set_output(self, is_output: bool) -> Tensor:
        assert is_output
        return self

    def set_data_type(self, kind: Any) -> Tensor:
        self.kind = kind
        return self

    def set_dim(self, dim: list[int]) -> Tensor:
        self.dim = dim
        return self

    def set_stride(self, stride: list[int]) -> Tensor:
        self.stride = stride
        return self

    def at(self, pointer: int) -> np.ndarray:
        """The memory there, as the tensor says it lies."""
        span = 1 + sum((n - 1) * s for n, s in zip(self.dim, self.stride))
        memory = np.frombuffer((ctypes.c_char * (span * np.dtype(self.kind).itemsize)).from_address(pointer), self.kind)
        return np.lib.stride_tricks.as_strided(memory, self.dim, [s * memory.itemsize for s in self.stride])


class Frontend:
    """The module. ``refuse``: called with the kinds of operands and result and the notes that are not wanted, True to refuse a
    plan; ``fail``: how many executions fail. ``executed``: kinds of those that did not."""

    data_type, heur_mode, numerical_note = data_type, heur_mode, numerical_note
    cudnnGraphNotSupportedError = cudnnGraphNotSupportedError

    def __init__(self, refuse: Any = lambda *_: False, fail: int = 0, workspace: int = 100) -> None:
        self.refuse, self.fail, self.workspace = refuse, fail, workspace
        self.executed: list[tuple[Any, Any]] = []
        self.stream: int | None = None

    def create_handle(self) -> object:
        return "handle"

    def set_stream(self, handle: object, stream: int) -> None:
        assert handle == "handle"
        self.stream = stream

    def pygraph(self, *, io_data_type: Any, intermediate_data_type: Any, compute_data_type: Any, handle: object) -> Graph:
        assert handle == "handle" and intermediate_data_type is compute_data_type is np.float32
        return Graph(self)


class Graph:
    def __init__(self, frontend: Frontend) -> None:
        self.frontend, self.unwanted = frontend, ()
        self.steps: list[str] = []

    def tensor(self, *, dim: list[int], stride: list[int], data_type: Any, name: str) -> Tensor:
        return Tensor(dim, stride, data_type, name)

    def __getattr__(self, name: str) -> Any:
        if name in ("conv_fprop", "conv_dgrad", "conv_wgrad"):
            return lambda a, b, **options: self._convolution(name, a, b, **options)
        if name in ("validate", "build_operation_graph", "build_plans"):
            return lambda: self.steps.append(name)
        raise AttributeError(name)

    def _convolution(
        self, kind: str, a: Tensor, b: Tensor, *, pre_padding: list[int], post_padding: list[int], stride: list[int],
        dilation: list[int], compute_data_type: Any,
    ) -> Tensor:
        padding = tuple(zip(pre_padding, post_padding))
        self.kind, self.slides = kind, (tuple(stride), padding, tuple(dilation))
        self.tensors = a, b, Tensor(a.dim, a.stride, compute_data_type, "out")
        return self.tensors[2]

    def create_execution_plans(self, modes: list[str]) -> None:
        assert modes == ["A", "FALLBACK"] and self.steps == ["validate", "build_operation_graph"]

    def deselect_numeric_notes(self, notes: list[str]) -> None:
        self.unwanted = tuple(notes)

    def deselect_workspace_greater_than(self, limit: int) -> None:
        assert limit > self.frontend.workspace

    def check_support(self) -> None:
        a, b, out = self.tensors
        assert a.kind is b.kind
        if self.frontend.refuse(a.kind, out.kind, self.unwanted):
            raise cudnnGraphNotSupportedError("no engine")

    def get_workspace_size(self) -> int:
        self.frontend.workspace += 1
        return self.frontend.workspace

    def execute(self, pointers: dict[Tensor, int], workspace: int, handle: object) -> None:
        assert handle == "handle" and workspace and set(pointers) == set(self.tensors) and self.steps[-1] == "build_plans"
        if self.frontend.fail:
            self.frontend.fail -= 1
            raise RuntimeError("CUDNN_STATUS_EXECUTION_FAILED")
        assert not any(pointer % 16 for pointer in pointers.values()), "cuDNN was told that tensors begin at multiples of 16 bytes"
        self.frontend.executed.append((self.tensors[0].kind, self.tensors[2].kind))
        a, b, out = (tensor.at(pointers[tensor]) for tensor in self.tensors)
        a, b = (wide(x) if x.dtype == np.uint16 else x for x in (a, b))
        result, kernels = np.empty(out.shape, np.float32), NumpyKernels()
        image, weight = (out, b) if self.kind == "conv_dgrad" else (a, out) if self.kind == "conv_wgrad" else (a, b)
        groups = image.shape[1] // weight.shape[1]
        if self.kind == "conv_fprop":
            kernels.conv2d(a, b, None, *self.slides, groups, out=result)
        elif self.kind == "conv_dgrad":
            kernels.conv2d_backward_data(a, b, *self.slides, groups, out=result)
        else:
            kernels.conv2d_backward_weight(a, b, *self.slides, groups, out=result)
        out[...] = narrow(result) if out.dtype == np.uint16 else result


def wide(x: np.ndarray) -> np.ndarray:
    return (x.astype(np.uint32) << 16).view(np.float32)


def narrow(x: np.ndarray) -> np.ndarray:
    bits = x.view(np.uint32)
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16)
