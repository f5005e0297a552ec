"""What is chosen before anything runs: the GPU of a rank, the way of messages, the call for a product; and what is said without."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest
from host_device import column_major_product, flat
from hypothesis import given, settings
from hypothesis import strategies as st

from taskflow.kernels import DeviceMissing, kernels_on
from taskflow.kernels.gpu.gemm import column_major, matrices, plan
from taskflow.kernels.gpu.place import choose_gpu, local_rank
from taskflow.machine import host, load_machine
from taskflow.runtime.transport.select import RankCapabilities, TransferChoice, choose_transfers


# ---- which GPU -------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(("environment", "rank"), [
    ({}, 0), ({"MPI_LOCALRANKID": "3"}, 3), ({"OMPI_COMM_WORLD_LOCAL_RANK": "2"}, 2), ({"SLURM_LOCALID": "5"}, 5),
    ({"MPI_LOCALRANKID": ""}, 0),
])
def test_local_rank(environment: dict[str, str], rank: int) -> None:
    assert local_rank(environment) == rank


def test_ranks_take_gpus_in_turn_and_share_them_when_there_are_more_ranks() -> None:
    assert [choose_gpu({"MPI_LOCALRANKID": str(r)}, 4) for r in range(6)] == [0, 1, 2, 3, 0, 1]
    assert choose_gpu({"MPI_LOCALRANKID": "1", "TASKFLOW_GPU": "2"}, 4) == 2
    for wrong in ("4", "-1", "first"):
        with pytest.raises(ValueError, match="TASKFLOW_GPU must be a GPU's number below 4"):
            choose_gpu({"TASKFLOW_GPU": wrong}, 4)


# ---- how messages go -------------------------------------------------------------------------------------------------
def offers(gpus: str, nccl: int = 23203, cuda_mpi: bool = False) -> list[RankCapabilities]:
    return [RankCapabilities(gpu, nccl, cuda_mpi) for gpu in gpus]


@pytest.mark.parametrize(("given_", "environment", "way"), [
    (offers("abcd"), {}, "nccl"),
    (offers("aabb"), {}, "mpi-host"),
    (offers("aabb", cuda_mpi=True), {}, "mpi-cuda"),
    (offers("aa"), {"NCCL_MULTI_RANK_GPU_ENABLE": "1"}, "nccl"),
    (offers("aa", nccl=22900), {"NCCL_MULTI_RANK_GPU_ENABLE": "1"}, "mpi-host"),
    (offers("ab", nccl=0), {}, "mpi-host"),
    (offers("ab"), {"TASKFLOW_TRANSFERS": "mpi-host"}, "mpi-host"),
    (offers("ab", cuda_mpi=True), {"TASKFLOW_TRANSFERS": "mpi-cuda"}, "mpi-cuda"),
    ([RankCapabilities("a", 23203, True), RankCapabilities("b", 22900, True)], {}, "mpi-cuda"),
])
def test_the_way_of_messages(given_: list[RankCapabilities], environment: dict[str, str], way: str) -> None:
    choice = choose_transfers(given_, environment)
    assert choice.way == way and str(choice).startswith(f"{way} (")


def test_what_is_not_possible_says_why() -> None:
    with pytest.raises(ValueError, match="nccl is not possible: ranks 0 and 2 share a GPU"):
        choose_transfers(offers("aba"), {"TASKFLOW_TRANSFERS": "nccl"})
    with pytest.raises(ValueError, match="mpi-cuda is not possible: the MPI of rank 0"):
        choose_transfers(offers("ab"), {"TASKFLOW_TRANSFERS": "mpi-cuda"})
    with pytest.raises(ValueError, match="must be nccl, mpi-cuda or mpi-host, got 'ucx'"):
        choose_transfers(offers("ab"), {"TASKFLOW_TRANSFERS": "ucx"})
    assert choose_transfers(offers("aa"), {}) == TransferChoice(
        "mpi-host", "no nccl: ranks 0 and 1 share a GPU; no mpi-cuda: the MPI of rank 0 does not take the GPU's memory"
    )


# ---- products --------------------------------------------------------------------------------------------------------
@settings(max_examples=150, deadline=None)
@given(st.data())
def test_products_of_any_views_are_the_call_that_cublas_needs(data: st.DataObject) -> None:
    size = st.integers(1, 4)
    m, k, n = data.draw(size), data.draw(size), data.draw(size)
    lead = tuple(data.draw(st.lists(size, max_size=2)))
    numbers = np.random.default_rng(data.draw(st.integers(0, 99)))

    def operand(rows: int, columns: int, spare: bool = True) -> np.ndarray:
        """Some view of (lead, rows, columns): transposed, or a part of wider rows."""
        turned, wider = spare and data.draw(st.booleans()), spare and data.draw(st.integers(0, 2))
        shape = (columns, rows + wider) if turned else (rows, columns + wider)
        array = numbers.normal(size=(*lead, *shape))
        return array[..., :rows].swapaxes(-1, -2) if turned else array[..., :columns]

    a, b, out = operand(m, k), operand(k, n), operand(m, n, spare=False)
    known = plan(*(p for x in (a, b, out) for p in (x.shape, tuple(s // 8 for s in x.strides))))
    assert known is not None
    before, add = out.copy(), data.draw(st.booleans())
    column_major_product(column_major(known), flat(b), flat(a), flat(out), add)
    np.testing.assert_allclose(out, a @ b + (before if add else 0), rtol=1e-12, atol=1e-12)


def test_what_no_call_can_read_has_no_plan() -> None:
    assert matrices((3, 4), (8, 2)) is None  # neither rows nor columns are runs of memory
    assert matrices((2, 3, 3, 4), (60, 13, 4, 1)) is None  # the stack has no one step
    assert matrices((3, 4), (0, 1)) is None  # rows lie on one another
    with pytest.raises(ValueError, match=r"must give out \(\.\.\., M, N\), got \(2, 3\), \(4, 5\), \(2, 5\)"):
        plan((2, 3), (3, 1), (4, 5), (5, 1), (2, 5), (5, 1))


# ---- without CuPy ----------------------------------------------------------------------------------------------------
BLOCKED = """
import sys
class Blocked:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in ("cupy", "cupy_backends", "cudnn"):
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
sys.meta_path.insert(0, Blocked())
"""


def run(code: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-c", BLOCKED + code], capture_output=True, text=True, check=False, timeout=250)


def test_what_to_install_is_said() -> None:
    """That all modules can be imported without CuPy, tests/test_package.py shows."""
    code = """
