"""taskflow explain and taskflow strategy: what they print, what they give as JSON, and their exit codes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from taskflow.cli.main import main
from taskflow.machine import load_machine
from taskflow.mapper import choose, save
from taskflow.models import build

PROBLEM = ("--model", "nmt", "--size", "small", "-m", "k80", "-n", "4")


def run(*arguments: str, code: int = 0) -> str:
    result = CliRunner().invoke(main, arguments)
    assert result.exit_code == code, result.output
    return result.stdout if code != 2 else result.stderr


def read(*arguments: str, code: int = 0) -> dict[str, Any]:
    return json.loads(run(*arguments, "--json", code=code))  # type: ignore[no-any-return]


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> str:
    """What a search writes into a plan's file."""
    path = tmp_path_factory.mktemp("plans") / "plan.json"
    run("search", "nmt", "--size", "small", "-m", "k80", "-n", "4", "--set", "hidden=8", "--rule", "adam", "--batch", "8",
        "--budget", "100p", "--out", str(path), "-q")
    return path.read_text()


@pytest.fixture
def plan(found: str, tmp_path: Path) -> str:
    path = tmp_path / "plan.json"
    path.write_text(found)
    return str(path)


def test_a_plan_file_knows_what_it_is_for(plan: str) -> None:
    value = read("explain", plan)
    assert value["model"] == "NMT" and value["machine"] == "k80" and value["devices"] == 4
    simulated = read("simulate", "nmt", "--size", "small", "-m", "k80", "-n", "4", "--set", "hidden=8", "--rule", "adam",
                     "--batch", "8", "--strategy", plan)
    assert value["iteration_seconds"] == simulated["iteration_seconds"]
    slower = read("explain", plan, "--rule", "sgd", "--batch", "16")  # what is given replaces what is recorded
    assert slower["iteration_seconds"] != value["iteration_seconds"] and slower["parameters"] == value["parameters"]


def pressed(*_: object, **__: object) -> None:
    raise KeyboardInterrupt


def test_ctrl_c_leaves_what_is_explained_already(plan: str, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = read("explain", plan)
    monkeypatch.setattr("taskflow.cli.explain.split_gain", pressed)
    value = read("explain", plan, "--what-if", "links=2x", code=130)
    assert value["interrupted"] and "what_if" not in value
    assert {**value, "interrupted": False} == whole
    assert run("explain", plan, code=130).endswith("interrupted: the rest was not computed\n")


def test_ctrl_c_says_what_it_ended(plan: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("taskflow.cli.explain.explain", pressed)
    result = CliRunner().invoke(main, ["explain", plan])
    assert result.exit_code == 130 and result.stderr == "taskflow explain: interrupted (simulating)\n"


def test_explain_says_where_the_time_goes(plan: str) -> None:
    value = read("explain", plan)
    for key in ("critical_path", "stretches"):
        assert sum(step["seconds"] for step in value[key]) == pytest.approx(value["iteration_seconds"])
    assert sum(value["critical_path_seconds"].values()) == pytest.approx(value["iteration_seconds"])
    assert value["limit"] == value["busy"][0]["name"]
    text = run("explain", plan)
    assert "critical path" in text and f"What limits it: {value['limit']}" in text and "share" in text
    assert value["operators"][0]["operator"] == "source"


def test_explain_an_operator() -> None:
    value = read("explain", "data", "softmax", *PROBLEM)["operator"]
    assert value["configuration"] == "n/4 @ 0-3" and len(value["tasks"]) == 8  # forward and backward of four pieces
    assert {t["device"] for t in value["tasks"]} == {0, 1, 2, 3}
    assert len(value["alternatives"]) >= 10
    for other in value["alternatives"]:
        change = sum(other["critical_path_change_seconds"].values())
        assert change == pytest.approx(other["iteration_seconds"] - value["iteration_seconds"], abs=1e-12)
        if other["against_plan"] > 1e-9:
            assert other["grows"] in ("computation", "transfers", "synchronisation", "update")
    text = run("explain", "data", "softmax", *PROBLEM)
    assert "which is" in text and "whole on one device" in text and "synchronised by" in text


def test_what_if() -> None:
    value = read("explain", "data", *PROBLEM, "--what-if", "links=2x", "--what-if", "memory=2x,pcie=3x")
    assert [o["what_if"] for o in value["what_if"]] == ["links=2x", "memory=2x,pcie=3x"]
    assert value["what_if"][0]["speedup"] >= 1
    text = run("explain", "data", *PROBLEM, "--what-if", "links=2x", "--search", "--budget", "20p")
    assert "as it is" in text and "searching again gives" in text


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("explain", "data"), "which model? give --model MODEL"),
        (("explain", "data", "softmx", *PROBLEM), "NMT has no operator 'softmx'; did you mean softmax"),
        (("explain", "data", *PROBLEM, "--what-if", "links"), "write WHAT=FACTOR"),
        (("explain", "data", *PROBLEM, "--what-if", "nvlink=2x"), "has no links at 'nvlink'"),
        (("explain", "data", *PROBLEM, "--search"), "--search goes with --what-if"),
        (("explain", "missing.json"), "strategy file missing.json does not exist"),
        (("strategy", "check", "missing.json"), "taskflow strategy check: strategy file missing.json does not exist"),
        (("strategy", "show", "luck", *PROBLEM), "no strategy 'luck'"),
    ],
)
def test_mistakes(arguments: tuple[str, ...], message: str) -> None:
    error = run(*arguments, code=2)
    assert message in error and error.count("\n") == 1


