"""Checks of `taskflow doctor`. They run where everything that they look for is missing.

Whatever may be missing, hang or crash is looked for by its files, or tried in a process of its own.
"""

from __future__ import annotations

import os
import platform
import re
import shutil
import sys
from collections.abc import Callable, Iterator
from importlib.metadata import PackageNotFoundError, requires
from pathlib import Path

from taskflow.cli.doctor_checks_gpu import gpu
from taskflow.cli.finding import MISSING, NOTE, OK, WRONG, Finding, package, tried


def findings(say: Callable[[str], object] = lambda text: None) -> list[Finding]:
    """Yield all findings, in the order in which people ask for them."""
    result: list[Finding] = []
    for what in (_python, _processor, _memory, _kernels, _search, _trains, _mpi, gpu, _packages, _caches):
        say(f"looking at {what.__name__.strip('_')}")
        result.extend(what())
    return result


# ---- this process ----------------------------------------------------------------------------------------------------
def _python() -> Iterator[Finding]:
    import numpy

    from taskflow import __version__

    python = f"{platform.python_implementation()} {platform.python_version()}"
    system = f"{platform.system()} {platform.machine()}"
    yield Finding("taskflow", OK, f"taskflow {__version__}, {python}, numpy {numpy.__version__}; {system}")


def _processor() -> Iterator[Finding]:
    from taskflow.optimizer.cost.measured import processor_name
    from taskflow.runtime.job import node_cores, usable_cores

    usable, there = usable_cores(), node_cores()
    limited = f" ({there} on the machine)" if there != usable else ""
    yield Finding("processor", OK, f"{processor_name()}, {usable} core{'s' * (usable != 1)} to use{limited}")
    threads = os.environ.get("OMP_NUM_THREADS")
    yield Finding("threads", NOTE, f"OMP_NUM_THREADS={threads}" if threads else "OMP_NUM_THREADS is not set: kernels use every "
                  "core; under mpirun each rank takes its share")  # fmt: skip


def _memory() -> Iterator[Finding]:
    try:
        lines = dict(line.split(":", 1) for line in Path("/proc/meminfo").read_text().splitlines() if ":" in line)
        total, free = (int(lines[key].split()[0]) * 1024 for key in ("MemTotal", "MemAvailable"))
    except (OSError, KeyError, ValueError, IndexError):
        yield Finding("memory", NOTE, "this system does not say how much there is")
        return
    yield Finding("memory", OK, f"{total / 2**30:.1f} GiB, {free / 2**30:.1f} GiB available")


