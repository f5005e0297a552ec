"""The benchmarks of the search run, and print what they promise."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from starting import needs_mpi

from taskflow.optimizer.budget import Budget

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "benchmarks"))

import found_against_grid as benchmark  # noqa: E402


def printed(script: str, *arguments: str) -> list[dict[str, Any]]:
    done = subprocess.run(
        [sys.executable, f"benchmarks/{script}.py", *arguments, "--json"], cwd=ROOT, capture_output=True, text=True,
        timeout=250, env={**os.environ, "PYTHONPATH": str(ROOT)},
    )
    assert done.returncode == 0, done.stderr
    content = json.loads(done.stdout)
    assert content["benchmark"] == script
    return list(content["rows"])


def test_table4_runs() -> None:
    rows = printed("table4", "--models", "RNNTC", "--devices", "4", "--starts", "1", "--budget", "60", "--default", "0.5")
    assert [row["algorithm"] for row in rows] == ["full", "delta", "default"]
    full, delta, default = rows
    assert full["complete"] and delta["complete"]
    # Both simulations give the same times, so the searches take the same way.
    assert full["proposals"] == delta["proposals"] and full["found_iteration_seconds"] == delta["found_iteration_seconds"]
    assert (full["paper_seconds"], delta["paper_seconds"]) == (16, 7.5)
    assert full["times_faster_than_paper"] == pytest.approx(16 / full["search_seconds"])
    assert full["data_iteration_seconds"] == default["data_iteration_seconds"] >= default["found_iteration_seconds"]
    assert default["near_seconds"] <= default["wall_seconds"]


@pytest.mark.slow
def test_paper_results_run() -> None:
    rows = printed("paper_results", "--models", "RNNTC", "--devices", "2", "--budget", "2")
    assert [row["machine"] for row in rows] == ["p100", "p100", "k80", "k80"]
    for row in rows:
        assert row["figure"] == "7" and row["sync"]
        assert row["ours"] == row["rival_iteration_seconds"] / row["iteration_seconds"] >= 1
        assert row["agrees"] == (row["ours"] >= row["paper"][0]) and bool(row["why"]) != row["agrees"]


@pytest.mark.slow
def test_search_quality_runs() -> None:
    (row,) = printed("search_quality", "--models", "RNNTC", "--devices", "2", "--budget", "0.5", "--seeds", "2")
    assert row["starts_sync"]["data"]
    for algorithm in ("guided", "mcmc", "optcnn"):
        assert 0 < row[algorithm]["least_seconds"] <= row[algorithm]["iteration_seconds"] <= row[algorithm]["most_seconds"]
    assert row["guided"]["most_seconds"] <= min(row["starts_iteration_seconds"].values())


def test_published_speeds_are_compared() -> None:
    rows = printed("published", "--source", "nvidia", "--most", "8")
    assert [(row["machine"], row["devices"]) for row in rows] == [("a100:tf32", 1), ("a100:tf32", 8)]
    for row in rows:
        assert row["ratio"] == row["images_per_second"] / row["published_images_per_second"]
    # The card's tensor cores do 156 TFLOP/s in TF32, and an image of ResNet-50 takes 24.5 GFLOP: no more than 6,367 a second.
    assert 100 < rows[0]["images_per_second"] < 6367 and 7 < rows[1]["scaling"] <= 8


def test_decoders_reach_what_was_published() -> None:
    """No constant was chosen from it; a third off would say that a plan, a rate or a count is wrong. (That layers are cut by
    channels, not by words, which makes a difference from 128 on, is held by test_megatron.py.)"""
    rows = printed("published", "--source", "megatron", "--most", "64")
    assert [(row["devices"], row["tensor_parallel"]) for row in rows] == [(32, 1), (64, 2)]
    for row, billions in zip(rows, (1.65, 3.56)):
        assert row["parameters"] / 1e9 == pytest.approx(billions, rel=0.01)
        assert 0.75 < row["ratio"] < 1.33 and row["teraflops_per_device"] < 312


@pytest.mark.slow
@pytest.mark.mpi
@needs_mpi
def test_plans_of_both_costs_are_measured() -> None:
    (row,) = printed("measured_plans", "--networks", "MLP", "--budget", "20p", "--rounds", "2", "--patience", "0")
    data, analytic, measured = row["plans"]
    assert [plan["plan"] for plan in row["plans"]] == ["data", "analytic", "measured"]
    assert analytic["costs"] == f"analytic {row['machine']}" and measured["costs"].startswith("measured ")
    for found in (analytic, measured):  # no search gives a plan that its own costs predict to be slower than data parallelism
        own = found["plan"]
        assert found["predicted_seconds"][own] <= data["predicted_seconds"][own] and found["proposals"] <= 20
        assert row["against_data"][own] == data["measured_seconds"] / found["measured_seconds"]
    for plan in row["plans"]:
        assert set(plan["predicted_seconds"]) == {"analytic", "measured"} and len(plan["rounds"]) == 2
        assert 0 < plan["fastest_seconds"] <= plan["measured_seconds"] <= plan["slowest_seconds"]
    assert row["ratio"] == analytic["measured_seconds"] / measured["measured_seconds"]
    assert row["told_apart"] is False, "two rounds tell nothing apart"


def test_found_against_grid() -> None:
    pair = benchmark.Pair("GPT-2", 16, "a100", 4, "as a test", {"layers": 4, "steps": 64, "dropout": 0.0})
    budget = Budget(proposals=10)
    grid, found = benchmark.grid_row(pair, Budget(seconds=1.0), even=True), benchmark.search_row(pair, budget, 0)
    row = benchmark.row_of("toy", pair, grid, found)
    assert row["gain"] == row["grid_seconds"] / row["found_seconds"] - 1 and 0 < found["first_plan_seconds"] <= found["seconds"]
    assert row["grid_seconds"] <= min(grid["iteration_seconds"], found["starts"]["grid"])
    for side in (grid, found):
        assert 0 < side["busy"][1] <= side["busy"][0] <= 1 and side["peak_memory_bytes"] < 80e9
    words = benchmark.said(row)
    assert grid["plan"] in words and found["plan"] in words and "simulated" in words
    other = {**found, "plan": "t2 p2 d1 mb4 schedule=zb-h1", "ordered": True}
    grid = {**grid, "plan": "t2 p2 d1 mb4 recompute=full"}
    assert "Instead of recompute=full it has schedule=zb-h1." in benchmark.explained(benchmark.row_of("toy", pair, grid, other))


def test_a_pair_for_which_nothing_fits() -> None:
    pair = benchmark.PAIRS["llama-405B-1024"]
    row = benchmark.row_of("toy", pair, {"grid": {"plan": None}}, {"nothing": "search: found no plan"})
    assert row["gain"] is None and "found no plan" in benchmark.said(row)
