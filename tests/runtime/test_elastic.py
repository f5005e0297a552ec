"""Jobs that lose ranks go on with those that are left: every step with its samples, and with one processor's losses.

``python tests/runtime/test_elastic.py FAILURES [FIRST [AT_ONCE]]`` draws jobs from seed FIRST on until so many starts have failed,
AT_ONCE jobs (2) beside each other, since most of a job's time is waiting. It prints a line a job, and what was said and left of
each that deviates; its exit status is 1 if one did.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import re
import sys
import time
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from programs.start import JOB_VARIABLE, processes_left
from starting import environment, needs_mpi, run_python

from taskflow.runtime.job import run_elastic, segments

HERE = Path(__file__).parent
STEPS, EVERY = 20, 3
WATCHDOG = 6.0  # seconds; on a busy machine ranks that are well wait a second or two for each other
CASES = 200


# ---- the loop --------------------------------------------------------------------------------------------------------
KILLED = "echo 'taskflow: rank 3 of 4: killed by signal 9 (SIGKILL) (pid 7)' >&2; exit 9"
RAISED = "echo 'taskflow: rank 3 of 4: ValueError: boom' >&2; exit 1"
HUNG = "echo 'taskflow: rank 0 of 4: watchdog: has waited 3.0 s in a to receive 4 bytes from rank 2. Rank 2 waits' >&2; exit 1"
NODE = "echo 'taskflow: node b (ranks 2, 3) does not answer any more (x): switched off' >&2; exit 1"


def starts(folder: Path, *ends: str, **options: Any) -> tuple[int, list[str], list[str]]:
    """Exit status of a job whose starts end as the shell commands say, its starts' ranks (and hosts), and what was said."""
    script = folder / "job.sh"
    cases = "\n".join(f"{i}) {end};;" for i, end in enumerate(ends))
    script.write_text(f'echo "$RANKS$HOSTS" >> {folder}/seen\ncase $TASKFLOW_START in\n{cases}\nesac\n')
    said: list[str] = []
    options = {"launcher": "env RANKS={ranks} HOSTS={hosts}", "say": said.append, "max_restarts": len(ends), **options}
    status = run_elastic(["sh", str(script)], (2, 4), **options)
    return status, (folder / "seen").read_text().split(), said


@pytest.mark.parametrize("ends,ranks", [
    (["exit 0"], ["4"]),
    ([KILLED, "exit 0"], ["4", "3"]),
    ([KILLED, KILLED, KILLED, "exit 0"], ["4", "3", "2", "2"]),
    ([RAISED, "exit 0"], ["4", "4"]),
    ([HUNG, "exit 0"], ["4", "3"]),
    ([NODE, "exit 0"], ["4", "2"]),
    (["exit 1", "exit 0"], ["4", "4"]),
    ([KILLED.replace("exit 9", "exit 0"), "exit 0"], ["4", "3"]),
])
def test_a_job_is_started_again_on_what_is_left(tmp_path: Path, ends: list[str], ranks: list[str]) -> None:
    status, seen, _ = starts(tmp_path, *ends)
    assert (status, seen) == (0, ranks)


@pytest.mark.parametrize("end,code", [("exit 2", 2), ("exit 130", 130)])
def test_what_no_restart_mends_ends_it(tmp_path: Path, end: str, code: int) -> None:
    assert starts(tmp_path, end, "exit 0")[:2] == (code, ["4"])


def test_it_ends_after_the_last_restart(tmp_path: Path) -> None:
    status, seen, said = starts(tmp_path, *[RAISED] * 3, max_restarts=2)
    assert (status, seen) == (1, ["4"] * 3)
    assert said == [
        "restart 1 of 2: on 4 of 4 ranks", "restart 2 of 2: on 4 of 4 ranks", "the job failed 3 times; --max-restarts 2 is reached"
    ]


