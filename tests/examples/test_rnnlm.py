"""examples/rnnlm.py as a user starts it: alone and under mpirun, under every kind of mapper, and with what cannot work."""

from __future__ import annotations

import importlib.util
import json
import re
import subprocess
from pathlib import Path

import pytest
from click.testing import CliRunner
from fast_and_slow import fast_among
from starting import ROOT, needs_mpi, run_python

WORDS = ("the", "quick", "brown", "fox", "jumps", "over", "a", "lazy", "dog", "while", "seven", "wise", "owls", "watch")
LIMIT_SECONDS = 200

OWN_MAPPER = '''
from taskflow.mapper import DataParallel, Mapper, SyncAlgorithm, UpdatePlacement, MessageSync

class Columns(Mapper):
    """Dense layers by columns, everything else on the last processor; weights travel around a ring."""

    name = "columns"

    def slice_task(self, node, machine):
        count = len(machine.processors) if node.operator.kind == "linear" else 1
        return [count if dim.name == "c" else 1 for dim in node.dims]

    def map_task(self, node, piece, degrees, machine):
        return len(machine.processors) - 1 - piece

    def select_reduction(self, layer, nbytes, holders, machine):
        return MessageSync(SyncAlgorithm.RING, UpdatePlacement.REPLICATED)
'''


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a small text, a mapper and a cache."""
    here = tmp_path_factory.mktemp("rnnlm")
    state, lines = 1, []
    for _ in range(2400):  # the same text in every run: a linear congruential generator picks the words
        picked = []
        for _ in range(10):
            state = (state * 1103515245 + 12345) % 2**31
            picked.append(WORDS[(state >> 16) % len(WORDS)])
        lines.append(" ".join(picked))
    (here / "text.txt").write_text("\n".join(lines))
    (here / "own_mapper.py").write_text(OWN_MAPPER)
    return here


def start(
    folder: Path, *arguments: str, ranks: int = 0, data: bool = True, **variables: str
) -> subprocess.CompletedProcess[str]:
    """Run the example in ``folder``; ``ranks`` 0 is without mpirun."""
    given = ["--data", "text.txt"] if data else []
    return run_python(
        str(ROOT / "examples" / "rnnlm.py"), *given, *arguments, ranks=ranks, folder=folder, limit=LIMIT_SECONDS,
        extra={"TASKFLOW_CACHE": str(folder / "cache"), "TASKFLOW_WATCHDOG_SECONDS": "100", **variables},
    )


def start_here(folder: Path, monkeypatch: pytest.MonkeyPatch, *arguments: str) -> subprocess.CompletedProcess[str]:
    """As `start` without mpirun, but in this process, which has all modules already."""
    monkeypatch.chdir(folder)
    monkeypatch.setenv("TASKFLOW_CACHE", str(folder / "cache"))
    monkeypatch.syspath_prepend(str(folder))
    spec = importlib.util.spec_from_file_location("example_rnnlm", ROOT / "examples" / "rnnlm.py")
    assert spec is not None and spec.loader is not None
    program = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(program)
    done = CliRunner().invoke(program.main, ["--data", "text.txt", *arguments], catch_exceptions=False)
    return subprocess.CompletedProcess(list(arguments), done.exit_code, done.stdout, done.stderr)


def report(done: subprocess.CompletedProcess[str]) -> dict:
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


@pytest.fixture(scope="module")
def alone(folder: Path) -> dict:
    """What one processor gets."""
    with pytest.MonkeyPatch.context() as monkeypatch:
        return report(start_here(folder, monkeypatch, "--processors", "1", "--steps", "8", "--json", "--quiet"))


def same_losses(found: dict, reference: dict) -> None:
    assert len(found["losses"]) == 8
    assert found["losses"] == pytest.approx(reference["losses"], rel=1e-4)


def test_virtual_processors(folder: Path, alone: dict) -> None:
    done = start(folder, "--processors", "4", "--steps", "8", "--json")
    found = report(done)
    same_losses(found, alone)
    assert {"ranks": 1, "processors": 4, "mapper": "data", "steps": 8, "seed": 0}.items() <= found.items()
    assert found["loss_first"] == found["losses"][0] > found["loss_last"] == found["losses"][-1]
    assert found["tokens_per_second"] > 0 and found["bytes_moved_per_step"] == 0 < found["seconds"]
    assert "4 processors, mapper data" in done.stderr and "step 8/8" in done.stderr
    assert len(done.stdout.splitlines()) == 1  # results go to stdout, the rest to stderr


def test_another_seed_gives_other_losses(folder: Path, alone: dict, monkeypatch: pytest.MonkeyPatch) -> None:
    found = report(start_here(folder, monkeypatch, "--processors", "2", "--steps", "8", "--json", "--quiet", "--seed", "1"))
    assert found["loss_first"] != pytest.approx(alone["loss_first"], rel=1e-5)


def test_quiet_says_the_result_only(folder: Path) -> None:
    done = start(folder, "--steps", "1", "--quiet")
    assert (done.returncode, done.stdout) == (0, "") and re.fullmatch(r"loss .* in 1 steps, .*\n", done.stderr)
    done = start(folder, "--steps", "1", "--quiet", "--json")
    assert (done.returncode, done.stderr) == (0, "") and json.loads(done.stdout)["steps"] == 1


@pytest.mark.mpi
@needs_mpi
@pytest.mark.timeout(2 * LIMIT_SECONDS)
@pytest.mark.parametrize("mapper", [pytest.param(mapper, marks=pytest.mark.slow) for mapper in ("model", "random")])
def test_ranks_and_mappers_change_no_loss(folder: Path, alone: dict, mapper: str) -> None:
    found = report(start(folder, "--mapper", mapper, "--steps", "8", "--json", "--quiet", ranks=3))
    same_losses(found, alone)
    assert (found["ranks"], found["processors"], found["mapper"]) == (3, 3, mapper)
    assert found["bytes_moved_per_step"] > 0


@pytest.mark.mpi
@needs_mpi
@pytest.mark.timeout(3 * LIMIT_SECONDS)
def test_a_saved_strategy_runs_again(folder: Path, alone: dict, monkeypatch: pytest.MonkeyPatch) -> None:
    """And ranks and a user's own mapper change no loss."""
    mapper = "own_mapper:Columns"
    saved = report(start(
        folder, "--mapper", mapper, "--steps", "8", "--json", "--quiet", "--save-strategy", "plan.json", ranks=2
    ))
    assert (saved["ranks"], saved["processors"], saved["mapper"]) == (2, 2, mapper) and saved["bytes_moved_per_step"] > 0
    again = report(start(folder, "--mapper", "plan.json", "--steps", "8", "--json", "--quiet", ranks=2))
    same_losses(saved, alone)
    same_losses(again, alone)
    assert again["losses"] == saved["losses"]  # the same strategy: bit for bit
    assert again["bytes_moved_per_step"] == saved["bytes_moved_per_step"]
    more = start(folder, "--mapper", "plan.json", "--steps", "1", ranks=3)
    refused(more, "plan.json: made for 2 processors (host-2), but this run has 3; start it with -n 2")
    virtual = start_here(folder, monkeypatch, "--mapper", "plan.json", "--steps", "1", "--processors", "4")
    refused(virtual, "plan.json: made for 2 processors (host-2), but this run has 4")


