"""Training under a real Slurm, which each test file has to itself: by srun, by mpirun within a job, and again after a lost node."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from private_slurm import Slurm, needs_slurm, private_slurm
from programs.start import HERE, MAKER
from starting import needs_mpi

pytestmark = [
    pytest.mark.slow, pytest.mark.mpi, needs_mpi, needs_slurm,
    pytest.mark.skipif(MAKER != "MPICH", reason="srun --mpi=pmi2 starts MPICH; Open MPI needs a Slurm with PMIx"),
]
NODES = 4
SRUN = ("srun", "--mpi=pmi2", "--kill-on-bad-exit")
TRAIN = "taskflow train mlp --quiet --steps"
LONG = f"{TRAIN.replace(' --quiet', '')} 2000 --checkpoint run.safetensors --checkpoint-every 100 --resume auto"
"""Long enough for a node to be lost on the way; a second attempt has nothing of the first but the checkpoint."""
AGAIN = """
status=$?
[ $status -eq 0 ] || [ $status -eq 2 ] || [ "${SLURM_RESTART_COUNT:-0}" -ge 3 ] || scontrol requeue "$SLURM_JOB_ID"
exit $status"""
"""Of a batch script: once more, unless it is a mistake in the command (2)."""
LOSSES = "loss 2.319 -> 2.307 in 2 steps"


@pytest.fixture(scope="module")
def slurm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Slurm]:
    with private_slurm(tmp_path_factory.mktemp("slurm"), NODES) as running:
        yield running


def trained(ended: subprocess.CompletedProcess[str], ranks: int) -> None:
    """All ranks have trained together, once, as one processor does."""
    text = ended.stdout + ended.stderr
    assert ended.returncode == 0 and text.count(LOSSES) == 1, text
    assert f"{ranks} ranks, {ranks} processors" in text, text


def start(slurm: Slurm, *words: str, limit: float = 120.0) -> subprocess.CompletedProcess[str]:
    return slurm.run(*words, *TRAIN.replace(" --quiet", "").split(), "2", limit=limit)


@pytest.mark.parametrize("nodes", [1, 2, 4])
def test_srun(slurm: Slurm, nodes: int) -> None:
    """Several starts, since MPICH's own way failed in 5 of 8 (`slurm.netmod`)."""
    for _ in range(4 if nodes == NODES else 1):
        ended = start(slurm, *SRUN, "-N", str(nodes), "-n", "4")
        trained(ended, 4)
        assert ended.stderr.count("note: UCX's addresses do not fit srun's PMI") == (nodes > 1)


def test_ranks_that_would_all_train_alone_are_refused(slurm: Slurm) -> None:
    ended = start(slurm, "srun", "--mpi=none", "-N", "2", "-n", "4")
    assert ended.returncode == 2 and "loss" not in ended.stdout + ended.stderr
    assert ended.stderr.count("connect: Slurm (srun) started 4 ranks, but the MPI library that mpi4py loaded sees 1") == 1
    assert "srun --mpi=pmi2" in ended.stderr


def test_one_task_is_one_process_with_and_without_a_step(slurm: Slurm) -> None:
    """Also a shell that srun has started: its PMI connection serves no two programs."""
    both = " && ".join([f"{TRAIN} 2"] * 2)
    ended = slurm.run("srun", "--mpi=pmi2", "-n", "1", "sh", "-c", both)
    assert ended.returncode == 0 and ended.stderr.count(LOSSES) == 2, ended.stderr
    ended = start(slurm, "salloc", "--quiet", "-N", "2", "-n", "4")
    assert ended.returncode == 0 and "1 rank, 1 processor" in ended.stdout + ended.stderr
    assert ended.stderr.count("note: this Slurm job has 4 tasks, but only this process runs") == 1


@pytest.mark.parametrize("nodes", [2, 4])
def test_mpirun_within_a_job(slurm: Slurm, nodes: int) -> None:
    trained(start(slurm, "salloc", "--quiet", "-N", str(nodes), "-n", "4", "mpirun"), 4)


@pytest.mark.parametrize(("case", "seconds", "how"), [("kill", "5", "killed by signal 9"), ("exit", "0", "ended before it called")])
def test_a_rank_that_ends_before_it_connects_is_named_once(slurm: Slurm, case: str, seconds: str, how: str) -> None:
    """Without --kill-on-bad-exit srun would wait for the others, which are named and ended by who watches their arrivals."""
    words = ("srun", "--mpi=pmi2", "-N", "1", "-n", "3", sys.executable, str(HERE / "early.py"), case, seconds)
    ended = slurm.run(*words, limit=60)
    assert ended.returncode != 0 and how in ended.stderr, ended.stderr
    assert ended.stderr.count("taskflow: rank 1 of 3") == ended.stderr.count("taskflow: ") == 1, ended.stderr