def test_it_shrinks_and_grows_with_the_nodes_that_are_there(tmp_path: Path) -> None:
    there = iter([{"a": 2, "b": 1}, {"a": 2}, {"a": 2, "c": 9}])
    status, seen, _ = starts(tmp_path, KILLED, RAISED, "exit 0", hosts=lambda: next(there))
    assert (status, seen) == (0, ["3a:2,b:1", "2a:2", "4a:2,c:9"])


def test_a_job_that_stands_still_is_ended(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Its only process waits. One that computes for longer is not. A process that is stopped would be named for that."""
    count = "i=0; while [ $i -lt 300000 ]; do i=$((i + 1)); done"
    (tmp_path / "job.sh").write_text(f"[ $TASKFLOW_START = 1 ] || exec sleep 1000\n{count}\n")
    launch = tmp_path / "mpirun"
    launch.write_text('#!/bin/sh\nshift 2\nexec "$@"\n')
    launch.chmod(0o755)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "executable", str(tmp_path / "python"))
        assert run_elastic(["sh", str(tmp_path / "job.sh")], (1, 1), max_restarts=1, watchdog_seconds=0.4) == 0
    assert "no process of the job has done anything for 0.8 s: it is ended" in capsys.readouterr().err


def test_a_job_with_a_stopped_process_is_ended(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The others are busy: ranks that have left the program look for it without a limit."""
    count = "i=0; while [ $i -lt 300000 ]; do i=$((i + 1)); done"
    (tmp_path / "job.sh").write_text(f"[ $TASKFLOW_START = 1 ] && exit 0\nsh -c 'kill -STOP $$' &\nwhile true; do {count}; done\n")
    launch = tmp_path / "mpirun"
    launch.write_text('#!/bin/sh\nshift 2\nexec "$@"\n')
    launch.chmod(0o755)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "executable", str(tmp_path / "python"))
        assert run_elastic(["sh", str(tmp_path / "job.sh")], (2, 2), max_restarts=1, watchdog_seconds=0.4) == 0
    assert re.search(r"process \d+ of the job has been stopped for 0.8 s: it is ended", capsys.readouterr().err)


# ---- training --------------------------------------------------------------------------------------------------------
def train(folder: Path, span: str, faults: list[list[Any]], *more: str, limit: float = 400.0) -> tuple[list[list[Any]], str]:
    """What a run notes (start, step, samples, loss) whose starts have these ``faults``, and what it says; it must end trained."""
    mark, shared = uuid.uuid4().hex, set(os.listdir(segments.FOLDER))
    temporary = folder / "temporary"
    temporary.mkdir()
    extra = {
        "FAULTS": json.dumps(faults), "TASKFLOW_WATCHDOG_SECONDS": str(WATCHDOG), "TASKFLOW_START_SECONDS": "20",
        "TMPDIR": str(temporary), JOB_VARIABLE: mark,
        "PYTHONPATH": f"{HERE / 'programs'}:{environment()['PYTHONPATH']}",
    }
    elastic = ("--elastic", span, "--max-restarts", str(len(faults) + 4)) if span else ()
    done = run_python(
        "-m", "taskflow", "train", "failing_run:main", *elastic, "--steps", str(STEPS), "--checkpoint", "run.safetensors",
        "--checkpoint-every", str(EVERY), "--keep", "2", "--every", "100", *more, folder=folder, limit=limit, extra=extra,
    )
    assert done.returncode == 0, done.stderr
    assert not processes_left(f"{JOB_VARIABLE}={mark}")
    assert not list(temporary.iterdir())
    assert {path.name for path in folder.iterdir()} == {"notes", "run.safetensors", "run.step18.safetensors", "temporary"}
    assert not (names := in_nobodys_use(shared)), f"left in /dev/shm: {names}"
    return [json.loads(line) for line in (folder / "notes").read_text().splitlines()], done.stderr


