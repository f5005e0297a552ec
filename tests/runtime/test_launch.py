"""Who started this process is read from its environment, and a start that cannot work says so."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest
from programs.start import LIMIT_SECONDS, MAKER, mpirun
from starting import environment, needs_mpi

from taskflow.runtime.connecting import _mismatch, connect
from taskflow.runtime.job import slurm
from taskflow.runtime.job.launch import launcher, limit_threads
from taskflow.runtime.job.polling import node_cores
from taskflow.runtime.transport.local import LocalTransport


@pytest.fixture(autouse=True)
def no_launcher(monkeypatch: pytest.MonkeyPatch) -> None:
    kept = environment()
    for variable in os.environ:
        if variable not in kept or variable.endswith("_NUM_THREADS"):
            monkeypatch.delenv(variable)


def run_python(code: str, extra: Mapping[str, str]) -> subprocess.CompletedProcess[str]:
    plain = {key: value for key, value in environment().items() if not key.endswith("_NUM_THREADS")}
    return subprocess.run(
        [sys.executable, "-c", code], env={**plain, **extra}, capture_output=True, text=True, timeout=LIMIT_SECONDS, check=False
    )


@pytest.mark.parametrize(
    ("environ", "expected"),
    [
        ({}, None),
        ({"PMI_RANK": "3", "PMI_SIZE": "16", "MPI_LOCALNRANKS": "8"}, ("PMI (MPICH, Intel MPI)", 3, 16, 8)),
        ({"PMI_SIZE": "4"}, ("PMI (MPICH, Intel MPI)", 0, 4, 0)),
        (
            {"OMPI_COMM_WORLD_RANK": "1", "OMPI_COMM_WORLD_SIZE": "6", "OMPI_COMM_WORLD_LOCAL_SIZE": "2"},
            ("Open MPI", 1, 6, 2),
        ),
        ({"PMIX_RANK": "5"}, ("PMIx", 5, 0, 0)),
        ({"SLURM_PROCID": "0", "SLURM_NTASKS": "8"}, None),  # a batch script, not a rank
        ({"SLURM_PROCID": "0", "SLURM_STEP_NUM_TASKS": "1"}, None),  # an interactive shell
        (
            {
                "SLURM_PROCID": "6", "SLURM_STEP_NUM_TASKS": "7", "SLURM_NODEID": "3",
                "SLURM_STEP_TASKS_PER_NODE": "2(x3),1",
            },
            ("Slurm (srun)", 6, 7, 1),
        ),
        (  # srun --mpi=pmi2: PMI has no number of ranks on a node, Slurm has
            {
                "PMI_RANK": "2", "PMI_SIZE": "6", "SLURM_PROCID": "2", "SLURM_STEP_NUM_TASKS": "6", "SLURM_NODEID": "1",
                "SLURM_STEP_TASKS_PER_NODE": "2(x3)",
            },
            ("Slurm (srun --mpi=pmi2)", 2, 6, 2),
        ),
        (  # an interactive shell with PMI
            {
                "PMI_RANK": "0", "PMI_SIZE": "1", "SLURM_PROCID": "0", "SLURM_STEP_NUM_TASKS": "1", "SLURM_NODEID": "0",
                "SLURM_STEP_TASKS_PER_NODE": "1",
            },
            None,
        ),
        (  # srun --mpi=pmix
            {
                "PMIX_RANK": "3", "PMIX_NAMESPACE": "slurm.pmix.7.0", "SLURM_PROCID": "3", "SLURM_NTASKS": "4",
                "SLURM_STEP_NUM_TASKS": "4", "SLURM_NODEID": "1", "SLURM_STEP_TASKS_PER_NODE": "2(x2)", "SLURM_LOCALID": "1",
            },
            ("Slurm (srun)", 3, 4, 2),
        ),
        (  # MPICH's mpirun in a batch script: srun has started its proxies, one a node
            {
                "PMI_RANK": "5", "PMI_SIZE": "8", "MPI_LOCALNRANKS": "4", "SLURM_PROCID": "1", "SLURM_STEP_NUM_TASKS": "2",
                "SLURM_NODEID": "1", "SLURM_STEP_TASKS_PER_NODE": "1(x2)",
            },
            ("PMI (MPICH, Intel MPI)", 5, 8, 4),
        ),
        (  # Open MPI's there
            {
                "OMPI_COMM_WORLD_RANK": "5", "OMPI_COMM_WORLD_SIZE": "8", "OMPI_COMM_WORLD_LOCAL_SIZE": "4", "PMIX_RANK": "5",
                "SLURM_PROCID": "1", "SLURM_STEP_NUM_TASKS": "2", "SLURM_NODEID": "1", "SLURM_STEP_TASKS_PER_NODE": "1(x2)",
            },
            ("Open MPI", 5, 8, 4),
        ),
    ],
)
def test_launcher(environ: dict[str, str], expected: tuple[str, int, int, int] | None) -> None:
    found = launcher(environ)
    assert (None if found is None else (found.name, found.rank, found.size, found.here)) == expected
    if found is not None:
        assert found.local_size == (found.here or found.size) and found.srun == found.name.startswith("Slurm")
        assert int(environ.get(found.rank_variable, "0")) == found.rank


def test_alone() -> None:
    assert isinstance(connect(), LocalTransport)
    assert isinstance(connect(processors=16), LocalTransport)  # one process carries any number
    code = "import sys; from taskflow.runtime.connecting import connect; connect(4); sys.exit('mpi4py' in sys.modules)"
    assert run_python(code, {}).returncode == 0


@pytest.mark.mpi
@needs_mpi
@pytest.mark.parametrize("variables", [{"PMI_SIZE": "4"}, {"OMPI_COMM_WORLD_SIZE": "4"}, {"MV2_COMM_WORLD_SIZE": "4"}])
def test_mpirun_of_another_mpi(variables: dict[str, str]) -> None:
    ended = run_python("from taskflow.runtime.connecting import connect; connect()", variables)
    assert ended.returncode == 1
    assert ended.stderr.count("LaunchError: connect:") == 1
    # MPICH's library does not even start under Open MPI's mpirun: it is found out before.
    before = "OMPI_COMM_WORLD_SIZE" in variables and MAKER == "MPICH"
    assert f"started 4 ranks, but the MPI library that mpi4py loaded {'is ' if before else 'sees 1'}" in ended.stderr
    for part in ("Library: ", "mpirun on PATH: ", "pip install --no-binary mpi4py mpi4py"):
        assert part in ended.stderr


@pytest.mark.mpi
@needs_mpi
def test_srun_that_does_not_start_mpi() -> None:
    variables = {"SLURM_PROCID": "0", "SLURM_STEP_NUM_TASKS": "4", "SLURM_STEP_TASKS_PER_NODE": "4", "SLURM_NODEID": "0"}
    ended = run_python("from taskflow.runtime.connecting import connect; connect()", variables)
    assert ended.returncode == 1
    assert "Slurm (srun) started 4 ranks, but the MPI library that mpi4py loaded sees 1" in ended.stderr
    assert "srun --mpi=pmi2 or pmix" in ended.stderr


@pytest.mark.parametrize("variables", [
    {"SLURM_PROCID": "0", "PMI_RANK": "0", "PMI_SIZE": "4", "SLURM_STEP_NUM_TASKS": "4"},
    {"PMI_RANK": "2", "PMI_SIZE": "4", "SLURM_STEP_NUM_TASKS": "4", "SLURM_PROCID": "2", "SLURM_STEP_TASKS_PER_NODE": "4"},
])
def test_srun_whose_library_does_not_speak_its_pmi(variables: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    """The remedy is srun's, not the mpirun of this python."""
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    started = launcher()
    assert started is not None
    text = _mismatch(started, "sees 1", "Open MPI v5")
    assert text.startswith("connect: Slurm (srun --mpi=pmi2) started 4 ranks, but") and "Either say srun --mpi=pmi2 or pmix" in text


