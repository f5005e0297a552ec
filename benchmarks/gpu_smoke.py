"""One minute on a new GPU: does each thing that the rest needs work at all? One line for each, with a traceback for what does not.

    python benchmarks/gpu_smoke.py [--device gpu|host] [--after NAME]

On stdout, a JSON object before each check ({"starts": name}) and one after it, so that what kills the process is known by name; the
lines for a reader are on stderr. Exit code 4 if a check failed, 3 if the GPU does not answer any more after one: CUDA's errors last
as long as the process, so benchmarks/gpu.py starts another one --after it. --device host: the kernels compiled for the host.
"""

from __future__ import annotations

import json
import os
import sys
import traceback
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import lru_cache, partial
from pathlib import Path
from random import Random
from time import perf_counter
from typing import Any

import click
import numpy as np

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), *(str(ROOT / "tests" / room) for room in (".", "operators", "gpu"))]
PRECISIONS = ("fp32", "tf32", "bf16")
NEAR = {"fp32": 1e-5, "tf32": 2e-3, "bf16": 2e-2}
"""|found - expected| / |expected| of products of normal numbers: fp32's would not let TF32 (some 3e-4) pass for float32."""
CONVOLUTIONS = (  # image, filters, kernel, stride, padding, groups
    ((8, 16, 14, 14), 32, 3, 1, 1, 1), ((8, 32, 14, 14), 64, 1, 1, 0, 1), ((4, 3, 64, 64), 16, 7, 2, 3, 1),
    ((4, 16, 15, 15), 16, 3, 2, 1, 4), ((3, 5, 9, 9), 7, 3, 1, 0, 1),
)
EXAMPLES = range(2)  # of each operator
STEPS = 5
LOST, WRONG = 3, 4  # exit codes; 1 is what Python ends with if this file itself does not work


@dataclass(frozen=True, slots=True)
class Check:
    """``act`` returns what there is to say beside "fine", or raises what is wrong."""

    name: str
    act: Callable[[], str]


@lru_cache(maxsize=8)
def kernels_of(device: str, precision: str = "fp32") -> Any:
    """The kernel set; the host's multiplies in float32 whatever is asked for."""
    if device == "host":
        from host_device import host_kernels

        return host_kernels(records=True)
    from taskflow.kernels import kernels_on

    os.environ["TASKFLOW_PRECISION"] = precision
    return kernels_on("gpu")


def checks(device: str) -> Iterator[Check]:
    """All of them, what the others need first."""
    from operator_bench import KINDS

    yield Check("device", partial(answers, device))
    for dtype in ("float32", "float64"):
        yield Check(f"kernels {dtype}", partial(compiles, device, dtype))
    yield Check("pinned copies", partial(copies, device))
    for precision in PRECISIONS:
        yield Check(f"product {precision}", partial(product, device, precision))
    for precision in PRECISIONS:
        yield Check(f"convolution {precision}", partial(convolution, device, precision))
    for network in ("LeNet", "RNNLM"):
        yield Check(f"step {network}", partial(step, device, network))
    yield Check("times", partial(times, device))
    yield Check("nccl", partial(nccl, device))
    for kind in KINDS:
        yield Check(f"operator {kind}", partial(operator, device, kind))


# ---- what is checked -------------------------------------------------------------------------------------------------
def answers(device: str) -> str:
    kernels = kernels_of(device)
    kernels.try_out()
    of = kernels.device
    return f"{of.name}; {', '.join(f'{key} {value}' for key, value in of.libraries.items())}; {getattr(of, 'nccl_version', 0)}"


def compiles(device: str, dtype: str) -> str:
    from taskflow.kernels.gpu import source

    kernels, wanted = kernels_of(device), len(source.kernels())
    count = kernels.device.compile(np.dtype(dtype))
    assert count == wanted, f"{count} of {wanted} kernels were compiled"
    x = np.linspace(-1, 1, 1000).astype(dtype)
    there = sent(kernels, x)
    kernels.activate("relu", there, there)
    np.testing.assert_array_equal(kernels.device.to_host(there), np.maximum(x, 0))
    return f"{count} kernels"


