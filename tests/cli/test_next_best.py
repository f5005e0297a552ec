"""search --top: the next best plans are written beside the best, each of another kind, and can be simulated as they were said."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from taskflow.cli.main import main
from taskflow.cli.next_best import next_best
from taskflow.cli.problem import Problem, make_problem
from taskflow.mapper import choose, parse_plan
from taskflow.optimizer import Deadline, SearchResult, search
from taskflow.optimizer.space import SpaceOptions

ASKED = ("gpt-2", "--size", "small", "-m", "h100", "-n", "4", "--batch", "16", "--budget", "60p")


def run(*words: str) -> Any:
    return CliRunner().invoke(main, list(words))


@pytest.fixture(scope="module")
def searched() -> tuple[Problem, SearchResult]:
    """A GPT-2 of four layers on four devices, and what a search finds there."""
    made = make_problem("gpt-2", "h100", 4, 16, "paper", "adam", settings={"layers": "4"})
    return made, search(made.graph, made.machine, budget="60p", use=made.evaluator, memory=made.memory_check)


def test_the_next_plans_are_of_other_kinds_and_no_faster(tmp_path: Path) -> None:
    done = run("search", *ASKED, "--for", "megatron", "--top", "3", "--out", str(tmp_path / "plan.json"), "--json")
    assert done.exit_code == 0, done.output
    row = json.loads(done.stdout)
    files = [one["file"] for one in row["next_best"]]
    assert files == [str(tmp_path / f"plan-{number}.json") for number in (2, 3)]
    seconds = [row["iteration_seconds"], *(one["iteration_seconds"] for one in row["next_best"])]
    assert seconds == sorted(seconds)
    plans = [json.loads(Path(file).read_text())["plan"].split(" ") for file in files]
    assert [word for word in plans[0] if word[:2] != "mb"] != [word for word in plans[1] if word[:2] != "mb"]
    again = json.loads(run("simulate", *ASKED[:-2], "--program", "megatron", "--strategy", files[0], "--json").stdout)
    assert abs(again["iteration_seconds"] / seconds[1] - 1) < 1e-9
    assert json.loads(run("export", files[0], "--to", "megatron", "--out", str(tmp_path / "x.args"), "--json").stdout)["written"]


def test_the_grid_that_was_searched_is_used_again(
    searched: tuple[Problem, SearchResult], monkeypatch: pytest.MonkeyPatch
) -> None:
    """And its plans are those of a grid that is made anew."""
    made, found = searched

    def plans(found: SearchResult) -> list[tuple[str, float]]:
        plans = next_best(made, found, [], 3, SpaceOptions(), None, Deadline())
        return [(strategy.name, seconds) for strategy, seconds in plans]

    anew = plans(replace(found, grid=None))
    monkeypatch.setattr("taskflow.cli.next_best.make_grid", None)
    assert anew and plans(found) == anew


def test_plans_that_the_search_found_to_fit_are_not_simulated_again(searched: tuple[Problem, SearchResult]) -> None:
    """On thousands of devices there is no time to, nor to price others."""
    made, found = searched
    known = dict(found.fit)
    assert found.strategy.plan in known and known[found.strategy.plan] == found.seconds == min(known.values())
    some = (("d2 p2 mb1", 3.0), ("d4 mb1 zero1", 2.0), ("t2 d2 mb1", 4.0), ("t2 d2 mb2", 5.0))
    more = replace(found, fit=(*found.fit, *((parse_plan(words), seconds * found.seconds) for words, seconds in some)))
    plans = next_best(made, more, [], 9, SpaceOptions(), None, Deadline(1e-9))
    seconds = [seconds / found.seconds for strategy, seconds in plans]
    assert seconds == sorted(seconds) and [one for one in seconds if one in (2.0, 3.0, 4.0, 5.0)] == [2.0, 3.0, 4.0]


def test_constraints_hold_and_networks_without_layers_have_known_mappers(tmp_path: Path) -> None:
    words = ("mlp", "--size", "small", "-m", "k80", "-n", "2", "--budget", "20p", "--out", str(tmp_path / "plan.json"))
    done = run("search", *words, "--top", "4", "--quiet")
    assert done.exit_code == 0 and 1 <= done.output.count("next: ") <= 3 and (tmp_path / "plan-2.json").exists(), done.output
    limited = json.loads(run("search", *words, "--top", "4", "--limit", "*: degree<=1", "--json").stdout)
    assert [one["name"] for one in limited["next_best"]] == ["model"]


def test_mistakes_are_said_before_the_search() -> None:
    for more, said in (([], "say with --out where"), (["--products", "fp8", "--out", "p.json"], "8 bits")):
        done = run("search", *ASKED, "--top", "2", *more)
        assert done.exit_code == 2 and said in done.output, done.output


def test_plans_of_cuts_alone_are_not_tried_where_all_of_such_a_step_is_lowered(
    searched: tuple[Problem, SearchResult], monkeypatch: pytest.MonkeyPatch
) -> None:
    """They would take the time of the grid's plans, and not fit."""
    made, found = searched
    asked: list[str] = []
    monkeypatch.setattr("taskflow.cli.next_best.choose", lambda name, *of: asked.append(name) or choose(name, *of))
    next_best(made, found, [], 3, SpaceOptions(), None, Deadline())
    assert asked == ["model", "expert"]
    asked.clear()
    monkeypatch.setattr("taskflow.cli.next_best.MOST_PROCESSORS", 3)
    assert next_best(made, found, [], 3, SpaceOptions(), None, Deadline()) and not asked
