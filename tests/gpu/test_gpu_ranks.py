"""Ranks that work on GPUs' arrays, and how these travel: the same losses as on the CPU, however many ranks there are."""

from __future__ import annotations

import json
import sys
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from fast_and_slow import fast_among
from host_device import compiles

sys.path.insert(0, str(Path(__file__).parents[1] / "runtime"))
from programs.start import output
from starting import needs_mpi

PROGRAM = Path(__file__).parent / "ranks_program.py"
pytestmark = [pytest.mark.mpi, needs_mpi]


def started(ranks: int, which: str, sync: str = "", **environment: str) -> dict[str, Any]:
    said = output(ranks, str(PROGRAM), which, "4", sync, limit=280, extra=environment)
    found: dict[str, Any] = json.loads(said.splitlines()[-1])
    return found


@cache
def on_the_cpu(sync: str) -> dict[str, Any]:
    """What one rank finds without a GPU's code."""
    return started(1, "cpu", sync)


@pytest.fixture(scope="module")
def reference() -> dict[str, Any]:
    return on_the_cpu("")


@pytest.mark.skipif(not compiles(), reason="no C++20 compiler: the GPU's kernels cannot be run on the host")
@pytest.mark.parametrize(("ranks", "way", "which", "sync"), fast_among([
    (3, "mpi-host", "host", ""), (2, "mpi-host", "host", ""), (2, "mpi-host", "recorded", ""), (4, "mpi-host", "recorded", ""),
    (3, "mpi-host", "host", "collective/every"), (4, "mpi-host", "recorded", "collective/every"),
    (2, "nccl", "nccl", "ring/spread"), (4, "nccl", "nccl", "collective/every"), (3, "nccl", "nccl", "collective/every"),
    (3, "mpi-host", "host", "collective/spread"), (4, "mpi-host", "recorded", "collective/spread"),
    (2, "nccl", "nccl", "collective/spread"), (4, "nccl", "nccl", "collective/spread"),
    (3, "mpi-host", "host", "collective/zero3"), (4, "mpi-host", "recorded", "collective/zero2"),
    (4, "nccl", "nccl", "collective/zero3/hsdp2"),
], [
    (2, "mpi-host", "recorded", ""), (2, "nccl", "nccl", "ring/spread"),
    (2, "nccl", "nccl", "collective/spread"), (4, "nccl", "nccl", "collective/zero3/hsdp2"),
]))
def test_messages(ranks: int, way: str, which: str, sync: str, reference: dict[str, Any], tmp_path: Path) -> None:
    """Through pinned memory, and by communicators that stand still, as NCCL's, if ranks disagree about the order."""
    found = started(ranks, which, sync, TASKFLOW_TRANSFERS=way, FAKE_NCCL_FOLDER=str(tmp_path))
    assert found["losses"] == pytest.approx(reference["losses"], rel=1e-9)
    assert found["sum"] == pytest.approx(reference["sum"], rel=1e-9)
    assert f"transfers by {way}" in found["describe"]
    if (which, sync) == ("nccl", "collective/spread"):
        assert found["even"] == [False, True]  # by calls that want shares of one size, and by others


@pytest.mark.skipif(not compiles(), reason="no C++20 compiler: the GPU's kernels cannot be run on the host")
@pytest.mark.parametrize(("ranks", "way", "which"), fast_among(
    [(4, "mpi-host", "recorded"), (2, "mpi-host", "host"), (4, "nccl", "nccl"), (2, "nccl", "nccl")],
    [(2, "nccl", "nccl")],
))
def test_partial_values_by_collectives(ranks: int, way: str, which: str, tmp_path: Path) -> None:
    """The same numbers as by an owner, on the CPU."""
    wanted = on_the_cpu("sums owner")
    found = started(ranks, which, "sums collective", TASKFLOW_TRANSFERS=way, FAKE_NCCL_FOLDER=str(tmp_path))
    assert found["losses"] == pytest.approx(wanted["losses"], rel=1e-9)
    assert found["sum"] == pytest.approx(wanted["sum"], rel=1e-9)
    assert f"transfers by {way}" in found["describe"]


@pytest.mark.skipif(not compiles(), reason="no C++20 compiler: the GPU's kernels cannot be run on the host")
@pytest.mark.parametrize(("ranks", "way", "which", "dtype"), [
    (2, "nccl", "nccl", "bfloat16"), pytest.param(3, "mpi-host", "recorded", "bfloat16", marks=pytest.mark.slow),
    pytest.param(2, "mpi-host", "host", "float16", marks=pytest.mark.slow),
    pytest.param(4, "nccl", "nccl", "float16", marks=pytest.mark.slow),
])
def test_sixteen_bits(ranks: int, way: str, which: str, dtype: str, tmp_path: Path) -> None:
    """Partial values of 16 bits are added up as on the CPU, and a step that overflows is skipped by all."""
    pytest.importorskip("ml_dtypes")
    wanted = on_the_cpu(dtype)
    found = started(ranks, which, dtype, TASKFLOW_TRANSFERS=way, FAKE_NCCL_FOLDER=str(tmp_path))
    assert found["narrow sums"] == wanted["narrow sums"] > 0
    assert found["skipped"] == wanted["skipped"] and (found["skipped"] > 0) == (dtype == "float16")
    assert found["losses"] == pytest.approx(wanted["losses"], abs=8 * {"bfloat16": 2.0**-8, "float16": 2.0**-11}[dtype])
    assert found["sum"] == pytest.approx(wanted["sum"], rel=1e-3)
    assert f"transfers by {way}" in found["describe"]


@pytest.mark.gpu
@pytest.mark.parametrize("ranks", [2, 4])
def test_ranks_that_share_a_gpu(ranks: int, reference: dict[str, Any]) -> None:
    from taskflow.kernels.gpu import gpu_missing

    if missing := gpu_missing():
        pytest.skip(missing)
    assert started(ranks, "gpu")["losses"] == pytest.approx(reference["losses"], rel=1e-8)