from taskflow.kernels import DeviceMissing, kernels_on
try:
    kernels_on("gpu")
except DeviceMissing as error:
    print(error)
"""
    done = run(code)
    assert done.returncode == 0, done.stderr
    assert "CuPy cannot be imported" in done.stdout and "pip install 'soap-taskflow[gpu]'" in done.stdout
    assert len(done.stdout.splitlines()) == 1


def test_device_gpu_says_what_is_missing_in_one_line() -> None:
    done = run(
        'sys.argv = ["rnnlm.py", "--device", "gpu", "--steps", "1"]\n'
        'import runpy\nrunpy.run_path("examples/rnnlm.py", run_name="__main__")'
    )
    assert done.returncode == 2, done.stderr
    assert done.stdout == "" and len(done.stderr.splitlines()) == 1
    assert "no GPU can be used" in done.stderr and "pip install" in done.stderr


def test_other_devices_are_refused() -> None:
    with pytest.raises(ValueError, match="device must be cpu or gpu, got 'tpu'"):
        kernels_on("tpu")
    assert issubclass(DeviceMissing, OSError)  # the command line says those in one line


def test_the_benchmark_says_in_one_line_that_there_is_no_gpu() -> None:
    from taskflow.kernels.gpu import gpu_missing

    if gpu_missing() is None:
        pytest.skip("there is a GPU: benchmarks/gpu.py would measure it")
    command = [sys.executable, "benchmarks/gpu.py", "--json"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=250)
    assert done.returncode == 2 and done.stdout == ""
    assert done.stderr.startswith("gpu.py: no GPU can be used") and len(done.stderr.splitlines()) == 1


def test_the_machine_of_gpus_at_hand() -> None:
    machine = load_machine("this-gpu", 3)
    assert {p.kind for p in machine.processors} == {"gpu"} and len(machine.processors) == 3
    (link,) = machine.route(0, 2)
    assert not link.occupies_endpoints and link.bytes_per_second > 1e10
    assert len(load_machine("this-gpu").processors) == 1
    assert host(2, "cpu") == host(2)
    with pytest.raises(ValueError, match="kind must be cpu or gpu, got 'tpu'"):
        host(2, "tpu")