MPICH_UCX = "MPICH Version: 5.0.2\nMPICH Device:       ch4:ucx ofi\nMPICH configure: --with-device=ch4:ucx,ofi\n"


@pytest.mark.parametrize(("library", "variables", "layer"), [
    (MPICH_UCX, {}, "ofi"),
    (MPICH_UCX.replace("ucx ofi", "ofi,ucx"), {}, "ofi"),
    (MPICH_UCX, {slurm.NETMOD: "ucx"}, ""),  # the user's own
    (MPICH_UCX.replace("ch4:ucx ofi", "ch4:ofi"), {}, ""),
    (MPICH_UCX.replace("ch4:ucx ofi", "ch4:ucx"), {}, ""),  # it would refuse a layer that it has not
    ("Open MPI v5.0.11", {}, ""),
])
def test_network_layer_whose_addresses_fit_into_pmi(library: str, variables: dict[str, str], layer: str) -> None:
    assert slurm.netmod(library, variables) == layer


@pytest.mark.parametrize(("variables", "tasks"), [
    ({}, 0), ({"SLURM_NTASKS": "1"}, 0), ({"SLURM_NTASKS": "4", "SLURM_PROCID": "0"}, 4),
    ({"SLURM_NTASKS": "4", "SLURM_STEP_NUM_TASKS": "1"}, 0),  # srun -n 1: as wanted
])
def test_a_batch_script_that_starts_one_process_for_several_tasks(variables: dict[str, str], tasks: int) -> None:
    ended = run_python("from taskflow.runtime.connecting import connect; connect()", variables)
    note = f"note: this Slurm job has {tasks} tasks, but only this process runs: srun or mpirun starts one for each task\n"
    assert (ended.returncode, ended.stderr) == (0, note if tasks else "")