@pytest.mark.parametrize("what", ["rank", "node"])
def test_a_job_goes_on_with_what_is_left_of_it(tmp_path: Path, what: str) -> None:
    """Slurm 22.05 keeps the step of a lost node, so that another one must be allowed beside it: --overlap."""
    elastic = f"{LONG} --elastic 2:4 --launcher '{' '.join(SRUN)} --overlap -n {{ranks}} -N {{ranks}}'"
    with private_slurm(tmp_path, NODES) as slurm:
        log = submit(slurm, elastic, "elastic", "no-kill")
        until_a_checkpoint(slurm, log)
        if what == "rank":
            slurm.kill_rank("n3")
        else:
            slurm.fail_node("n3")
        text = ended_well(slurm, log)
    assert "rank 2 of 4: killed by signal 9 (SIGKILL)" in text and "restart 1 of 3: on 3 of 4 ranks" in text, text
    assert text.count("start 0 on 4 nodes") == 1 and "start 1 on" not in text, text
    assert_goes_on_with(text, 3)


@pytest.mark.parametrize("how", ["srun", "mpirun"])
@pytest.mark.parametrize("lost", ["n1", "n3"])
def test_a_lost_node_and_a_requeue(tmp_path: Path, how: str, lost: str) -> None:
    """Node 1 runs the batch script. The job asks for 2 to 4 nodes and goes on with the 3 that are left. mpirun fails before Slurm
    knows of the node, so that the script asks for the requeue."""
    command = {"srun": f"{' '.join(SRUN)} --ntasks-per-node=1 {LONG}", "mpirun": f"mpirun -ppn 1 {LONG}"}[how] + AGAIN
    with private_slurm(tmp_path, NODES) as slurm:
        log = submit(slurm, command, "requeued")
        until_a_checkpoint(slurm, log)
        slurm.fail_node(lost)
        text = ended_well(slurm, log)
    assert "start 0 on 4 nodes" in text and "start 1 on 3 nodes" in text, text
    assert_goes_on_with(text, 3)


# ---- batch jobs ------------------------------------------------------------------------------------------------------
def submit(slurm: Slurm, command: str, name: str, *more: str) -> Path:
    """The output of a job of 2 to 4 nodes, a rank each, that Slurm starts again if a node fails."""
    folder = slurm.folder / name
    folder.mkdir()
    options = ("nodes=2-4", "exclusive", "requeue", "open-mode=append", "output=job.log", f"chdir={folder}", *more)
    lines = ["#!/bin/bash", *(f"#SBATCH --{option}" for option in options)]
    script = folder / "job.sh"
    script.write_text("\n".join([*lines, 'echo "start ${SLURM_RESTART_COUNT:-0} on $SLURM_JOB_NUM_NODES nodes"', command, ""]))
    number = slurm.run("sbatch", "--parsable", str(script)).stdout.strip()
    (folder / "number").write_text(number)
    return folder / "job.log"


def until_a_checkpoint(slurm: Slurm, log: Path) -> None:
    slurm.wait_for(lambda: log.exists() and "checkpoint after step" in log.read_text(), "a checkpoint")


def ended_well(slurm: Slurm, log: Path) -> str:
    """What a job has said that ends well; Slurm's two minutes before it starts one again are cut short."""
    number = (log.parent / "number").read_text()

    def over() -> bool:
        state = slurm.job(number)["JobState"]
        if state == "PENDING":
            slurm.run("scontrol", "update", f"JobId={number}", "StartTime=now")
        return state not in ("PENDING", "RUNNING", "COMPLETING")

    slurm.wait_for(over, f"the end of the job, which said:\n{log.read_text()}", 200)
    text = log.read_text()
    assert slurm.job(number)["JobState"] == "COMPLETED", text
    return text


def assert_goes_on_with(text: str, ranks: int) -> None:
    """The second start is on so many ranks, from the newest checkpoint of the first, and ends with the last step."""
    before, found, after = text.partition(f"{ranks} ranks, {ranks} processors")
    assert found and "4 ranks, 4 processors" in before, text
    newest = max(int(line.split()[3].rstrip(":")) for line in before.splitlines() if line.startswith("checkpoint after step"))
    assert f" in {2000 - newest} steps" in after, text