def copies(device: str) -> str:
    """To the device and back through pinned memory, beside kernels, in the order of the events."""
    kernels = kernels_of(device)
    of, numbers = kernels.device, np.random.default_rng(0)
    x = numbers.normal(size=1 << 20).astype(np.float32)
    there = sent(kernels, x)
    staging, back = of.pinned(x.shape, x.dtype), of.pinned(x.shape, x.dtype)
    kernels.activate("tanh", there, there)
    of.wait_for(of.copy_out(there, staging))
    np.testing.assert_allclose(staging, np.tanh(x), rtol=1e-5, atol=1e-6)
    again = kernels.xp.zeros(x.shape, np.float32)
    of.wait_for(of.copy_in(staging, again, of.mark()))
    kernels.activate("relu", again, again)
    of.wait_for(of.copy_out(again, back))
    np.testing.assert_array_equal(back, np.maximum(staging, 0))
    empty, one = sent(kernels, np.zeros(0, np.float32)), sent(kernels, np.array(7.0))
    assert of.to_host(empty).size == 0 and of.to_host(one) == 7
    return f"{x.nbytes} bytes"


def product(device: str, precision: str) -> str:
    kernels, numbers, worst = kernels_of(device, precision), np.random.default_rng(0), 0.0
    for shape in ((512, 768, 640), (3, 64, 5, 33), (1, 1, 7)):
        *batch, rows, inner, columns = shape if len(shape) > 3 else (1, *shape)
        a, b = numbers.normal(size=(*batch, rows, inner)), numbers.normal(size=(*batch, columns, inner))
        for dtype in ("float32", "float64") if precision == "fp32" else ("float32",):
            left, right = (sent(kernels, one.astype(dtype)) for one in (a, b))
            out = kernels.xp.zeros((*batch, rows, columns), dtype)
            for _ in range(2):
                kernels.matmul(left, right.swapaxes(-1, -2), out=out, accumulate=True)
            kernels.device.verify()
            away = apart(kernels.device.to_host(out), 2 * a @ b.swapaxes(-1, -2))
            assert away < (1e-12 if dtype == "float64" else NEAR[precision]), f"{dtype} of {shape}: relative error {away:.2g}"
            worst = max(worst, away if dtype == "float32" else 0)
    return f"relative error {worst:.2g}"


