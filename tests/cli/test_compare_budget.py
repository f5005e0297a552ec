"""compare: its budget is that of the whole command, and the answer says what there was no time for."""

from __future__ import annotations

import json
from collections.abc import Callable
from math import inf
from typing import Any

import pytest
from click.testing import CliRunner

from taskflow.cli.budgets import CommandBudget
from taskflow.cli.main import main
from taskflow.optimizer import Budget

LLAMA = ("llama", "--size", "small", "--batch", "8", "-m", "h100", "-n", "4", "--rule", "adam")


def compared(*words: str) -> Any:
    done = CliRunner().invoke(main, ["compare", *words, "--json"])
    assert done.exit_code == 0, done.output
    return json.loads(done.stdout)


@pytest.fixture
def budgets(monkeypatch: pytest.MonkeyPatch) -> dict[str, Budget]:
    """What each search was given; none finds anything, nor takes any time."""
    given: dict[str, Budget] = {}

    def searched(problem: object, algorithm: str, budget: Budget, *rest: object, **more: object) -> None:
        given[algorithm] = budget
        raise ValueError("nothing fits")

    monkeypatch.setattr("taskflow.cli.compare.run_search", searched)
    monkeypatch.setattr("taskflow.cli.budgets.time.perf_counter", lambda: 0.0)
    return given


def test_searches_share_the_seconds_that_are_left(budgets: dict[str, Budget]) -> None:
    """Nothing has taken time, so each has its share of all of it: the first one of what is shared by most."""
    said = compared(*LLAMA, "--budget", "36s,90p")
    shares = {"placement": 2 / 14, "optcnn": 2 / 12, "mcmc": 2 / 10, "guided": 1.0}
    assert {name: one.seconds for name, one in budgets.items()} == pytest.approx({name: 36 * of for name, of in shares.items()})
    assert all(one.proposals == 90 for one in budgets.values())
    assert {name: said["left_out"][name] for name in shares} == dict.fromkeys(shares, "nothing fits")


def test_what_the_others_are_compared_with_gets_the_most_time_of_plans(
    budgets: dict[str, Budget], monkeypatch: pytest.MonkeyPatch
) -> None:
    shares: list[float] = []
    monkeypatch.setattr(CommandBudget, "part", lambda self, share: shares.append(share) or Budget(1e6))  # type: ignore[func-returns-value]
    compared(*LLAMA, "--budget", "36s")
    data, model, expert = shares[:3]
    assert data > 4 * model and 0.2 < data < 0.3 and expert > model


def test_proposals_are_of_each_search(budgets: dict[str, Budget]) -> None:
    compared(*LLAMA, "--budget", "40p")
    assert set(budgets.values()) == {Budget(inf, 40)}


def test_what_there_was_no_time_for_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    """All plans that people write come too late; the first search and the last one answer in any case."""
    monkeypatch.setattr(CommandBudget, "part", lambda self, share: Budget(1e-9 if share < 1 else 2.0))
    said = compared("nmt", "-m", "k80", "-n", "4", "--budget", "1h")
    assert [row["name"] for row in said["strategies"] if not row["name"].startswith("grid")] == ["placement", "guided"]
    late = {name: why for name, why in said["left_out"].items() if why == "no time to simulate it"}
    assert {"data", "model", "expert"} <= set(late)
    shown = CliRunner().invoke(main, ["compare", "nmt", "-m", "k80", "-n", "4", "--budget", "1h"]).stdout
    assert "expert: no time to simulate it" in shown.splitlines()


def test_the_guided_search_has_looked_at_the_grid_and_begins_with_the_best_plan() -> None:
    sizes = ("--set", "layers=4", "--set", "hidden=1024", "--set", "steps=256", "--dtype", "bf16", "--rule", "adam")
    said = compared("llama", *sizes, "--batch", "16", "-m", "h100", "-n", "2", "--budget", "100p")
    rows = {row["name"].split(":")[0]: row for row in said["strategies"]}
    fitting = [row["iteration_seconds"] for row in said["strategies"] if row["fits_memory"]]
    assert rows["guided"]["iteration_seconds"] == min(fitting) and "grid" in rows
    assert rows["grid"]["grid"]["simulated"] >= 1


def test_plans_of_cuts_alone_are_not_lowered_for_thousands_of_devices(
    budgets: dict[str, Budget], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("taskflow.cli.compare.MOST_PROCESSORS", 3)
    said = compared("llama", "--set", "layers=2", "--batch", "8", "-m", "h100", "-n", "4", "--dtype", "bf16", "--budget", "9s")
    assert list(budgets) == ["guided"]
    (barred,) = [name for name in said["left_out"] if "mcmc" in name]
    assert barred == "data, model, expert, placement, optcnn, mcmc"


def test_a_budget_that_is_over_leaves_a_moment(monkeypatch: pytest.MonkeyPatch) -> None:
    now: list[float] = [0.0]
    clock: Callable[[], float] = lambda: now[0]  # noqa: E731
    monkeypatch.setattr("taskflow.cli.budgets.time.perf_counter", clock)
    spending = CommandBudget("10s")
    assert spending.part(0.5).seconds == 5.0
    now[0] = 6.0
    assert spending.part(0.5).seconds == 2.0
    now[0] = 20.0
    assert 0 < spending.part(0.5).seconds < 0.1
