"""examples/nmt.py and examples/transformer.py as a user starts them: under every kind of mapper, alone and under mpirun."""

from __future__ import annotations

import importlib.util
import json
import subprocess
from pathlib import Path

import pytest
from click.testing import CliRunner
from starting import ROOT, needs_mpi, run_python

from taskflow.training.translation.numbers import number_pairs

pytest.importorskip("tokenizers", reason="pip install 'soap-taskflow[examples]'")
pytest.importorskip("sacrebleu", reason="pip install 'soap-taskflow[examples]'")

EXAMPLES = ["nmt", "transformer"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with text in two languages, and a cache."""
    here = tmp_path_factory.mktemp("translation")
    for name, side in zip(("numbers.de", "numbers.en"), zip(*number_pairs(3000))):
        (here / name).write_text("\n".join(side), encoding="utf-8")
    return here


def start(
    folder: Path, name: str, *arguments: str, ranks: int = 0, data: bool = True, limit_seconds: int = 120
) -> subprocess.CompletedProcess[str]:
    """Run an example in ``folder``; ``ranks`` 0 is without mpirun."""
    files = ["--data", "numbers.de", "--data", "numbers.en", "--vocabulary", "500"] if data else []
    return run_python(
        str(ROOT / "examples" / f"{name}.py"), *files, *arguments, ranks=ranks, folder=folder, limit=limit_seconds,
        extra={"TASKFLOW_CACHE": str(folder / "cache"), "OMP_NUM_THREADS": "1"},
    )


def report(done: subprocess.CompletedProcess[str]) -> dict:
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


@pytest.mark.parametrize(("name", "mappers"), [
    ("nmt", ("data", "search")), pytest.param("transformer", ("data", "expert"), marks=pytest.mark.slow),
    *(pytest.param(name, ("data", "expert", "search"), marks=pytest.mark.slow) for name in EXAMPLES),
])
def test_the_loss_falls_the_same_under_every_mapper(folder: Path, name: str, mappers: tuple[str, ...]) -> None:
    losses = {}
    for mapper in mappers:
        done = start(
            folder, name, "--processors", "4", "--mapper", mapper, "--search-budget", "200p", "--steps", "8", "--json",
            "--beams", "2", "--sentences", "3",
        )
        found = report(done)
        assert {"processors": 4, "mapper": mapper, "steps": 8, "text": "numbers.de to numbers.en"}.items() <= found.items()
        losses[mapper] = found["losses"]
        assert found["loss_last"] < 0.8 * found["loss_first"]
        # The held-out text is as hard as the training text at the end.
        assert found["loss_valid"] < 0.9 * found["loss_first"]
        assert 0 <= found["bleu_valid"] <= 100
        assert done.stderr.count("  source: ") == done.stderr.count("  said: ") == 3
        assert "perplexity" in done.stderr.splitlines()[-2]
    for mapper in mappers[1:]:
        assert losses[mapper] == pytest.approx(losses["data"], rel=1e-3)


def test_mistakes_are_named_in_one_line(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder)
    monkeypatch.setenv("TASKFLOW_CACHE", str(folder / "cache"))
    spec = importlib.util.spec_from_file_location("example_nmt", ROOT / "examples" / "nmt.py")
    assert spec is not None and spec.loader is not None
    program = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(program)
    for arguments, message in (
        (["--data", "numbers.en"], "translation: give two files, the source's and the target's, got 1"),
        (["--data", "numbers.en", "--data", "nothing"], "translation: there is no file"),
        (["--language", "xx"], "no message catalogue on this machine is in 'xx'"),
    ):
        done = CliRunner().invoke(program.main, ["--steps", "1", "--quiet", *arguments], catch_exceptions=False)
        assert (done.exit_code, done.stdout) == (2, "")
        assert len(done.stderr.splitlines()) == 1 and done.stderr.startswith("nmt.py: ") and message in done.stderr


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("name", EXAMPLES)
def test_what_this_machine_has_is_enough(folder: Path, name: str) -> None:
    """Whatever that is: training never fails because no data is there."""
    found = report(start(folder, name, "--steps", "30", "--json", "--quiet", "--sentences", "2", data=False, limit_seconds=800))
    assert found["loss_last"] < 0.9 * found["loss_first"] and found["pairs"] > 1000


@pytest.mark.slow
@pytest.mark.mpi
@needs_mpi
@pytest.mark.timeout(1300)
@pytest.mark.parametrize("name", EXAMPLES)
def test_four_ranks_learn_to_translate(folder: Path, name: str) -> None:
    found = report(start(folder, name, "--steps", "300", "--json", "--quiet", ranks=4, limit_seconds=1200))
    assert (found["ranks"], found["processors"]) == (4, 4)
    assert found["loss_last"] < 0.2 * found["loss_first"]
    assert found["perplexity_valid"] < 4 and found["bleu_valid"] > 20


@pytest.mark.slow
@pytest.mark.mpi
@needs_mpi
@pytest.mark.timeout(1300)
@pytest.mark.parametrize("name", EXAMPLES)
@pytest.mark.parametrize("mapper", ["expert", "search"])
def test_ranks_and_mappers_change_no_loss(folder: Path, name: str, mapper: str) -> None:
    few = ("--steps", "20", "--json", "--quiet", "--sentences", "8")
    alone = report(start(folder, name, *few, limit_seconds=600))
    found = report(start(folder, name, *few, "--mapper", mapper, ranks=4, limit_seconds=600))
    assert found["losses"] == pytest.approx(alone["losses"], rel=1e-3)
    assert found["loss_valid"] == pytest.approx(alone["loss_valid"], rel=1e-3)
    assert found["bytes_moved_per_step"] > 0
