"""What we call of CuPy, cuBLAS and NCCL is there, with the parameters that we give: asked of the packages, without a GPU."""

from __future__ import annotations

import re
from typing import Any

import pytest
from strict_arrays import FUNCTIONS

cupy: Any = pytest.importorskip("cupy", reason='CuPy is not installed: pip install "soap-taskflow[gpu]"')


def parameters(function: Any) -> list[str]:
    """The names of the parameters in the first line of a compiled function's documentation."""
    found = re.match(r"[\w.]+\((.*?)\)", function.__doc__.strip().replace("\n", " "))
    assert found is not None, function.__doc__
    return [one.split("=")[0].split()[-1] for one in found[1].split(",") if one.strip() not in ("self", "")]


def test_the_strict_module_has_nothing_that_cupy_has_not() -> None:
    assert not [name for name in FUNCTIONS if not hasattr(cupy, name)]
    methods = "astype reshape view sum max min mean all any copy swapaxes transpose fill sort"
    assert not [name for name in methods.split() if not hasattr(cupy.ndarray, name)]


def test_cublas_is_loaded_with_cupy() -> None:
    from taskflow.kernels.gpu.cublas import opened

    library = opened()
    assert all(hasattr(library, name) for name in ("cublasGemmEx", "cublasGemmStridedBatchedEx", "cublasSetWorkspace_v2"))


def test_streams_events_and_copies() -> None:
    cuda = cupy.cuda
    assert parameters(cuda.MemoryPointer.copy_from_host_async) == ["mem", "size", "stream"]
    assert parameters(cuda.MemoryPointer.copy_to_host_async) == ["mem", "size", "stream"]
    assert parameters(cuda.Stream.wait_event) == ["event"] and parameters(cuda.Event.record) == ["stream"]
    assert parameters(cuda.get_elapsed_time) == ["start_event", "end_event"]
    assert parameters(cuda.Stream.begin_capture) == ["mode"] and parameters(cuda.Graph.launch) == ["stream"]
    assert "blocking" in parameters(cupy.ndarray.get), "get waits, on a stream of ours too"
    assert hasattr(cuda, "MemoryPool") and hasattr(cuda, "using_allocator") and hasattr(cuda.Stream, "end_capture")
    assert hasattr(cuda.Event, "done") and hasattr(cuda.Event, "synchronize") and hasattr(cuda, "alloc_pinned_memory")


def test_nccl_takes_what_we_give() -> None:
    nccl = pytest.importorskip("cupy.cuda.nccl")
    if not nccl.available:
        pytest.skip('NCCL is not installed: pip install "soap-taskflow[gpu]"')
    for function in (nccl.NcclCommunicator.send, nccl.NcclCommunicator.recv):
        assert parameters(function)[1:] == ["count", "datatype", "peer", "stream"]
    assert parameters(nccl.NcclCommunicator.allReduce)[1:] == ["sendbuf", "recvbuf", "count", "datatype", "op", "stream"]
    taken = {
        "reduceScatter": ["sendbuf", "recvbuf", "recvcount", "datatype", "op", "stream"],
        "allGather": ["sendbuf", "recvbuf", "count", "datatype", "stream"],
        "reduce": ["sendbuf", "recvbuf", "count", "datatype", "op", "root", "stream"],
        "broadcast": ["sendbuff", "recvbuff", "count", "datatype", "root", "stream"],
    }
    for name, wanted in taken.items():
        assert parameters(getattr(nccl.NcclCommunicator, name))[1:] == wanted
    assert parameters(nccl.groupStart) == parameters(nccl.groupEnd) == []
    assert hasattr(nccl, "NCCL_FLOAT32") and hasattr(nccl, "NCCL_FLOAT64") and hasattr(nccl, "NCCL_SUM")
    assert hasattr(nccl.NcclCommunicator, "check_async_error") and hasattr(nccl, "NCCL_UINT8")
    assert nccl.get_version() > 20000
