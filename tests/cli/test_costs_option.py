"""--costs: what commands measure, what they record and say of it, and how they refuse."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from measured_quickly import Stopwatch, watch

from taskflow.cli.main import main

NET = ("mlp", "--size", "small", "--batch", "8", "-n", "2")
MEASURED = ("--costs", "measured")


@pytest.fixture(autouse=True)
def stopwatch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Stopwatch:
    monkeypatch.chdir(tmp_path)
    return watch(monkeypatch, tmp_path / "cache")


def run(*arguments: str, code: int = 0) -> str:
    done = CliRunner().invoke(main, arguments)
    assert done.exit_code == code, (done.output, done.exception)
    return done.stderr if code == 2 else done.stdout


def read(*arguments: str) -> dict[str, Any]:
    return json.loads(run(*arguments, "--json"))  # type: ignore[no-any-return]


def searched(out: str, *options: str) -> dict[str, Any]:
    return read("search", *NET, "--budget", "60p", "--out", out, *options)


def test_a_plan_remembers_which_costs_it_was_found_with(stopwatch: Stopwatch) -> None:
    found = searched("p.json", *MEASURED)
    assert found["costs"].startswith("measured ") and stopwatch.count > 0
    assert json.loads(Path("p.json").read_text())["made_from"]["costs"] == "measured"
    measured = stopwatch.count
    for command in (("explain", "p.json"), ("strategy", "show", "p.json"), ("strategy", "check", "p.json"),
                    ("report", "p.json"), ("simulate", *NET, "--strategy", "p.json", *MEASURED)):  # fmt: skip
        value = read(*command)
        assert value["costs"] == found["costs"], command
        seconds = value["plan"]["seconds"] if command[0] == "report" else value["iteration_seconds"]
        assert seconds == pytest.approx(found["iteration_seconds"]), command
    assert stopwatch.count >= measured  # a report also measures what data, expert and model need
    given = read("explain", "p.json", "--costs", "analytic")
    assert given["costs"] == "analytic host-2" and given["iteration_seconds"] != found["iteration_seconds"]
    # On another machine the recorded costs say nothing.
    assert read("explain", "p.json", "--machine", "k80", "-n", "2")["costs"] == "analytic k80"


def test_files_without_costs_are_analytic(stopwatch: Stopwatch) -> None:
    found = searched("p.json")
    content = json.loads(Path("p.json").read_text())
    assert found["costs"] == "analytic host-2" and content["made_from"].pop("costs") == "analytic"
    Path("p.json").write_text(json.dumps(content))
    value = read("explain", "p.json")
    assert value["costs"] == "analytic host-2" and value["iteration_seconds"] == found["iteration_seconds"]
    assert read("explain", "p.json", *MEASURED)["costs"].startswith("measured ")
    content["made_from"]["costs"] = "guessed"
    Path("p.json").write_text(json.dumps(content))
    assert "made_from.costs: must be one of analytic, measured, got 'guessed'" in run("explain", "p.json", code=2)


def test_every_text_with_times_says_which_costs() -> None:
    searched("p.json", *MEASURED)
    for words in (("search", *NET, "--budget", "20p", "-q"), ("simulate", *NET), ("compare", *NET, "--budget", "20p"),
                  ("explain", "data", "--model", *NET), ("strategy", "show", "data", "--model", *NET),
                  ("strategy", "check", "data", "--model", *NET), ("strategy", "diff", "data", "data", "--model", *NET),
                  ("report", "data", "--model", *NET)):  # fmt: skip
        for costs, said in (((), "costs: analytic host-2"), (MEASURED, "costs: measured ")):
            assert said in " ".join(run(*words, *costs).split()), (words, costs)


def test_what_cannot_be_measured_is_one_line(stopwatch: Stopwatch) -> None:
    on_k80 = ("mlp", "--size", "small", "-m", "k80", "-n", "2", *MEASURED)
    for words in (("search", *on_k80), ("simulate", *on_k80), ("compare", *on_k80), ("explain", "data", "--model", *on_k80)):
        error = run(*words, code=2)
        assert error.count("\n") == 1 and "machine k80 has k80; use analytic costs (--costs analytic" in error
    error = run("explain", "data", "--model", *NET, *MEASURED, "--what-if", "compute=2x", code=2)
    assert error.count("\n") == 1 and "measured costs are of the processor at hand" in error
    assert stopwatch.count > 0  # but of the plan that was to be explained


def test_what_if_measures_too() -> None:
    value = read("explain", "data", "--model", *NET, *MEASURED, "--what-if", "latency=4x")
    assert value["what_if"][0]["iteration_seconds"] > value["iteration_seconds"]


def test_profile_searches_with_what_predicts(stopwatch: Stopwatch) -> None:
    few = ("--budget", "20p", "--warmup", "1", "--steps", "1", "--strategy", "search")
    assert read("profile", *NET, *few, "--costs", "analytic")["costs"] == "analytic host-2" and stopwatch.count == 0
    assert read("profile", *NET, *few)["costs"].startswith("measured ") and stopwatch.count > 0
