"""taskflow machine: measure writes what the other commands read, show says what a machine is; errors are one line."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner
from starting import needs_mpi, run_python

from taskflow.cli.main import main
from taskflow.machine import host, load_machine, save
from taskflow.machine.machine_file import parse
from taskflow.runtime.calibrate import machine as module


def run(*arguments: str, code: int = 0) -> str:
    result = CliRunner().invoke(main, ("machine", *arguments))
    assert result.exit_code == code, result.output
    return result.stdout if code == 0 else result.stderr


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "SECONDS", 0.01)


def test_measure_writes_what_other_commands_read(tmp_path: Path) -> None:
    file = str(tmp_path / "mine.json")
    text = run("measure", "--processors", "2", "--out", file)
    assert text.startswith("mine: 2 x cpu on 1 node") and f"--machine {file}" in text and "copied by receiver" in text
    assert len(load_machine(file).processors) == 2
    result = CliRunner().invoke(main, ("simulate", "mlp", "--size", "small", "--machine", file, "--json"))
    row = json.loads(result.stdout)
    assert row["machine"] == "mine" and row["costs"] == "analytic mine" and row["iteration_seconds"] > 0


def test_measure_json_is_the_file(tmp_path: Path) -> None:
    result = CliRunner().invoke(main, ("machine", "measure", "--json", "--name", "box"))
    assert result.exit_code == 0
    assert str(parse(json.loads(result.stdout), "stdout")) == "box: 1 x cpu on 1 node"
    assert "measuring processors" in result.stderr
    assert CliRunner().invoke(main, ("machine", "measure", "--json", "--quiet")).stderr == ""


@pytest.mark.parametrize("timeout", ["nan", "inf", "-inf", "-1", "0", "soon"])
def test_a_timeout_is_a_finite_time(timeout: str) -> None:
    """No wait is ever longer than NaN or infinity, so that a rank that never comes would not end the job."""
    said = run("measure", f"--timeout={timeout}", code=2)
    assert "'--timeout'" in said and timeout in said and ("more than 0" in said or timeout == "soon")


def test_more_virtual_processors_than_anyone_plans_for_are_refused() -> None:
    said = run("measure", "--processors", "999999", code=2)
    assert "--processors 999999: must be at most 4096" in said and said.count("\n") == 1


def test_show(tmp_path: Path) -> None:
    shown = json.loads(run("show", "k80", "--devices", "8", "--json"))
    assert (shown["devices"], shown["nodes"], shown["kinds"][0]["processors"]) == (8, 2, 8)
    routes = {(r["from"], r["to"]): r for r in shown["routes"]}
    assert set(routes) == {(0, 1), (0, 2), (0, 4)}  # a kind of route each
    assert routes[0, 4]["same_node"] is False and len(routes[0, 4]["links"]) == 6
    assert routes[0, 1]["copied_by"] == "hardware"
    assert routes[0, 1]["mebibyte_seconds"] == pytest.approx(routes[0, 1]["latency_seconds"] + 2**20 / 2**32)
    save(host(3), tmp_path / "h.json")
    text = run("show", str(tmp_path / "h.json"))
    assert "3 x cpu" in text and "copied by receiver" in text and text.count("processor ") == 1
    assert json.loads(run("show", "h200", "--devices", "1", "--json"))["routes"] == []
    assert "products of float32 arrays run: bfloat16" in run("show", "h200:bf16") and "products" not in run("show", "h200")
    assert json.loads(run("show", "h200:tf32", "--json"))["kinds"][0]["products"] == "tf32"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("measure", "--out", "mine.txt"), "--out must end in .json"),
        (("measure", "--out", "/nowhere/mine.json"), "cannot write /nowhere/mine.json"),
        (("show", "cray"), "no machine 'cray'; use "),
        (("show", "none.json"), "none.json does not exist"),
        (("show", "p100", "--devices", "99"), "has 16 processors, 99 asked for"),
    ],
)
def test_errors_are_one_line(arguments: tuple[str, ...], message: str) -> None:
    error = run(*arguments, code=2)
    assert message in error and error.count("\n") == 1


@pytest.mark.mpi
@needs_mpi
def test_two_ranks(tmp_path: Path) -> None:
    command, extra = ("-m", "taskflow", "machine", "measure"), {"OPENBLAS_NUM_THREADS": "1"}
    file = tmp_path / "two.json"
    done = run_python(*command, "--out", str(file), "--json", ranks=2, extra=extra)
    assert done.returncode == 0, done.stderr
    assert parse(json.loads(done.stdout), "stdout") == load_machine(file)
    (link,) = load_machine(file).route(1, 0)
    assert link.occupies_endpoints in (True, "sender", "receiver") and 1e7 < link.bytes_per_second < 1e12
    assert "links within nodes: rank 0 - rank 1" in done.stderr
    done = run_python(*command, "--processors", "2", "--quiet", ranks=2, extra=extra)
    assert done.returncode != 0 and done.stderr.count("each of which is a processor") == 1
