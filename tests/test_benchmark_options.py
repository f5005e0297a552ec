"""Benchmarks take several values of an option as people write them, and the commands of docs/benchmarks.md."""

from __future__ import annotations

import argparse
import importlib.util
import json
import shlex
import subprocess
import sys
from pathlib import Path

import click
import pytest
from click.testing import CliRunner
from document_blocks import PAGES, blocks

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "benchmarks"))

from several import Several, one_of, repeated  # noqa: E402


@click.command(cls=Several)
@click.option("--devices", "-n", multiple=True, type=int, default=(16,))
@click.option("--models", multiple=True, default=("NMT",))
@click.option("--seconds", default=1.0)
@click.option("--json", "as_json", is_flag=True)
def command(devices: tuple[int, ...], models: tuple[str, ...], seconds: float, as_json: bool) -> None:
    click.echo(json.dumps([devices, models, seconds, as_json]))


@pytest.mark.parametrize("text, expected", [
    ("", [[16], ["NMT"], 1.0, False]),
    ("--devices 8 64 --models NMT", [[8, 64], ["NMT"], 1.0, False]),
    ("--models NMT RNNLM --devices 8 64 4 --seconds 2 --json", [[8, 64, 4], ["NMT", "RNNLM"], 2.0, True]),
    ("--devices 8 --devices 64 1 --json", [[8, 64, 1], ["NMT"], 1.0, True]),
    ("--devices=8 --models A B", [[8], ["A", "B"], 1.0, False]),
    ("--models A B -n 8 64", [[8, 64], ["A", "B"], 1.0, False]),
])  # fmt: skip
def test_several_values(text: str, expected: list[object]) -> None:
    result = CliRunner().invoke(command, text.split())
    assert result.exit_code == 0 and json.loads(result.output) == expected, result.output


def test_what_is_wrong_is_said() -> None:
    for text, said in (
        ("--devices 8 many", "'many' is not a valid integer"), ("--seconds 1 2", "unexpected extra argument (2)"),
        ("--devices --json", "'--json' is not a valid integer"),
    ):  # fmt: skip
        result = CliRunner().invoke(command, text.split())
        assert result.exit_code == 2 and said in result.output, result.output
    assert repeated(["--a", "1", "2", "--b", "3", "4"], {"--a"}) == ["--a", "1", "--a", "2", "--b", "3", "4"]


def test_case_does_not_matter() -> None:
    assert one_of({"NMT": 1, "AlexNet": 2}).convert("alexnet", None, None) == "AlexNet"
    with pytest.raises(click.BadParameter, match=r"(?i)'x' is not one of 'nmt', 'alexnet'"):
        one_of(["NMT", "AlexNet"]).convert("x", None, None)


def test_the_simulator_with_two_models_and_two_sizes() -> None:
    run = subprocess.run(
        [sys.executable, str(ROOT / "benchmarks" / "simulator.py"), "--models", "mlp", "LeNet", "--devices", "2", "3", "--seconds",
         "0.01", "--json"],
        capture_output=True, text=True, timeout=120, check=True,
    )  # fmt: skip
    rows = json.loads(run.stdout)["rows"]
    assert [(r["model"].lower(), r["devices"]) for r in rows[::2]] == [(m, n) for m in ("mlp", "lenet") for n in (2, 3)]
    assert all(r["proposals_per_second"] > 0 and r["decided_proposals_per_second"] > 0 and r["tasks_per_second"] > 0 for r in rows)


# ---- The commands of the documents -----------------------------------------------------------------------------------

SHOWN = sorted({
    line for page in PAGES for block in blocks(page) if block.language == "sh" for line in block.lines
    if line.startswith("python benchmarks/")
})  # fmt: skip
EXTRAS = ("torch", "transformers")
"""What some benchmarks import before they read their arguments, and `make test` without TORCH=1 does not install."""


class Parsed(Exception):
    """The arguments were understood."""


def parse(command: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Have the benchmark read its arguments, and do nothing else. Raises what it raises if it does not understand them."""
    file, *arguments = shlex.split(command)[1:]
    spec = importlib.util.spec_from_file_location(f"benchmark_{Path(file).stem}", ROOT / file)
    assert spec is not None and spec.loader is not None, file
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, spec.name, module)
    try:
        spec.loader.exec_module(module)
    except ModuleNotFoundError as error:
        if error.name not in EXTRAS:
            raise
        pytest.skip(f"{file}: {error.name} is not installed: make test TORCH=1")
    if isinstance(module.main, click.Command):
        module.main.make_context(file, arguments)
        return
    read = argparse.ArgumentParser.parse_args

    def only_read(self: argparse.ArgumentParser, *given: object) -> argparse.Namespace:
        read(self, arguments)
        raise Parsed

    monkeypatch.setattr(argparse.ArgumentParser, "parse_args", only_read)
    with pytest.raises(Parsed):
        module.main()


@pytest.mark.parametrize("command", SHOWN)
def test_commands_of_the_documents_are_understood(command: str, monkeypatch: pytest.MonkeyPatch) -> None:
    parse(command, monkeypatch)


@pytest.mark.parametrize("command, wrong", [
    ("python benchmarks/simulator.py --modles nmt", click.UsageError), ("python benchmarks/kernels.py --rounds many", SystemExit),
])  # fmt: skip
def test_a_wrong_command_would_be_found(command: str, wrong: type[BaseException], monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(wrong):
        parse(command, monkeypatch)
    assert len(SHOWN) > 15