def convolution(device: str, precision: str) -> str:
    """Forward and both gradients, of whole arrays and of such that begin at an odd multiple of 4 bytes."""
    from taskflow.kernels import NumpyKernels

    kernels, numbers, worst = kernels_of(device, precision), np.random.default_rng(0), 0.0
    for shape, filters, edge, stride, padding, groups in CONVOLUTIONS:
        size = (shape[2] + 2 * padding - edge) // stride + 1
        shapes = shape, (filters, shape[1] // groups, edge, edge), (shape[0], filters, size, size)
        x, w, dy = (numbers.normal(size=one).astype(np.float32) for one in shapes)
        slides = ((stride, stride), ((padding, padding), (padding, padding)), (1, 1), groups)
        for shift in (0, 1):
            found = []
            for of in (NumpyKernels(), kernels):
                xs, ws, dys = (sent(of, one, shift) for one in (x, w, dy))
                y, dx, dw = (sent(of, np.full(one.shape, np.nan, np.float32), shift) for one in (dy, x, w))
                of.conv2d(xs, ws, None, *slides, out=y)
                of.conv2d_backward_data(dys, ws, *slides, out=dx)
                of.conv2d_backward_weight(xs, dys, *slides, out=dw)
                found.append([of.device.to_host(one) for one in (y, dx, dw)])
            for what, expected, actual in zip(("forward", "image", "weight"), *found):
                away = apart(actual, expected)
                worst = max(worst, away)
                assert away < NEAR[precision], f"{what} of {shape}, {filters} x {edge}, shift {shift}: relative error {away:.2g}"
    said = f"relative error {worst:.2g}"
    if device == "host":
        return f"{said}, by patches and products"
    assert not kernels.without_cudnn, f"right, but without cuDNN: {kernels.without_cudnn}"
    declined = kernels.convolutions.declined
    assert not declined, f"right, but cuDNN declined {len(declined)}: {json.dumps(declined)}"
    return said


def step(device: str, network: str) -> str:
    """A small network's training, recorded from the second step on, against numpy's."""
    from language_model import random_strategy

    import taskflow
    from taskflow.kernels import NumpyKernels
    from taskflow.models import build
    from taskflow.training.data import random_feeds

    os.environ["TASKFLOW_GRAPHS"] = "1"
    graph, losses = build(network, preset="small", dtype="float32"), []
    for kernels in (NumpyKernels(), kernels_of(device)):
        strategy = random_strategy(graph, 2, Random(1))
        run = taskflow.Executor(graph, strategy, taskflow.SGD(0.05, momentum=0.9), seed=3, clip_norm=1.0, kernels=kernels)
        losses.append([run.train(random_feeds(graph, number)) for number in range(STEPS)])
        program = run.program("train")
        run.close()
    away = max(abs(a / b - 1) for a, b in zip(*losses))
    assert away < 1e-3, f"losses {losses[1]}, of numpy {losses[0]}"
    recorded = 0 if program.recording is None else program.recording.recorded
    assert recorded, "nothing of the step could be recorded; stderr says why"
    return f"{recorded} of {len(program.actions)} actions recorded, losses differ by {away:.2g}"


def times(device: str) -> str:
    """What is timed between events, and again when it is replayed."""
    kernels = kernels_of(device)
    x, out = kernels.xp.ones((256, 256), np.float32), kernels.xp.empty((256, 256), np.float32)
    multiply = partial(kernels.matmul, x, x, out=out)
    multiply()
    seconds = [kernels.device.timed(multiply) for _ in range(3)]
    assert all(0 < one < 1 for one in seconds), f"seconds of a small product: {seconds}"
    return " ".join(f"{one * 1e6:.1f} us" for one in seconds)


def nccl(device: str) -> str:
    """A communicator of one rank, which sends itself a message and adds it up with nobody else's."""
    if device == "host":
        return "not on the host"
    from cupy.cuda import nccl as library

    kernels = kernels_of(device)
    of = kernels.device
    assert of.nccl_version, 'not found: pip install "soap-taskflow[gpu]"'
    communicator = library.NcclCommunicator(1, library.get_unique_id(), 0)
    x, out = sent(kernels, np.arange(1000.0)), kernels.xp.zeros(1000, np.float64)
    of.follow(of.transfer)
    library.groupStart()
    communicator.send(x.data.ptr, x.nbytes, library.NCCL_UINT8, 0, of.transfer.ptr)
    communicator.recv(out.data.ptr, out.nbytes, library.NCCL_UINT8, 0, of.transfer.ptr)
    library.groupEnd()
    communicator.allReduce(out.data.ptr, out.data.ptr, out.size, library.NCCL_FLOAT64, library.NCCL_SUM, of.transfer.ptr)
    of.compute_after(of.mark(of.transfer))
    np.testing.assert_array_equal(of.to_host(out), np.arange(1000.0))
    communicator.check_async_error()
    communicator.destroy()
    return f"version {of.nccl_version}"


def operator(device: str, kind: str) -> str:
    from on_device import compare

    for seed in EXAMPLES:
        compare(kind, seed, kernels_of(device))
    return f"{len(EXAMPLES)} examples"


def sent(kernels: Any, host: np.ndarray, shift: int = 0) -> Any:
    """The array on the kernels' device, ``shift`` elements behind the beginning of its memory."""
    block = kernels.xp.empty(host.size + shift, host.dtype)
    out = block[shift:].reshape(host.shape)
    if host.size:
        kernels.device.upload(host, out)
    return out


def apart(found: np.ndarray, expected: np.ndarray) -> float:
    """|found - expected| / |expected|, infinite for what is not a number."""
    away = float(np.linalg.norm(found - expected) / np.linalg.norm(expected))
    return away if np.isfinite(away) else np.inf


# ---- the program -----------------------------------------------------------------------------------------------------
def tried(check: Check) -> dict[str, Any]:
    """What became of a check."""
    began = perf_counter()
    try:
        found: dict[str, Any] = {"ok": True, "note": check.act()}
    except Exception as error:
        found = {"ok": False, "error": f"{type(error).__name__}: {' '.join(str(error).split())[:400]}"}
        found["log"] = "".join(traceback.format_exception(error))
    return {"check": check.name, **found, "seconds": perf_counter() - began}


def alive(device: str) -> bool:
    """Whether the device still does what it is asked for."""
    try:
        kernels_of(device).try_out()
    except Exception:
        return False
    return True


@click.command()
@click.option("--device", type=click.Choice(["gpu", "host"]), default="gpu")
@click.option("--after", default="", help="Begin behind the check of this name.")
def main(device: str, after: str) -> None:
    """Does each thing that the rest needs work at all?"""
    todo, failed = list(checks(device)), 0
    if after:
        todo = todo[[check.name for check in todo].index(after) + 1 :]
    for check in todo:
        click.echo(json.dumps({"starts": check.name}))
        row = tried(check)
        click.echo(json.dumps(row))
        said = f"fine   {row['seconds']:5.1f} s  {check.name}: {row['note']}" if row["ok"] else (
            f"FAILED {row['seconds']:5.1f} s  {check.name}: {row['error']}\n{row['log']}"
        )
        click.echo(said, err=True)
        failed += not row["ok"]
        if not row["ok"] and check.name == "device":
            sys.exit(WRONG)  # the others would say the same
        if not row["ok"] and not alive(device):
            click.echo(f"the GPU does not answer after {check.name}", err=True)
            sys.exit(LOST)
    sys.exit(WRONG if failed else 0)


if __name__ == "__main__":
    main()