@pytest.mark.parametrize(("key", "value", "said"), [
    ("set", "x", "set: must be an object {...} or null, got 'x'"), ("devices", "four", "devices: must be an integer"),
    ("rule", ["adam"], "rule: must be a text"),
    ("rule", "adagrad", "rule: must be one of"), ("model", 7, "model: must be a text"), ("batch", 0, "batch: must be an integer"),
])  # fmt: skip
def test_a_plan_file_that_was_changed_by_hand(plan: str, key: str, value: object, said: str) -> None:
    content = json.loads(Path(plan).read_text())
    content["made_from"][key] = value
    Path(plan).write_text(json.dumps(content))
    error = run("explain", plan, code=2)
    assert f"made_from.{said}" in error and error.count("\n") == 1


def test_show(plan: str) -> None:
    value = read("strategy", "show", plan)
    content = json.loads(Path(plan).read_text())["operators"]
    assert {o["operator"] for o in value["strategy"]} == set(content)
    for shown in value["strategy"]:
        assert list(shown["degrees"].values()) == content[shown["operator"]]["degrees"]
        assert shown["devices"] == content[shown["operator"]]["processors"]
    lines = run("strategy", "show", "expert", *PROBLEM).splitlines()
    assert any(line.split()[:3] == ["softmax", "linear", "whole"] for line in lines)
    assert any("as decoder.lstm0" in line for line in lines)


def test_diff(plan: str) -> None:
    value = read("strategy", "diff", plan, "expert", code=1)
    assert value["layers"][0]["before_seconds"] == value["first_iteration_seconds"]
    assert value["layers"][-1]["after_seconds"] == pytest.approx(value["second_iteration_seconds"])
    assert sum(layer["effect_seconds"] for layer in value["layers"]) == pytest.approx(
        value["second_iteration_seconds"] - value["first_iteration_seconds"])
    assert "one layer at a time" in run("strategy", "diff", "expert", plan, code=1)
    assert "are the same plan" in run("strategy", "diff", plan, plan)


def test_check(plan: str, tmp_path: Path) -> None:
    assert "fits NMT" in run("strategy", "check", plan)
    assert read("strategy", "check", plan)["fits"] is True
    assert "made for 4 processors" in run("strategy", "check", plan, "-n", "2", code=1)
    value = read("strategy", "check", plan, "--model", "mlp", code=1)
    assert value["fits"] is False and "differs" in value["problems"][0]
    big = ("strategy", "check", "data", "--model", "transformer", "-m", "k80", "-n", "1", "--batch", "2048")
    assert "memory: 1 of 1 processors lack memory" in run(*big, code=1)


def test_a_plan_is_explained_as_what_it_is_not_as_it_is_called(tmp_path: Path) -> None:
    """Renamed, it is explained and exported the same; without its recomputation, it is explained as not recomputed."""
    problem = ("--model", "gpt-2", "--size", "small", "-m", "h100", "-n", "4", "--batch", "4")
    graph, machine = build("gpt-2", 4, 4, preset="small", steps=8), load_machine("h100", 4)
    strategy = choose("t2 c2 mb2 split=2 recompute=light*1,full*1", graph, machine)[0]
    path = tmp_path / "plan.json"
    save(strategy, graph, "h100", path, {
        "model": "gpt-2", "machine": "h100", "devices": 4, "batch": 4, "size": "small", "set": {"steps": "8"},
    })
    assert "plan" in json.loads(path.read_text())

    def said(**changes: Any) -> tuple[dict[str, Any], str, str]:
        path.write_text(json.dumps(json.loads(path.read_text()) | changes))
        result = CliRunner().invoke(main, ["explain", str(path), "--json"])
        assert result.exit_code == 0, result.output
        out = CliRunner().invoke(main, ["export", str(path), "--to", "megatron", "--nearest", "--out", str(tmp_path / "args")])
        value = json.loads(result.stdout)
        del value["strategy"]
        return value, result.stderr, out.stdout + (tmp_path / "args").read_text()

    before = said()
    assert before[0]["beyond_grid"].startswith("What no plan of a grid does: Of 2 layers 1 are")
    assert before[0]["split"] is not None and "--context-parallel-size 2" in before[2]
    assert said(name="mine") == before
    value, note, _ = said(recompute=[])
    assert value["beyond_grid"] == "" and value["split"] is None
    assert len([line for line in note.splitlines() if line.startswith("note: ")]) == 1 and "is kept, in the plan recomputed" in note
    assert run("explain", strategy.name, *problem, "--set", "steps=8", "-q")