def refused(done: subprocess.CompletedProcess[str], message: str) -> None:
    """Exit code 2, one line that says why, no traceback. (On a busy machine another one may say what takes so long.)"""
    lines = [line for line in done.stderr.splitlines() if line.strip() and not line.endswith(" ...")]
    assert done.returncode == 2, done.stderr
    assert len(lines) == 1 and lines[0].startswith("rnnlm.py: ") and message in lines[0], done.stderr
    assert not done.stdout


MISTAKES = [
    (["--mapper", "fastest"], "no mapper 'fastest'; use data, model"),
    (["--mapper", "own_mapper:Rows"], "own_mapper has no class Rows"),
    (["--mapper", "nothing:Mine"], "cannot import nothing"),
    (["--mapper", "nothing.json"], "strategy file nothing.json does not exist"),
    (["--mapper", "text.json"], "text.json: not JSON"),
    (["--data", "nothing.txt"], "nothing.txt"),
    (["--ptb", "."], "give text files or a Penn Treebank folder, not both"),
    (["--save-strategy", "nowhere/plan.json"], "cannot write strategy file nowhere/plan.json: there is no folder"),
]


ON_RANKS = [
    MISTAKES[0], MISTAKES[5], MISTAKES[-1], (["--processors", "1"], "2 ranks need at least as many processors, got 1"),
]


@pytest.mark.parametrize("arguments,message", fast_among(MISTAKES, [MISTAKES[i] for i in (0, 3, 7)]))
def test_mistakes_are_named_in_one_line(
    folder: Path, arguments: list[str], message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    (folder / "text.json").write_text("this is no JSON")
    refused(start_here(folder, monkeypatch, "--steps", "1", *arguments), message)


@pytest.mark.mpi
@needs_mpi
@pytest.mark.timeout(2 * LIMIT_SECONDS)
@pytest.mark.parametrize("arguments,message", fast_among(ON_RANKS, ON_RANKS[3:]))
def test_mistakes_are_named_once_by_all_ranks(folder: Path, arguments: list[str], message: str) -> None:
    refused(start(folder, "--steps", "1", *arguments, ranks=2), message)


def test_an_mpirun_of_another_mpi_is_named(folder: Path) -> None:
    # The variables of one more launcher, around a python whose MPI does not know it: each process is alone.
    done = start(folder, "--steps", "1", MV2_COMM_WORLD_RANK="0", MV2_COMM_WORLD_SIZE="3")
    refused(done, "MVAPICH started 3 ranks, but the MPI library that mpi4py loaded sees 1")


def test_options_have_help(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    done = start_here(folder, monkeypatch, "--help")
    assert done.returncode == 0
    for option in ("--mapper", "--processors", "--data", "--ptb", "--steps", "--save-strategy", "--json", "--watchdog"):
        assert option in done.stdout