def instruction_set() -> list[str]:
    """Return the vector instructions that kernels can use, as the processor names them."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return []
    flags = next((line.partition(":")[2].split() for line in lines if line.startswith(("flags", "Features"))), [])
    return [flag for flag in ("avx2", "fma", "avx512f", "amx_tile", "asimd", "sve") if flag in flags]


def _kernels() -> Iterator[Finding]:
    from taskflow.kernels import REBUILD, default_kernels, native_built, onednn_missing
    from taskflow.optimizer.cost.measured import identity

    instructions = ", ".join(instruction_set()) or "unknown"
    try:
        kernels = default_kernels()
    except (RuntimeError, ValueError) as error:
        yield Finding("kernels", WRONG, str(error), "unset TASKFLOW_KERNELS")
        return
    chosen = os.environ.get("TASKFLOW_KERNELS")
    why = f"TASKFLOW_KERNELS={chosen}" if chosen else "the fastest that is there"
    yield Finding("kernels", OK, f"{kernels.name} ({why}); instructions: {instructions}")
    if native_built():
        yield Finding("compiled loops", OK, "built")
    else:
        yield Finding("compiled loops", MISSING, "not built: numpy serves, several times slower", REBUILD)
    lacks = onednn_missing()
    if lacks is None:
        from taskflow.kernels.onednn.library import load

        yield Finding("oneDNN", OK, f"{load().version}")
    elif native_built():
        yield Finding("oneDNN", MISSING, lacks, "pip install 'soap-taskflow[onednn]'")
    else:
        yield Finding("oneDNN", MISSING, "not built", REBUILD)
    of = identity(kernels)
    yield Finding("BLAS", OK, f"{of['blas']}, kernels for {of['blas_core']}, {of['blas_threads']} threads")
    forced = os.environ.get("OPENBLAS_CORETYPE")
    if forced and "avx512f" in instruction_set() and forced.lower() in ("haswell", "zen"):
        yield Finding("BLAS", MISSING, f"OPENBLAS_CORETYPE={forced} holds numpy to AVX2, though the processor has AVX-512",
                      "unset OPENBLAS_CORETYPE")  # fmt: skip


def _search() -> Iterator[Finding]:
    from taskflow.kernels import REBUILD

    try:
        from taskflow.optimizer.evaluate import compiled as core  # noqa: F401
    except ImportError as error:
        yield Finding("search", MISSING, f"no compiled evaluator ({error}): search works, but many times slower", REBUILD)
    else:
        yield Finding("search", OK, "the compiled evaluator is there")


def _trains() -> Iterator[Finding]:
    """A network of two layers on two virtual processors learns."""
    import numpy as np

    from taskflow import operators as ops
    from taskflow.graph import OperatorGraph
    from taskflow.machine import host
    from taskflow.mapper import choose
    from taskflow.rules import SGD
    from taskflow.runtime import Executor
    from taskflow.runtime.transport import LocalTransport

    try:
        graph, machine = OperatorGraph(), host(2)
        x, label = ops.input(graph, (8, 4), name="x"), ops.input(graph, (8,), "int64", name="label")
        hidden = ops.relu(ops.linear(x, 8))
        graph.minimize(ops.cross_entropy(ops.linear(hidden, 2), label))
        strategy, mapper = choose("data", graph, machine)
        run = Executor(graph, strategy, SGD(lr=0.5), transport=LocalTransport(), machine=machine, mapper=mapper)
        values = np.random.default_rng(0).normal(size=(8, 4)).astype("float32")
        batch = {"x": values, "label": (values[:, 0] > 0).astype("int64")}
        losses = [run.train(batch) or 0.0 for _ in range(20)]
    except Exception as error:  # whatever it is, it is what the user wants to know
        yield Finding("training", WRONG, f"a small network does not train: {type(error).__name__}: {error}")
        return
    if losses[-1] < losses[0]:
        yield Finding("training", OK, f"a small network on 2 virtual processors: loss {losses[0]:.3f} -> {losses[-1]:.3f}")
    else:
        yield Finding("training", WRONG, f"a small network does not learn: loss {losses[0]:.3f} -> {losses[-1]:.3f}")


# ---- MPI -------------------------------------------------------------------------------------------------------------
_LIBRARY = "import mpi4py; mpi4py.rc.initialize = False; from mpi4py import MPI; print(MPI.Get_library_version())"
_SIZE = "from mpi4py import MPI; print(f'ranks={MPI.COMM_WORLD.size}')"
INSTALL = "pip install 'soap-taskflow[mpi]' (on a cluster, against its own MPI: pip install --no-binary mpi4py mpi4py)"


def _mpi() -> Iterator[Finding]:
    from taskflow.runtime.job import LEAN_BYTES, MORE, in_words, launcher, room

    wrapper = package("mpi4py")
    if wrapper is None:
        yield Finding("MPI", MISSING, "mpi4py is not installed: taskflow runs in one process only", INSTALL)
        return
    code, text = tried(sys.executable, "-c", _LIBRARY)
    if code != 0:
        yield Finding("MPI", MISSING, f"mpi4py {wrapper} is installed, but its MPI library does not load: {_last(text)}", INSTALL)
        return
    library = " ".join(text.split("\n")[0].replace("\t", " ").split())
    yield Finding("MPI", OK, f"mpi4py {wrapper}, {library}")
    if (started := launcher()) is not None:
        yield Finding("mpirun", NOTE, f"this is rank {started.rank} of {started.size}, started by {started.name}")
        return
    beside = Path(sys.executable).parent / "mpirun"
    program = shutil.which("mpirun") or (str(beside) if os.access(beside, os.X_OK) else None)
    if program is None:
        yield Finding("mpirun", MISSING, "there is none on PATH", INSTALL)
        return
    if "MPICH" in library and (there := room()) is not None:
        full = there.free < 2 * LEAN_BYTES
        yield Finding("shared memory", MISSING if full else OK, in_words(there), MORE if full else "")
        if full:
            yield Finding("mpirun", NOTE, f"{program} is not tried: it would find no room in /dev/shm")
            return
    code, text = tried(program, "-n", "2", sys.executable, "-c", _SIZE)
    if code == 0 and text.count("ranks=2") == 2:  # ranks may write into each other's lines
        yield Finding("mpirun", OK, f"{program} starts ranks that find each other")
    else:
        why = "of another MPI than mpi4py's" if "ranks=1" in text else f"it says: {_last(text)}"
        own = f"use {beside}" if os.access(beside, os.X_OK) and str(beside) != program else INSTALL
        yield Finding("mpirun", MISSING, f"{program} does not start 2 ranks that find each other: {why}", own)


def _last(text: str) -> str:
    return " ".join((text.strip().splitlines() or ["nothing"])[-1].split())[:200]


# ---- files -----------------------------------------------------------------------------------------------------------
def _packages() -> Iterator[Finding]:
    """Every package that some extra brings, by extra."""
    for extra, names in extras().items():
        there = {name: package(name) for name in names}
        has = ", ".join(f"{name} {have}" for name, have in there.items() if have is not None)
        lacks = ", ".join(name for name, have in there.items() if have is None)
        found = "; ".join(filter(None, (has, lacks and f"not installed: {lacks}")))
        yield Finding(f"extra {extra}", NOTE, found, f"pip install 'soap-taskflow[{extra}]'" if lacks else "")


def extras() -> dict[str, list[str]]:
    """Return the distributions of each extra that users may want (not those that only tests and documentation need)."""
    try:
        needed = requires("soap-taskflow") or []
    except PackageNotFoundError:  # run from its sources
        return {}
    found: dict[str, list[str]] = {}
    for text in needed:
        name, extra = re.match(r"[\w.-]+", text), re.search(r"""extra == ['"]([\w-]+)['"]""", text)
        if name and extra and extra[1] not in ("test", "docs", "browser"):
            found.setdefault(extra[1], []).append(name[0])
    return {extra: [name for name in names if name != "soap-taskflow"] for extra, names in sorted(found.items())}


def _caches() -> Iterator[Finding]:
    from taskflow.cache import cache_folder

    folder = cache_folder()
    if folder is None:
        yield Finding("caches", MISSING, "there is no home folder to keep measured costs in", "export TASKFLOW_CACHE=FOLDER")
        return
    if not folder.is_dir():
        yield Finding("caches", OK, f"{folder} (not there yet)")
        return
    sizes = [path.stat().st_size for path in folder.rglob("*") if path.is_file()]
    if os.access(folder, os.W_OK):
        yield Finding("caches", OK, f"{folder}: {len(sizes)} files, {sum(sizes) / 1e6:.1f} MB")
    else:
        yield Finding("caches", MISSING, f"{folder} cannot be written", "export TASKFLOW_CACHE=FOLDER")
