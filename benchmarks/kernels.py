"""Time of every kernel, numpy's against the compiled one: interleaved runs, medians, one thread.

    OPENBLAS_NUM_THREADS=1 python benchmarks/kernels.py [--json] [--rounds 15]

OPENBLAS_CORETYPE is unset here, so that numpy's BLAS uses all that the processor has.
"""

from __future__ import annotations

import argparse
import json
import os
from collections.abc import Callable
from statistics import median
from time import perf_counter
from typing import Any

os.environ.pop("OPENBLAS_CORETYPE", None)  # before numpy loads its BLAS
os.environ["OPENBLAS_NUM_THREADS"] = "1"

import numpy as np
from rich.console import Console
from rich.table import Table

from taskflow.kernels import KernelSet, NumpyKernels
from taskflow.kernels import busy as native_busy
from taskflow.kernels.native import NativeKernels
from taskflow.kernels.reference import busy as numpy_busy

Case = tuple[str, Callable[[], object], Callable[[], object]]


def cases(dtype: Any) -> list[Case]:
    """Name, numpy call, native call; each call repeats the same work on its own arrays."""
    sets = NumpyKernels(), NativeKernels()
    made: list[Case] = []

    def add(name: str, make: Callable[[KernelSet], Callable[[], object]]) -> None:
        made.append((name, make(sets[0]), make(sets[1])))

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
    target, index = np.arange(rows) * 37 % classes, np.arange(2560) * 7919 % 10_000
    add("softmax 256 x 10000", lambda s: lambda: s.softmax(logits, y))
    add("softmax_backward 256 x 10000", lambda s: lambda: s.softmax_backward(logits, logits, y))
    add("cross_entropy 256 x 10000", lambda s: lambda: s.cross_entropy(logits, target, -1, y))
    add("cross_entropy_backward 256 x 10000",
        lambda s: lambda: s.cross_entropy_backward(logits, target, -1, 0.1, y))
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
    made.append(("busy 1000", lambda: numpy_busy(1000), lambda: native_busy(1000)))
    return made


def seconds(call: Callable[[], object], repeats: int) -> float:
    start = perf_counter()
    for _ in range(repeats):
        call()
    return (perf_counter() - start) / repeats


def measure(case: Case, rounds: int) -> tuple[float, float]:
    """Median seconds of the two calls, taken in turn; each sample lasts about a millisecond."""
    _, *calls = case
    repeats = [max(1, int(1e-3 / (seconds(call, 2) + 1e-9))) for call in calls]
    samples = [[seconds(call, repeat) for call, repeat in zip(calls, repeats)] for _ in range(rounds)]
    first, second = (median(times) for times in zip(*samples))
    return first, second


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--dtype", choices=["float32", "float64"], default="float32")
    options = parser.parse_args()
    results = {case[0]: measure(case, options.rounds) for case in cases(np.dtype(options.dtype).type)}
    if options.json:
        rows = {name: {"numpy_s": a, "native_s": b, "ratio": a / b} for name, (a, b) in results.items()}
        print(json.dumps(rows, indent=1))
        return
    table = Table("kernel", "numpy us", "native us", "ratio", title=f"{options.dtype}, one thread, medians")
    for name, (a, b) in results.items():
        table.add_row(name, f"{a * 1e6:.1f}", f"{b * 1e6:.1f}", f"{a / b:.2f}")
    Console().print(table)


if __name__ == "__main__":
    main()
