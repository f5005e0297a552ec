"""A device whose kernels run on the host: the very .cu files, compiled by the host's compiler, every argument checked.

Blocks come one after another; the threads of one take turns, from one __syncthreads to the next, so sums over a block are put to
the test. Turns go from the first to the last and then from the last to the first, so that a __syncthreads that is missing shows,
always or never: with threads of the system that was luck, and on a busy machine every meeting took milliseconds. Products take
the very numbers that cuBLAS would get. What is not shown by it: that a GPU and its libraries do the same.
"""

from __future__ import annotations

import ctypes
import os
import re
import shutil
import subprocess
import tempfile
from contextlib import nullcontext
from functools import lru_cache
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np
from strict_arrays import TAPE, DeviceArray, xp

from taskflow.kernels.device import NotRecorded, Recorder
from taskflow.kernels.gpu import gemm, source
from taskflow.kernels.gpu.kernels import GPUKernels
from taskflow.kernels.gpu.launching import NULL, LaunchingDevice
from taskflow.kernels.gpu.step_scalars import StepScalars

BLOCKS, THREADS = 3, 4
COMPILER = shutil.which("g++") or shutil.which("clang++")
SHIM = """
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <vector>
#include <ucontext.h>
using std::sqrt; using std::exp; using std::tanh; using std::erf; using std::log; using std::log1p; using std::sin; using std::cos;
struct Place { unsigned x; };
static Place threadIdx, blockIdx, blockDim, gridDim;
struct Thread { ucontext_t context; std::vector<char> stack; bool over; };
static std::vector<Thread> host_all;
static ucontext_t host_between;
static void (*host_call)(void *);
static void *host_what;
#define __global__
#define __device__
#define __shared__ static
static void __syncthreads() { swapcontext(&host_all[threadIdx.x].context, &host_between); }
static void host_whole() {
    host_call(host_what);
    host_all[threadIdx.x].over = true;
}
template <class Body> static void run(unsigned blocks, unsigned threads, bool meet, Body body) {
    gridDim.x = blocks;
    blockDim.x = threads;
    for (blockIdx.x = 0; !meet && blockIdx.x < blocks; blockIdx.x++)
        for (threadIdx.x = 0; threadIdx.x < threads; threadIdx.x++) body();
    if (!meet) return;
    host_all.resize(threads);
    host_call = [](void *it) { (*static_cast<Body *>(it))(); };
    host_what = &body;
    for (blockIdx.x = 0; blockIdx.x < blocks; blockIdx.x++) {
        for (Thread &thread : host_all) {
            thread.over = false;
            thread.stack.resize(1 << 18);
            getcontext(&thread.context);
            thread.context.uc_stack.ss_sp = thread.stack.data();
            thread.context.uc_stack.ss_size = thread.stack.size();
            thread.context.uc_link = &host_between;
            makecontext(&thread.context, host_whole, 0);
        }
        unsigned over = 0;
        for (bool back = false; over < threads; back = !back) {
            for (unsigned i = 0; i < threads; i++) {
                threadIdx.x = back ? threads - 1 - i : i;
                swapcontext(&host_between, &host_all[threadIdx.x].context);
                over += host_all[threadIdx.x].over;
            }
            if (over % threads) {
                fprintf(stderr, "host emulation: %u of %u threads of a block end, the others wait for them\\n", over, threads);
                abort();
            }
        }
    }
}
"""
SCALARS = {"Int": np.int64, "int": np.int32, "Word": np.uint32, "Long": np.uint64, "double": np.float64}
POINTERS = {"double": "float64", "Int": "int64", "unsigned char": ("bool", "uint8"), "unsigned short": "uint16",
            "unsigned int": "uint32"}


@lru_cache(maxsize=1)
def compiles() -> bool:
    """Whether the host has a C++ compiler for C++20, and ucontext.h."""
    if COMPILER is None:
        return False
    probe = "#include <ucontext.h>\nint main() { ucontext_t here; return getcontext(&here); }"
    command = [COMPILER, "-std=c++20", "-fsyntax-only", "-x", "c++", "-"]
    return subprocess.run(command, input=probe, text=True, capture_output=True, check=False).returncode == 0


@lru_cache(maxsize=2)
def library(dtype: str) -> ctypes.CDLL:
    """The kernels for one type of arrays."""
    code = [SHIM, source.text(dtype)]
    meeting = _meeting(source.text(dtype))
    for kernel in source.kernels().values():
        declared = ", ".join(f"{kind} {name}" for kind, name in kernel.parameters)
        given = ", ".join(name for _, name in kernel.parameters)
        code.append(
            f'extern "C" void host_{kernel.name}(unsigned blocks, unsigned threads, {declared}) '
            f"{{ run(blocks, threads, {str(kernel.name in meeting).lower()}, [&] {{ {kernel.name}({given}); }}); }}"
        )
    whole = "\n".join(code)
    kept = Path(tempfile.gettempdir()) / f"taskflow-kernels-{os.getuid()}-{sha256(whole.encode()).hexdigest()[:16]}.so"
    if not kept.exists():  # ranks of a job and later runs find it
        folder = Path(tempfile.mkdtemp(prefix="kernels", dir=kept.parent))
        (folder / "kernels.cpp").write_text(whole)
        command = [str(COMPILER), "-std=c++20", "-O1", "-shared", "-fPIC", "-o", "kernels.so", "kernels.cpp"]
        subprocess.run(command, cwd=folder, check=True)
        (folder / "kernels.so").replace(kept)
        shutil.rmtree(folder)
    return ctypes.CDLL(str(kept))