def in_nobodys_use(before: set[str]) -> set[str]:
    """Names in /dev/shm that were not there ``before`` and that no process maps; other jobs of this machine, which may be other
    programs' as well, have a moment to end."""
    until = time.monotonic() + 10.0
    while True:
        if not (left := set(os.listdir(segments.FOLDER)) - before - mapped_by_anyone()) or time.monotonic() > until:
            return left
        time.sleep(0.2)


def mapped_by_anyone() -> set[str]:
    """Names in /dev/shm of all that a process of this machine maps: MPI's segments, semaphores, whoever made them."""
    found = set()
    for maps in Path("/proc").glob("[0-9]*/maps"):
        with contextlib.suppress(OSError):
            found |= set(re.findall(rf"{segments.FOLDER}/(\S+)", maps.read_text(errors="replace")))
    return found


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> Callable[[], list[list[Any]]]:
    """What one processor notes, step by step."""
    kept: list[list[list[Any]]] = []

    def notes() -> list[list[Any]]:
        if not kept:
            kept.append(train(tmp_path_factory.mktemp("alone"), "", [])[0])
        return kept[0]

    return notes


def check(notes: list[list[Any]], alone: list[list[Any]]) -> None:
    """Each start goes on at the step after a checkpoint, no later than where the one before ended, and to the end."""
    by_start: dict[int, list[list[Any]]] = {}
    for note in notes:
        by_start.setdefault(note[0], []).append(note)
    before = 0
    for steps in ([note[1] for note in part] for part in by_start.values()):
        assert steps == list(range(steps[0], steps[-1] + 1)) and steps[0] <= before and steps[0] % EVERY == 0
        before = steps[-1] + 1
    assert before == STEPS
    for _, step, samples, loss in notes:
        assert samples == alone[step][2] and loss == pytest.approx(alone[step][3], rel=2e-4), step


@pytest.mark.mpi
@needs_mpi
def test_a_killed_rank(tmp_path: Path, alone: Callable[[], list[list[Any]]]) -> None:
    """Two ranks train; one is killed; the other one goes on from the newest checkpoint that is whole: that of step 6 is written
    beside training, and may not be by step 7 on a busy machine; that of step 3 is, before the next one begins."""
    notes, said = train(tmp_path, "1:2", [["kill", "step", 1, 7, 0]])
    assert "taskflow: rank 1 of 2: killed by signal 9 (SIGKILL)" in said
    assert "restart 1 of 5: on 1 of 2 ranks" in said, said
    resumed = re.search(r"resumed from run\.safetensors after step ([36])\b", said)
    assert resumed, said
    assert [note[1] for note in notes if note[0] == 1] == list(range(int(resumed[1]), STEPS))
    check(notes, alone())


def drawn(seed: int) -> tuple[str, list[list[Any]]]:
    """A range of ranks, and one to three faults of starts that follow each other."""
    draw = random.Random(seed)
    most = draw.randint(2, 8)
    faults = []
    for _ in range(draw.randint(1, 3)):
        when = draw.choice(["start", "restart", "step", "step", "gather", "write", "write", "replace"])
        kinds = {"write": ["kill", "stop", "hang", "gone", "raise", "full"], "replace": ["kill", "stop", "hang", "gone"]}
        kind = draw.choice(kinds.get(when, ["kill", "stop", "hang", "exit", "gone", "raise"]))
        late = kind in ("kill", "stop", "gone") and when in ("step", "write") and draw.random() < 0.5
        faults.append([kind, when, draw.randrange(most), draw.randrange(STEPS), round(draw.uniform(0.001, 0.1), 4) if late else 0])
    return f"{draw.randint(1, most)}:{most}", faults


@pytest.mark.slow
@pytest.mark.mpi
@needs_mpi
@pytest.mark.parametrize("seed", range(CASES))
def test_random_failures(tmp_path: Path, seed: int, alone: Callable[[], list[list[Any]]]) -> None:
    span, faults = drawn(seed)
    check(train(tmp_path, span, faults)[0], alone())
