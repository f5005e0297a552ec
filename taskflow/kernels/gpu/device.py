"""CupyDevice: one GPU through CuPy: memory, streams, pinned staging, kernels compiled by NVRTC, products by cuBLAS."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable
from socket import gethostname
from typing import Any

import numpy as np

from taskflow.kernels.device import NotRecorded, Recorder
from taskflow.kernels.gpu import source
from taskflow.kernels.gpu.cublas import WORKSPACE_BYTES, Cublas
from taskflow.kernels.gpu.events import Moment
from taskflow.kernels.gpu.gemm import ColumnMajor
from taskflow.kernels.gpu.graphs import CudaRecorder
from taskflow.kernels.gpu.launching import THREADS, LaunchingDevice
from taskflow.kernels.kernel_set import Array

PRECISIONS = ("fp32", "tf32", "bf16")
OPTIONS = ("-std=c++17",)  # of NVRTC; no fast-math: the CPU's numbers are the measure
GRAPHS_VARIABLE = "TASKFLOW_GRAPHS"
"""0: steps are not captured as CUDA graphs."""


class CupyDevice(LaunchingDevice):
    """GPU number ``index`` of those that CUDA shows this process.

    Kernels run on the stream ``compute``. Copies to and from pinned memory run beside them on ``transfer``. ``precision``: how
    float32 matrix products and convolutions multiply: in float32, or rounded to TF32 or bfloat16, with sums in float32.
    """

    __slots__ = (
        "_cublas", "_device", "_functions", "_staged", "_timing", "compute", "dials", "found", "index", "precision",
        "transfer", "xp",
    )
    compute: Any
    transfer: Any
    found: list[tuple[Any, str]]
    """What `require` has noted for `verify`."""

    def __init__(self, index: int, precision: str) -> None:
        if precision not in PRECISIONS:
            raise ValueError(f"GPU: precision must be {', '.join(PRECISIONS[:-1])} or {PRECISIONS[-1]}, got {precision!r}")
        import cupy

        self.xp: Any = cupy
        self.index, self.precision = index, precision
        self._device: Any = cupy.cuda.Device(index)
        self._device.use()
        self.compute, self.transfer = _streams_of(cupy, index)
        self.compute.use()
        self._cublas = _products_of(cupy, index, self.compute, precision)
        self._functions: dict[tuple[str, str], Any] = {}
        self._staged: deque[tuple[Any, Any]] = deque()
        self.found, self.dials = [], None
        self._timing: tuple[Any, Callable[[], object] | None] = None, None  # what is timed, and what replays it

    @property
    def name(self) -> str:  # type: ignore[override]
        """Name of the card."""
        return str(self.xp.cuda.runtime.getDeviceProperties(self.index)["name"].decode())

    # ---- kernels ------------------------------------------------------------------------------------------------
    def launch(self, dtype: np.dtype[Any], name: str, blocks: int, arguments: tuple[Any, ...]) -> None:
        function = self._functions.get((dtype.name, name))
        if function is None:
            self.compile(dtype)
            function = self._functions[dtype.name, name]
        function((blocks,), (THREADS,), arguments)

    def compile(self, dtype: np.dtype[Any]) -> int:
        module = self.xp.RawModule(code=source.text(dtype), options=OPTIONS)
        for name in source.kernels():
            self._functions[dtype.name, name] = module.get_function(name)
        return len(source.kernels())

    def gemm(self, call: ColumnMajor, first: Array, second: Array, out: Array, accumulate: bool) -> None:
        narrow = first.dtype == np.uint16
        self._cublas.gemm(call, out.dtype, first.data.ptr, second.data.ptr, out.data.ptr, accumulate, narrow)

    def recorder(self) -> Recorder | None:
        """Return a recorder that captures CUDA graphs; None if TASKFLOW_GRAPHS is 0."""
        return None if os.environ.get(GRAPHS_VARIABLE) == "0" else CudaRecorder(self)

    def activate(self) -> None:
        """See `ArrayDevice`: CuPy keeps a current GPU and stream for each thread."""
        self._device.use()
        self.compute.use()

    # ---- memory -------------------------------------------------------------------------------------------------
    def carve(self, block: Array, offset: int, shape: tuple[int, ...], dtype: np.dtype[Any]) -> Array:
        """See `ArrayDevice`."""
        return self.xp.ndarray(shape, dtype, memptr=block.data + offset)

    def to_host(self, array: Array, out: np.ndarray[Any, Any] | None = None) -> np.ndarray[Any, Any]:
        """See `ArrayDevice`; waits for the kernels."""
        return np.asarray(array.get(stream=self.compute, out=out))

    def upload(self, host: np.ndarray[Any, Any], out: Array) -> None:
        """See `ArrayDevice`; returns when the values are in pinned memory, from where the GPU copies them."""
        if not out.size:
            return
        if self.dials is not None:  # a replay would send what the host's array held when it was captured
            raise RuntimeError("an array of the host cannot be sent while a step is being captured")
        target = out if out.flags.c_contiguous else self.xp.empty(out.shape, out.dtype)
        staging = self.pinned(out.shape, out.dtype)
        np.copyto(staging, host)
        target.data.copy_from_host_async(staging.ctypes.data, target.nbytes, self.compute)
        self._keep(staging, self.compute)
        if target is not out:
            out[...] = target

    def pinned(self, shape: tuple[int, ...], dtype: np.dtype[Any]) -> np.ndarray[Any, Any]:
        """Return an array on the host that the GPU can copy from and to by itself."""
        size = int(np.prod(shape, dtype=np.int64))
        block = self.xp.cuda.alloc_pinned_memory(max(1, size * dtype.itemsize))
        return np.frombuffer(block, dtype, size).reshape(shape)

    # ---- copies beside the kernels ------------------------------------------------------------------------------
    def copy_out(self, array: Array, staging: np.ndarray[Any, Any]) -> Any:
        self.follow(self.transfer)
        array.data.copy_to_host_async(staging.ctypes.data, array.nbytes, self.transfer)
        return self.mark(self.transfer)

    def copy_in(self, staging: np.ndarray[Any, Any], array: Array, after: Any) -> Any:
        if after is not None:
            self.transfer.wait_event(after)
        array.data.copy_from_host_async(staging.ctypes.data, array.nbytes, self.transfer)
        event = self.mark(self.transfer)
        self.compute.wait_event(event)
        return event

    def among_messages(self) -> Any:
        return self.transfer

    def mark(self, stream: Any = None) -> Any:
        event = self.xp.cuda.Event(disable_timing=True)
        event.record(self.compute if stream is None else stream)
        return Moment(self.xp.cuda.runtime, event)

    def wait_for(self, event: Any) -> None:
        event.synchronize()

    def follow(self, stream: Any) -> None:
        """Let later work on ``stream`` wait for all work queued so far on the kernels' stream."""
        stream.wait_event(self.mark())

    def compute_after(self, event: Any) -> None:
        """Let kernels launched from now on wait for an event."""
        self.compute.wait_event(event)

    @property
    def identity(self) -> str:
        found = self.xp.cuda.runtime.getDeviceProperties(self.index).get("uuid")
        if isinstance(found, bytes) and any(found):
            return found.hex()
        return f"{gethostname()} {self._device.pci_bus_id}"

    @property
    def nccl_version(self) -> int:
        try:
            from cupy.cuda import nccl
        except ImportError:
            return 0
        return int(nccl.get_version()) if nccl.available else 0

    def _keep(self, staging: Any, stream: Any) -> None:
        """Keep pinned memory until what was asked of ``stream`` so far is done."""
        self._staged.append((self.mark(stream), staging))
        while self._staged and self._staged[0][0].done:
            self._staged.popleft()

    # ---- what is asked later ------------------------------------------------------------------------------------
    def number(self, value: Array) -> Any:
        """Return the array itself, of shape (), in float64: its product with a float is then rounded no sooner than on the host."""
        return value.reshape(()).astype(np.float64, copy=False)

    def require(self, fits: Array, values: Array, message: str) -> None:
        """See `ArrayDevice`; the check runs on the GPU, and `verify` raises its error."""
        self.found.append((fits.all(), message))

    def verify(self) -> None:
        """Raise ValueError if a check of `require` has failed since the last call."""
        found, self.found = self.found, []
        if not found:
            return
        answers = self.xp.stack([fits for fits, _ in found]).get()
        for fits, (_, message) in zip(answers, found):
            if not fits:
                raise ValueError(message.replace("{given}", "another (the GPU says so when the step is over)"))

    def timed(self, action: Callable[[], object]) -> float:
        """See `ArrayDevice`: measured between two events on the kernels' stream. From the second time on, an action is replayed
        from a graph where possible, as in a recorded step; else the time of launching small kernels would count."""
        asked, replay = self._timing
        if asked is not action:
            self._timing, run = (action, None), action
        else:
            if replay is None:
                replay = self._recorded(action)
                self._timing = action, replay
            run = replay
        begin, end = self.xp.cuda.Event(), self.xp.cuda.Event()
        begin.record(self.compute)
        run()
        end.record(self.compute)
        end.synchronize()
        return float(self.xp.cuda.get_elapsed_time(begin, end)) * 1e-3

    def _recorded(self, action: Callable[[], object]) -> Callable[[], object]:
        """Return what replays an action; itself if it cannot be recorded or steps are not."""
        recorder = self.recorder()
        if recorder is None:
            return action
        try:
            replay = recorder.record([action])
        except NotRecorded:
            return action
        recorder.set(0.0, 1, 1)
        return replay

    @property
    def facts(self) -> dict[str, int]:
        found = self.xp.cuda.runtime.getDeviceProperties(self.index)
        return {
            "memory_bytes": int(found["totalGlobalMem"]), "multiprocessors": int(found["multiProcessorCount"]),
            "cache_bytes": int(found["l2CacheSize"]),
        }

    @property
    def libraries(self) -> dict[str, str]:
        runtime = self.xp.cuda.runtime
        try:
            import cudnn

            version = str(cudnn.backend_version())
        except Exception:  # not installed, or installed without the library that it opens
            version = "none"
        return {
            "cupy": str(self.xp.__version__), "cuda": str(runtime.runtimeGetVersion()), "driver": str(runtime.driverGetVersion()),
            "cublas": str(self._cublas.version), "cudnn": version, "precision": self.precision,
            "graphs": "off" if self.recorder() is None else "on",
        }

    def synchronize(self) -> None:
        """Wait for both streams."""
        self.compute.synchronize()
        self.transfer.synchronize()


_products: dict[tuple[int, str], tuple[Cublas, Any]] = {}
_streams: dict[int, tuple[Any, Any]] = {}


def _products_of(cupy: Any, index: int, stream: Any, precision: str) -> Cublas:
    """cuBLAS on the kernels' stream: one handle a process, GPU and precision, beside its working memory."""
    if (index, precision) not in _products:
        memory = cupy.empty(WORKSPACE_BYTES, np.uint8)
        _products[index, precision] = Cublas(stream.ptr, (memory.data.ptr, WORKSPACE_BYTES), precision), memory
    return _products[index, precision][0]


def _streams_of(cupy: Any, index: int) -> tuple[Any, Any]:
    """The kernels' and the transfers' stream of a GPU: one pair a process, so that all kernel sets on it keep one order."""
    if index not in _streams:
        _streams[index] = cupy.cuda.Stream(non_blocking=True), cupy.cuda.Stream(non_blocking=True)
    return _streams[index]