def _meeting(text: str) -> set[str]:
    """The kernels whose threads meet."""
    bodies = re.split(r'(?=extern "C" __global__ void )', text)[1:]
    return {re.match(r'extern "C" __global__ void (\w+)', body)[1] for body in bodies if "block_" in body}  # type: ignore[index]


class Later:
    """An event that comes to pass only after it has been asked for a few times: as late as a GPU may be."""

    def __init__(self, act: Any) -> None:
        self.act, self.left = act, 3

    @property
    def done(self) -> bool:
        if self.left:
            self.left -= 1
            if not self.left:
                self.act()
        return not self.left


class HostDevice(LaunchingDevice):
    """``strict``: arrays refuse to be mixed with numpy's, as a GPU's do."""

    __slots__ = ("dials", "found", "launches", "recorders", "records", "xp")
    name = "host emulation"

    def __init__(self, strict: bool = True, records: bool = False) -> None:
        self.dials: StepScalars | None = None
        self.records, self.recorders = records, []
        self.xp = xp if strict else np
        self.found: list[tuple[Any, str]] = []
        self.launches: set[str] = set()

    def launch(self, dtype: np.dtype[Any], name: str, blocks: int, arguments: tuple[Any, ...]) -> None:
        kernel = source.kernels()[name]
        assert len(arguments) == len(kernel.parameters), f"{name} takes {len(kernel.parameters)}, got {len(arguments)}"
        assert blocks >= 1
        self.launches.add(name)
        values = [self._argument(name, dtype, *p, a) for p, a in zip(kernel.parameters, arguments)]

        def act() -> None:
            assert arguments is not None  # whose memory the addresses are in
            getattr(library(dtype.name), f"host_{name}")(
                ctypes.c_uint(min(blocks, BLOCKS)), ctypes.c_uint(THREADS), *values
            )

        if not TAPE.note(act):
            act()

    def compile(self, dtype: np.dtype[Any]) -> int:
        made = library(dtype.name)
        return sum(hasattr(made, f"host_{name}") for name in source.kernels())

    def _argument(self, name: str, dtype: np.dtype[Any], kind: str, called: str, value: Any) -> Any:
        where = f"{name}: {called} ({kind})"
        if kind.endswith("*"):
            if value is NULL:
                return ctypes.c_void_p(0)
            base = kind.removeprefix("const ").removesuffix("*").strip()
            wanted = dtype.name if base == "REAL" else POINTERS[base]
            array = value.host if isinstance(value, DeviceArray) else value
            assert isinstance(value, self.xp.ndarray), f"{where}: not an array of this device: {type(value)}"
            assert array.dtype.name in wanted, f"{where}: an array of {array.dtype}"
            pitched = called in ("gates", "c_prev", "c", "h", "dh", "dc", "dgates")
            assert pitched or array.flags.c_contiguous, f"{where}: not contiguous"
            return ctypes.c_void_p(array.ctypes.data)
        wanted_type = dtype.type if kind == "REAL" else SCALARS[kind]
        assert type(value) is wanted_type, f"{where}: {value!r} of {type(value)}"
        return np.ctypeslib.as_ctypes_type(wanted_type)(value.item())

    def gemm(self, call: gemm.ColumnMajor, first: Any, second: Any, out: Any, accumulate: bool) -> None:
        assert first.dtype == second.dtype == (np.uint16 if self.precision == "bf16" and first.dtype != out.dtype else out.dtype)
        given, into = tuple(map(flat, (first, second))), flat(out)

        def act() -> None:
            wide = (one if one.dtype != np.uint16 else (one.astype(np.uint32) << 16).view(np.float32) for one in given)
            column_major_product(call, *wide, into, accumulate)

        if not TAPE.note(act):
            act()

    def recorder(self) -> Recorder | None:
        if not self.records:
            return None
        self.recorders.append(HostRecorder(self))
        return self.recorders[-1]

    def pinned(self, shape: tuple[int, ...], dtype: np.dtype[Any]) -> np.ndarray:
        return np.empty(shape, dtype)

    def copy_out(self, array: Any, staging: np.ndarray) -> Any:
        return Later(lambda: np.copyto(staging, array.host))

    def copy_in(self, staging: np.ndarray, array: Any, after: Any) -> Any:
        if after is not None:
            self.wait_for(after)
        array.host[...] = staging
        return Later(lambda: None)

    def among_messages(self) -> Any:
        return nullcontext()

    def mark(self, stream: Any = None) -> Any:
        return Later(lambda: None)

    def wait_for(self, event: Any) -> None:
        while not event.done:
            pass

    @property
    def facts(self) -> dict[str, int]:
        return {"memory_bytes": 8 << 30, "multiprocessors": 7, "cache_bytes": 1 << 20}

    @property
    def libraries(self) -> dict[str, str]:
        return {"cublas": "none", "cudnn": "none", "precision": "fp32"}

    @property
    def identity(self) -> str:
        return "host"

    def carve(self, block: Any, offset: int, shape: tuple[int, ...], dtype: np.dtype[Any]) -> Any:
        size = int(np.prod(shape, dtype=np.int64)) * dtype.itemsize
        return block[offset : offset + size].view(dtype).reshape(shape)

    def to_host(self, array: Any, out: np.ndarray | None = None) -> np.ndarray:
        TAPE.read("to_host")
        found = np.array(array.host if isinstance(array, DeviceArray) else array)
        if out is None:
            return found
        assert out.flags.c_contiguous and (out.shape, out.dtype) == (found.shape, found.dtype), "to_host: another array than out"
        out[...] = found
        return out

    def upload(self, host: np.ndarray, out: Any) -> None:
        assert isinstance(host, np.ndarray), f"upload: not the host's: {type(host)}"
        TAPE.read("upload")
        (out.host if isinstance(out, DeviceArray) else out)[...] = host

    def number(self, value: Any) -> Any:
        return value.reshape(()).astype(np.float64, copy=False)

    def require(self, fits: Any, values: Any, message: str) -> None:
        self.found.append((fits.all(), message))

    def verify(self) -> None:
        found, self.found = self.found, []
        for fits, message in found:
            if not fits:
                raise ValueError(message.replace("{given}", "another"))


