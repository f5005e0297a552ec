"""--expert-imbalance: the busiest device of experts is planned for, named in the answer, and kept in a plan's file."""

from __future__ import annotations

import json
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from taskflow.cli.dealing import dealing, faster_of_both
from taskflow.cli.main import main
from taskflow.cli.problem import Problem, make_problem
from taskflow.mapper import HybridParallel, map_graph
from taskflow.optimizer import Budget, SearchResult, search

ASKED = ["mixtral", "--size", "small", "--set", "steps=64", "--batch", "4", "-m", "h100", "-n", "2", "--rule", "adam"]


def run(*arguments: str) -> str:
    done = CliRunner().invoke(main, list(arguments))
    assert done.exit_code == 0, done.output
    return done.output


def row(*arguments: str) -> dict[str, Any]:
    return dict(json.loads(run(*arguments, "--json")))


def test_a_named_plan_that_deals_experts_gives_them_places_for_an_even_load() -> None:
    assert row("simulate", *ASKED, "--strategy", "d2 e2 mb1")["experts"] == {"imbalance": 1, "dealt": 2}
    assert "experts" not in row("simulate", *ASKED, "--strategy", "d2 mb1")


def test_the_factor_is_named_and_a_step_takes_longer() -> None:
    even, busy = (
        row("simulate", *ASKED, "--strategy", "d2 e2 mb1", "--expert-imbalance", factor) for factor in ("1", "2")
    )
    assert busy["experts"] == {"imbalance": 2, "dealt": 2}
    assert busy["transfer_bytes"] > even["transfer_bytes"] and busy["iteration_seconds"] > even["iteration_seconds"]
    assert busy["peak_memory_bytes"] > even["peak_memory_bytes"] and busy["model_flops"] == pytest.approx(even["model_flops"])
    text = run("simulate", *ASKED, "--strategy", "d2 e2 mb1", "--expert-imbalance", "2")
    assert "experts (on 2 devices): busiest device has 2 times the mean of tokens; predicted step" in text


def test_a_plan_s_file_has_the_factor_and_is_read_with_it(tmp_path: Path) -> None:
    file = str(tmp_path / "plan.json")
    found = row("search", *ASKED, "--budget", "5p", "--start", "d2 e2 mb1", "--expert-imbalance", "1.5", "--out", file)
    assert found["experts"]["imbalance"] == 1.5
    assert json.loads(Path(file).read_text())["made_from"]["expert_imbalance"] == 1.5
    assert row("explain", file)["iteration_seconds"] == found["iteration_seconds"]


MANY = [
    "mixtral", "--size", "small", *(word for size in ("hidden=512", "heads=8", "inner=4096", "experts=32", "layers=2", "steps=512")
                                    for word in ("--set", size)),
    "--batch", "32", "--dtype", "bf16", "--rule", "adam", "--budget", "20p",
]  # fmt: skip


def test_a_search_deals_experts_where_that_is_faster(tmp_path: Path) -> None:
    file = str(tmp_path / "plan.json")
    found = row("search", *MANY, "-m", "h100", "-n", "4", "--out", file)
    assert found["experts"]["imbalance"] == 1 and found["experts"]["dealt"] > 1 and found["proposals"] == 20
    assert found["iteration_seconds"] < row("search", *MANY, "-m", "h100", "-n", "4", "--start", "data")["iteration_seconds"]
    assert json.loads(Path(file).read_text())["made_from"]["expert_imbalance"] == 1
    assert row("explain", file)["iteration_seconds"] == found["iteration_seconds"]


@pytest.mark.parametrize(("model", "machine", "devices"), [("mixtral", "host", 2), ("mixtral", "h100", 1), ("moe", "h100", 2)])
def test_experts_stay_as_they_are_on_cpus_on_one_device_and_where_they_have_places(model: str, machine: str, devices: int) -> None:
    assert dealing(make_problem(model, machine, devices, 8, "small", "adam", settings={}), None) is None


def test_a_plan_that_deals_no_experts_is_one_of_the_network_without_places() -> None:
    of = make_problem("mixtral", "h100", 2, 8, "small", "adam", settings={"steps": "64"})
    dealt = dealing(of, None)
    assert dealt is not None
    placed = map_graph(HybridParallel("d2 mb4 zero1"), dealt.graph, dealt.machine)

    def searched(problem: Problem, budget: Budget) -> SearchResult:
        if problem is of:
            raise ValueError("nothing fits")
        found = search(problem.graph, problem.machine, budget=budget, use=problem.evaluator)
        return replace(found, strategy=placed, seconds=problem.evaluator.set(placed))

    best, found = faster_of_both(of, dealt, searched, Budget(proposals=4))
    assert best is of and str(found.strategy.plan) == str(placed.plan)
    assert found.seconds == of.evaluator.set(found.strategy) and found.proposals < 4


def test_plans_that_deal_experts_get_a_share_also_if_the_first_search_takes_too_long() -> None:
    of, given = make_problem("mixtral", "h100", 2, 8, "small", "adam", settings={"steps": "64"}), []
    found = search(of.graph, of.machine, budget="2p", use=of.evaluator)

    def late(problem: Problem, budget: Budget) -> SearchResult:
        given.append(budget.seconds)
        time.sleep(0.05)
        return found

    assert faster_of_both(of, dealing(of, None), late, Budget(seconds=0.02))[0] is of
    assert given == pytest.approx([0.02 / 5, 0.002])


def test_fit_names_it() -> None:
    assert "experts: places for 1.5 times the mean of tokens" in run("fit", *ASKED, "--expert-imbalance", "1.5")


@pytest.mark.parametrize(("model", "factor", "why"), [
    ("mlp", "1.5", "MLP has no experts"), ("mixtral", "0.5", "is not in the range x>=1"), ("mixtral", "nan", "at least 1"),
])
def test_what_cannot_be_is_refused_on_one_line(model: str, factor: str, why: str) -> None:
    done = CliRunner().invoke(main, ["simulate", model, "--size", "small", "-m", "h100", "-n", "4", "--expert-imbalance", factor])
    assert done.exit_code == 2 and why in done.output
