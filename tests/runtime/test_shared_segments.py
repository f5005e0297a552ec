"""/dev/shm: segments of failed jobs are removed, and ranks that do not fit are told so or do without. Jobs run in a mount
namespace with a /dev/shm of their own, where that is allowed."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from starting import MPIRUN, environment

from taskflow.runtime.job import LaunchError, segments
from taskflow.runtime.job.segments import LEAN_BYTES, RANK_BYTES
from taskflow.runtime.job.shared_space import Room, in_words, setting

ALLOWED = sys.platform == "linux" and MPIRUN is not None and subprocess.run(
    ["unshare", "-m", "mount", "-t", "tmpfs", "tmpfs", "/dev/shm"], capture_output=True, check=False
).returncode == 0 and "MPICH" in subprocess.run([MPIRUN, "--version"], capture_output=True, text=True, check=False).stdout.replace(
    "HYDRA", "MPICH"
)  # fmt: skip
needs_namespace = pytest.mark.skipif(not ALLOWED, reason="no mount namespaces here (unshare -m), or no mpirun of MPICH")
RANK = """
import os, signal, sys, time
import taskflow
ranks = taskflow.connect()
ranks.barrier()
if ranks.rank == 0:
    print(f"up {ranks.size} {[n for n in os.listdir('/dev/shm') if n.startswith('mpich')]}", flush=True)
    time.sleep(0.5)  # for mpirun to pass it on
ranks.barrier()
if sys.argv[1] == "raise" and ranks.rank == 1:
    raise ValueError("my bug")
if sys.argv[1] == "kill" and ranks.rank == 1:
    os.kill(os.getpid(), signal.SIGKILL)
if sys.argv[1] == "mpirun" and ranks.rank == 0:
    stat = open(f"/proc/{os.getppid()}/stat").read()
    os.kill(int(stat.rpartition(")")[2].split()[1]), signal.SIGKILL)
while sys.argv[1] != "end":
    ranks.barrier()
"""


def within(folder: Path, size: str, ranks: int, how: str, before: str = "") -> tuple[str, str]:
    """What a job says, and what it leaves in a /dev/shm of ``size``. ``before``: commands of the shell before it."""
    (folder / "rank.py").write_text(RANK)
    script = f"""mount -t tmpfs -o size={size} tmpfs /dev/shm
{before}
({MPIRUN} -n {ranks} {sys.executable} rank.py {how}; echo "code $?") < /dev/null > said 2>&1  # as of a batch script: one file
for i in $(seq 100); do [ -z "$(ls /dev/shm)" ] && break; sleep 0.1; done
cat said  # which the watcher writes into after mpirun's end, and before it removes segments
ls /dev/shm > left
"""
    done = subprocess.run(
        ["unshare", "-m", "bash", "-c", script], cwd=folder, env=environment(), capture_output=True, text=True, timeout=200,
        check=False,
    )
    return done.stdout + done.stderr, (folder / "left").read_text()


@pytest.mark.mpi
@needs_namespace
@pytest.mark.parametrize(
    ("how", "said"),
    [
        pytest.param("raise", "taskflow: rank 1 of 3: ValueError: my bug", marks=pytest.mark.slow),
        pytest.param("kill", "taskflow: rank 1 of 3: killed by signal 9 (SIGKILL)", marks=pytest.mark.slow),
        ("mpirun", r"taskflow: mpirun (pid "),
    ],
)
def test_a_failed_job_leaves_nothing_and_says_why(tmp_path: Path, how: str, said: str) -> None:
    text, left = within(tmp_path, "64m", 3, how)
    assert re.search(r"up 3 \['mpich_shm_\w+'\]", text), text  # there was something to remove
    assert said in text and not left, text
    if how == "mpirun":
        assert re.search(r"mpirun \(pid \d+\): (killed by signal 9 \(SIGKILL\)|ended without a word.*); its job ends", text), text


@pytest.mark.mpi
@pytest.mark.slow
@needs_namespace
def test_ranks_that_do_not_fit_do_without_or_are_told(tmp_path: Path) -> None:
    """What another job of this user has left there is removed first."""
    left_before = "head -c 9000000 /dev/zero > /dev/shm/mpich_shm_0123_0; touch -d '1 hour ago' /dev/shm/mpich_shm_0123_0; sleep 6"
    text, left = within(tmp_path, "12m", 4, "end", left_before)
    assert "22 MB are wanted for 4 ranks: UCX shares memory without it (UCX_TLS=^posix)" in text
    assert "up 4" in text and "code 0" in text and not left, text
    text, _ = within(tmp_path, "2m", 4, "end")
    assert "of 2 MB free, but MPICH needs 4 MB for 4 ranks; give more (docker run --shm-size=1g" in text and "code 0" not in text


def test_how_many_ranks_fit() -> None:
    roomy, docker, full = Room(10**9, 10**9), Room(64 * 2**20, 64 * 2**20), Room(24_000, 2**20)
    assert not setting(16, roomy, {}, True) and not setting(12, docker, {}, True)
    assert setting(16, docker, {}, True).startswith("/dev/shm has 67 MB of 67 MB free, 88 MB are wanted for 16 ranks")
    assert not setting(16, docker, {"UCX_TLS": "self,tcp"}, True) and not setting(16, docker, {}, False)
    for environment_, ucx in (({"UCX_TLS": "all"}, True), ({"UCX_TLS": "self,sm"}, True)):
        with pytest.raises(LaunchError, match=r"needs 88 MB for 16 ranks \(with UCX_TLS=.*or start at most 12 ranks on this node"):
            setting(16, docker, environment_, ucx)
    with pytest.raises(LaunchError, match=r"24 kB of 1 MB free, but MPICH needs 2 MB for 2 ranks; .*remove what is there"):
        setting(2, full, {}, True)
    assert "no ranks of MPICH start" in in_words(full) and "for 12 ranks of MPICH on this node, 61 with" in in_words(docker)
    assert RANK_BYTES > LEAN_BYTES


def test_only_old_unmapped_segments_of_this_user_are_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(segments, "FOLDER", str(tmp_path))
    monkeypatch.setattr(segments, "_MAPPED", re.compile(segments._MAPPED.pattern.replace("/dev/shm", re.escape(str(tmp_path)))))
    for name in ("mpich_shm_0_0", "mpich_shm_1_0", "ucx_shm_posix_2", "mpich_notes.txt", "other"):
        (tmp_path / name).write_bytes(bytes(5000))
    assert not segments.left_behind()  # just made
    later = time.time() + 60
    monkeypatch.setattr(time, "time", lambda: later)
    assert sorted(segments.left_behind()) == ["mpich_shm_0_0", "mpich_shm_1_0", "ucx_shm_posix_2"]
    maps = f"import mmap; f = open('{tmp_path}/mpich_shm_1_0', 'r+b'); m = mmap.mmap(f.fileno(), 0)"
    words = [sys.executable, "-c", f"{maps}; print('there', flush=True); input()"]
    holder = subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    try:
        assert holder.stdout is not None and holder.stdout.readline() == "there\n"
        assert segments.mapped([holder.pid]) == {"mpich_shm_1_0"}
        found = segments.space(os.getpid())
        assert found is not None and 0 < found[0] <= found[1]
        segments.remove_unmapped(segments.left_behind())
        assert sorted(os.listdir(tmp_path)) == ["mpich_notes.txt", "mpich_shm_1_0", "other"]
    finally:
        holder.send_signal(signal.SIGKILL)
        holder.communicate()
    segments.remove_unmapped(segments.left_behind())
    assert sorted(os.listdir(tmp_path)) == ["mpich_notes.txt", "other"]