class HostRecorder(Recorder):
    """Notes what is asked of a `HostDevice`. ``replays``: how often something was replayed; ``refuse``: actions that fail."""

    def __init__(self, device: HostDevice) -> None:
        self.device, self.dials = device, StepScalars(device)
        self.replays = 0
        self.recorded: list[int] = []

    def record(self, actions: Any) -> Any:
        found, number = len(self.device.found), 0
        tape: list[Any] = []
        TAPE.actions, self.device.dials = tape, self.dials
        try:
            for action in actions:
                action()
                number += 1
        except Exception as error:
            del self.device.found[found:]
            raise NotRecorded(str(error), number) from error
        finally:
            TAPE.actions = self.device.dials = None
        checks = self.device.found[found:]
        del self.device.found[found:]
        self.recorded.append(len(actions))

        def replay() -> None:
            self.replays += 1
            for one in tape:
                one()
            self.device.found.extend(checks)

        return replay

    def set(self, lr: float, step: int, updates: int) -> None:
        self.dials.set(lr, step, updates)


def flat(array: Any) -> np.ndarray:
    """The memory from an array's first element on."""
    host = array.host if isinstance(array, DeviceArray) else array
    span = 1 + sum((n - 1) * abs(s) for n, s in zip(host.shape, host.strides)) // host.itemsize if host.size else 0
    return np.lib.stride_tricks.as_strided(host, (span,), (host.itemsize,))


def column_major_product(
    call: gemm.ColumnMajor, first: np.ndarray, second: np.ndarray, out: np.ndarray, accumulate: bool
) -> None:
    """cublasGemmStridedBatchedEx as its documentation has it: out = op(first) op(second), all in column-major order."""

    def operand(memory: np.ndarray, at: int, rows: int, columns: int, pitch: int, transposed: int) -> np.ndarray:
        if transposed:
            rows, columns = columns, rows
        assert pitch >= max(1, rows), f"a leading dimension of {pitch} for {rows} rows"
        size = memory.itemsize
        last = at + (rows - 1) + (columns - 1) * pitch
        assert not rows * columns or last < memory.size, "beyond the array"
        view = np.lib.stride_tricks.as_strided(memory[at:], (rows, columns), (size, pitch * size))
        return view.T if transposed else view

    for i in range(call.count):
        left = operand(first, i * call.first_step, call.m, call.k, call.first_pitch, call.transpose_first)
        right = operand(second, i * call.second_step, call.k, call.n, call.second_pitch, call.transpose_second)
        into = operand(out, i * call.out_step, call.m, call.n, call.out_pitch, 0)
        into[...] = left @ right + (into if accumulate else 0)


def host_kernels(strict: bool = True, records: bool = False) -> GPUKernels:
    """The GPU's kernel set on the host. ``records``: as on a GPU whose steps are captured."""
    return GPUKernels(HostDevice(strict, records))
