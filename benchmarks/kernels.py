"""CPU time of every kernel: numpy's, the compiled one, and with --torch PyTorch's operator: interleaved runs, medians, one
thread.

    python benchmarks/kernels.py [--torch] [--json] [--rounds 15] [--only pool --only batch_norm] [--images 16]

OPENBLAS_CORETYPE is unset here, so that numpy's BLAS uses all that the processor has. PyTorch's operators allocate their
results; how much of their time is page faults shows with glibc's malloc told to keep memory:
MALLOC_MMAP_THRESHOLD_=2000000000 MALLOC_TRIM_THRESHOLD_=8000000000 MALLOC_TOP_PAD_=400000000.
"""

from __future__ import annotations

import argparse
import json
import os
from collections.abc import Callable, Sequence
from statistics import median
from time import thread_time
from typing import Any

os.environ.pop("OPENBLAS_CORETYPE", None)  # before numpy loads its BLAS
os.environ["OPENBLAS_NUM_THREADS"] = "1"

import kernel_cases
import numpy as np
from kernel_cases import Call, Case
from rich.console import Console
from rich.table import Table

from taskflow.kernels import KernelSet, NumpyKernels
from taskflow.kernels import busy as native_busy
from taskflow.kernels import busy as numpy_busy
from taskflow.kernels.native.kernels import NativeKernels

SETS = NumpyKernels(), NativeKernels()


def cases(dtype: Any) -> list[Case]:
    """Products, LSTM cells, rows, random numbers, update rules: what has no operator of PyTorch's to be timed beside it."""
    made: list[Case] = []

    def add(name: str, make: Callable[[KernelSet], Call]) -> None:
        made.append(Case(name, make))

    def array(*shape: int) -> Any:
        return np.random.default_rng(sum(shape)).normal(size=shape).astype(dtype)

    def product(kernels: KernelSet, m: int, k: int, n: int, transposed: bool, accumulate: bool) -> Callable[[], object]:
        a, out = array(m, k), np.zeros((m, n), dtype)
        b = array(n, k).T if transposed else array(k, n)
        return lambda: kernels.matmul(a, b, out, accumulate)

    for m in (1, 4, 8, 16, 64):
        for k, n in ((128, 512), (512, 2048), (1024, 1024)):
            add(f"h W^T {m} x {k} x {n}", lambda s, m=m, k=k, n=n: product(s, m, k, n, True, False))  # type: ignore[misc]
            add(f"dg W {m} x {n} x {k}", lambda s, m=m, k=k, n=n: product(s, m, n, k, False, False))  # type: ignore[misc]
    add("dW += 1024 x 64 x 512", lambda s: product(s, 1024, 64, 512, False, True))

    def cell(s: KernelSet) -> Callable[[], object]:
        gates, c, h = array(64, 8, 4, 1024), array(64, 1024), array(64, 8, 1024)
        return lambda: s.lstm_cell(gates[:, 3], c, h[:, 2], h[:, 1])

    def cell_backward(s: KernelSet) -> Callable[[], object]:
        gates, c, h = array(64, 8, 4, 1024), array(64, 1024), array(64, 8, 1024)
        return lambda: s.lstm_cell_backward(gates[:, 3], c, h[:, 2], h[:, 1], h[:, 0], gates[:, 0])

    add("lstm_cell 64 x 1024", cell)
    add("lstm_cell_backward 64 x 1024", cell_backward)

    rows, classes = 256, 10_000
    logits, y = array(rows, classes), np.empty((rows, classes), dtype)
    index = np.arange(2560) * 7919 % 10_000
    add("softmax 256 x 10000", lambda s: lambda: s.softmax(logits, y))
    add("softmax_backward 256 x 10000", lambda s: lambda: s.softmax_backward(logits, logits, y))
    table, taken = array(10_000, 512), array(2560, 512)
    add("embedding 2560 of 10000 x 512", lambda s: lambda: s.embedding(table, index, 0, taken))
    add("embedding_backward 2560 of 10000 x 512",
        lambda s: lambda: s.embedding_backward(index, 0, taken, table, True))
    add("sum_rows 2560 x 512", lambda s: lambda: s.sum_rows(taken, y[0, :512]))

    size = 1 << 20
    w, g, mean, square = (np.ones(size, dtype) for _ in range(4))
    key, shape = (1, 2), (size,)
    add("uniform 2^20", lambda s: lambda: s.uniform(key, 0, shape, (0,), w))
    add("normal 2^20", lambda s: lambda: s.normal(key, 0, shape, (0,), w))
    add("sgd momentum 2^20", lambda s: lambda: s.sgd(w, g, mean, 1e-9, 0.9, 0.0, 0.0, False, 1.0, False))
    add("adam 2^20", lambda s: lambda: s.adam(w, g, mean, square, 1e-9, 0.9, 0.999, 1e-8, 0.0, False, 1.0, 3))
    add("sum_of_squares 2^20", lambda s: lambda: s.sum_of_squares(w))
    add("busy 1000", lambda s: lambda: (native_busy if s is SETS[1] else numpy_busy)(1000))
    return made


def seconds(call: Call, repeats: int) -> float:
    start = thread_time()
    for _ in range(repeats):
        call()
    return (thread_time() - start) / repeats


def measure(calls: Sequence[Call], rounds: int) -> list[float]:
    """Median CPU seconds of each call, taken in turn; each sample lasts at least a millisecond."""
    repeats = [max(1, int(1e-3 / (seconds(call, 2) + 1e-9))) for call in calls]
    samples = [[seconds(call, repeat) for call, repeat in zip(calls, repeats)] for _ in range(rounds)]
    return [median(times) for times in zip(*samples)]


def run(case: Case, rounds: int, torch: Any) -> dict[str, float]:
    """Seconds by name: numpy, native and, if it is given and has the operator, torch."""
    calls = {"numpy_s": case.ours(SETS[0]), "native_s": case.ours(SETS[1])}
    if torch is not None and case.torch is not None:
        calls["torch_s"] = case.torch(torch)
    return dict(zip(calls, measure(list(calls.values()), rounds)))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument("--torch", action="store_true", help="time PyTorch's operators beside ours")
    parser.add_argument("--only", action="append", default=[], help="rows whose name holds this; may be repeated")
    parser.add_argument("--images", type=int, default=16, help="samples of a batch of images")
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--dtype", choices=["float32", "float64"], default="float32")
    options = parser.parse_args()
    torch = None
    if options.torch:
        import torch  # type: ignore[no-redef]

        torch.set_num_threads(1)
        torch.set_grad_enabled(False)
    dtype = np.dtype(options.dtype).type
    wanted = [
        case for case in [*kernel_cases.cases(dtype, options.images), *cases(dtype)]
        if not options.only or any(part in case.name for part in options.only)
    ]
    results = {case.name: run(case, options.rounds, torch) for case in wanted}
    if options.json:
        print(json.dumps(results, indent=1))
        return
    table = Table("kernel", "numpy us", "native us", "torch us", "numpy / native", "torch / native",
                  title=f"{options.dtype}, one thread, median CPU time")
    for name, times in results.items():
        numpy, native, other = times["numpy_s"], times["native_s"], times.get("torch_s")
        table.add_row(
            name, f"{numpy * 1e6:.1f}", f"{native * 1e6:.1f}", "" if other is None else f"{other * 1e6:.1f}",
            f"{numpy / native:.2f}", "" if other is None else f"{other / native:.2f}",
        )
    Console().print(table)


if __name__ == "__main__":
    main()