@pytest.mark.mpi
@needs_mpi
def test_wrong_number_of_ranks_is_said_once() -> None:
    ended = mpirun(2, "processors.py", "5", since="starts\n")
    assert ended.code != 0 and ended.seconds < 10
    assert ended.text.count("taskflow: rank 0 of 2: LaunchError: connect: the strategy is for 5 processors") == 1
    assert ended.text.count("taskflow: rank") == 1 and "mpirun -n 5" in ended.text
    assert mpirun(2, "processors.py", "2").code == 0


@pytest.mark.parametrize(
    ("source", "part"),
    [
        (None, "mpi4py is not installed for"),
        ("raise RuntimeError('cannot load MPI library\\nlibmpi.so.12')", "does not load (cannot load MPI library)"),
        ("raise ImportError('libmpi.so.12: cannot open')", "does not load (libmpi.so.12: cannot open)"),
    ],
)
def test_no_mpi(tmp_path: Path, source: str | None, part: str) -> None:
    package = tmp_path / "mpi4py"
    package.mkdir()
    hide = "import sys; sys.modules['mpi4py'] = None; " if source is None else ""
    (package / "__init__.py").write_text("class rc: pass\n")
    (package / "MPI.py").write_text(source or "")
    code = f"{hide}from taskflow.runtime.connecting import connect; connect()"
    path = os.pathsep.join([str(tmp_path), environment()["PYTHONPATH"]])
    ended = run_python(code, {"PMI_SIZE": "2", "PMI_RANK": "0", "PYTHONPATH": path})
    assert ended.returncode == 1 and part in ended.stderr and "pip install" in ended.stderr


def test_limit_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    names = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")

    def set_by_limit(**given: str) -> list[str | None]:
        with monkeypatch.context() as patch:
            for name, value in given.items():
                patch.setenv(name, value)
            before = dict(os.environ)
            limit_threads()
            after = [os.environ.get(name) for name in names]
            for name in names:  # what limit_threads itself set is not undone by the context
                if name not in before:
                    os.environ.pop(name, None)
        return after

    assert set_by_limit() == [None, None, None]
    assert set_by_limit(PMI_SIZE="1000") == ["1", "1", "1"]
    assert set_by_limit(PMI_SIZE="1000", MPI_LOCALNRANKS="1") == [str(node_cores())] * 3
    assert set_by_limit(PMI_SIZE="1000", OMP_NUM_THREADS="7") == ["7", None, None]
    assert set_by_limit(PMI_SIZE="1000", OPENBLAS_NUM_THREADS="7") == ["1", "7", "1"]


def test_limit_threads_comes_before_numpy() -> None:
    """What numpy sees when it is first imported, whatever imports it."""
    code = """
import os, sys
class Watch:
    def find_spec(self, name, path=None, target=None):
        if name == "numpy":
            print("numpy sees", os.environ.get("OPENBLAS_NUM_THREADS"))
sys.meta_path.insert(0, Watch())
from taskflow.runtime.job.launch import limit_threads
limit_threads()
import numpy
"""
    ended = run_python(code, {"PMI_SIZE": "1000"})
    assert ended.stdout == "numpy sees 1\n", ended.stderr
