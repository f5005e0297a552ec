"""A user's own runs: their files, what trust says from them, and how often plans came in the order predicted."""

from __future__ import annotations

import json
from dataclasses import replace
from math import exp, sqrt
from pathlib import Path
from typing import Any

import msgspec
import pytest
from click.testing import CliRunner

from taskflow.cli.main import main
from taskflow.graph import OperatorGraph
from taskflow.machine import Cluster, load_machine, save
from taskflow.mapper import DataParallel, Expert, HybridParallel, Mapper, map_graph
from taskflow.mapper import save as save_strategy
from taskflow.models import build
from taskflow.optimizer.trust import (
    MeasuredRun,
    features,
    free_name,
    order_of,
    read_run,
    read_runs,
    run_file,
    trust,
    write_run,
)
from taskflow.optimizer.trust.expected_error import OWN_BEYOND

MADE = {"model": "llama", "machine": "h100", "devices": 4, "batch": 16, "size": "small", "rule": "adam", "set": {}, "program": None}
MODEL = ("--model", "llama", "--size", "small", "-m", "h100", "-n", "4", "--batch", "16", "--rule", "adam")


def llama() -> tuple[OperatorGraph, Cluster]:
    return build("Llama", preset="small", batch=16), load_machine("h100", 4)


def measured(folder: Path, error: float, mapper: Mapper | None = None, **more: Any) -> MeasuredRun:
    """A run that took ``error`` times as long as predicted."""
    graph, machine = llama()
    strategy = map_graph(mapper or HybridParallel("t2 d2 mb1"), graph, machine)
    file = run_file(graph, strategy, machine, MADE, 2.0 * error, 2.0, **more)
    path = free_name(file, folder)
    write_run(file, path)
    return read_run(path)


# ---- files -----------------------------------------------------------------------------------------------------------
def test_a_run_is_read_as_it_was_written(tmp_path: Path) -> None:
    graph, machine = llama()
    strategy = map_graph(HybridParallel("t2 d2 mb1"), graph, machine)
    first, second = measured(tmp_path, 1.5, steps=20, memory=10**9, note="x"), measured(tmp_path, 0.5)
    in_order = sorted((first, second), key=lambda run: (run.file.when, run.path.name))
    assert first.path != second.path and [run.path for run in read_runs(tmp_path)] == [run.path for run in in_order]
    assert first.features == features(graph, strategy, machine)
    assert (first.seconds, first.predicted, first.device, first.program) == (3.0, 2.0, "h100", "megatron")
    assert first.file.plan == "t2 p1 d2 mb1" and first.file.strategy is msgspec.UNSET and first.file.steps == 20
    assert str(first) == f"yours of {first.file.when:%a %Y-%m-%d}, Llama on 4 h100, t2 p1 d2 mb1"


def test_files_that_are_no_runs_are_named(tmp_path: Path) -> None:
    run = measured(tmp_path, 1.0)
    content = json.loads(run.path.read_text())
    for change, said in (
        ({"format": "x"}, "not the file of a run"), ({"version": 2}, "version 2 of the format"),
        ({"measured_seconds": 0}, "measured_seconds: must be a number from"), ({"planned": 1}, "unknown key 'planned'"),
    ):
        run.path.write_text(json.dumps({**content, **change}))
        with pytest.raises(ValueError, match=said) as error:
            read_runs(tmp_path)
        assert run.path.name in str(error.value)
    with pytest.raises(ValueError, match="there is no such folder"):
        read_runs(tmp_path / "gone")


# ---- trust -----------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("errors", [(1.5,), (1.4, 1.6), (0.8, 1.0, 1.2)])
def test_own_runs_move_the_interval(errors: tuple[float, ...], tmp_path: Path) -> None:
    runs = [measured(tmp_path, error) for error in errors]
    graph, machine = llama()
    found = trust(graph, map_graph(HybridParallel("t2 d2 mb1"), graph, machine), machine, 10.0, runs)
    assert found is not None and found.runs and not found.far
    beyond = OWN_BEYOND / sqrt(len(errors))
    assert found.low == pytest.approx(10 * min(errors) * exp(-beyond))
    assert found.high == pytest.approx(10 * max(errors) * exp(beyond))
    assert ("by your run" if len(errors) == 1 else f"by {len(errors)} of your runs") in str(found) and "yours of" in str(found)
    assert found.as_json()["own"] is True


def test_runs_of_other_devices_programs_and_sizes_do_not_count(tmp_path: Path) -> None:
    run = measured(tmp_path, 1.5)
    graph, machine = llama()
    strategy = map_graph(HybridParallel("t2 d2 mb1"), graph, machine)
    large = build("Llama", preset="small", batch=16, hidden=1024, inner=4096, layers=32, vocabulary=30000, steps=512)
    for other_graph, other_machine in (
        (graph, load_machine("a100", 4)), (graph, machine.driven_by(replace(machine.kinds[0].program, name="mine"))),
        (large, machine),
    ):  # fmt: skip
        found = trust(other_graph, map_graph(HybridParallel("t2 d2 mb1"), other_graph, other_machine), other_machine, 10.0, [run])
        assert found is None or not found.runs
    assert trust(graph, strategy, machine, 10.0, [run]).runs  # type: ignore[union-attr]


def test_runs_count_for_networks_and_machines_of_which_nothing_is_published(tmp_path: Path) -> None:
    graph, machine = build("LeNet", preset="small", devices=2), load_machine("p100", 2)
    strategy = map_graph(DataParallel(), graph, machine)
    assert trust(graph, strategy, machine, 1.0) is None
    file = run_file(graph, strategy, machine, {**MADE, "model": "lenet"}, 3.0, 2.0)
    write_run(file, tmp_path / "one.json")
    found = trust(graph, strategy, machine, 1.0, read_runs(tmp_path))
    assert found is not None and found.runs and found.low < 1.5 < found.high  # type: ignore[operator]


def test_old_predictions_do_not_count_until_they_are_made_again(tmp_path: Path) -> None:
    """A calibrated machine's predictions are off by less than those that its runs were kept with."""
    runs, mine = tmp_path / "runs", tmp_path / "mine.json"
    machine = load_machine("h100", 4)
    save(replace(machine, name="mine"), mine)
    model = ("--model", "llama", "--size", "small", "-m", str(mine), "--batch", "16", "--rule", "adam")
    asked = ("llama", *model[2:], "--strategy", "t2 d2 mb1", "--runs", str(runs))

    def said(*words: str) -> str:
        result = CliRunner().invoke(main, list(words))
        assert result.exit_code == 0, result.output
        return result.output

    said("runs", "add", "t2 d2 mb1", *model, "--measured", "100ms", "--runs", str(runs))
    before = json.loads(said("simulate", *asked, "--json"))
    assert before["trust"]["own"] and "old_runs" not in before["trust"]
    slower = replace(machine.kinds[0], memory_bytes_per_second=machine.kinds[0].memory_bytes_per_second / 100)
    save(replace(machine, name="mine", kinds=(slower,)), mine)
    assert "predicted with another version or machine file" in said("simulate", *asked)
    assert not json.loads(said("simulate", *asked, "--json"))["trust"].get("own")
    assert "100" in said("runs", "predict", "--runs", str(runs))
    after = json.loads(said("simulate", *asked, "--json"))
    assert after["trust"]["own"] and after["iteration_seconds"] > before["iteration_seconds"]
    (run,) = read_runs(runs)
    assert run.predicted == pytest.approx(after["iteration_seconds"]) and run.seconds == pytest.approx(0.1)


# ---- order -----------------------------------------------------------------------------------------------------------
def test_the_order_of_plans() -> None:
    """Pairs: 1 and 2 apart and in order, 1 and 2.05 too; 2 and 2.05 do not differ by a tenth."""
    order = order_of([[(1.0, 1.0), (3.0, 2.0), (2.0, 2.05)], [(1.0, 5.0), (2.0, 4.0)], [(1.0, 1.0)]])
    assert (order.tasks, order.pairs, order.in_order) == (2, 3, 2)
    assert order.tau == pytest.approx(1 / 3) and order.regret == (pytest.approx(0.125), pytest.approx(0.125))
    assert order_of([[(1.0, 1.0)]]).tau is None


def test_plans_are_ranked_with_their_runs(tmp_path: Path) -> None:
    """Plans in notation by what they are called, others by all that they say."""
    runs = tmp_path / "runs"
    graph, machine = llama()
    for mapper, seconds in ((HybridParallel("d4 mb1"), 0.3), (Expert(), 0.1), (HybridParallel("t2 d2 mb1"), 0.2)):
        strategy = map_graph(mapper, graph, machine)
        path = tmp_path / f"{seconds}.json"
        save_strategy(strategy, graph, machine.name, path, {key: value for key, value in MADE.items() if value is not None})
        added = CliRunner().invoke(main, ["runs", "add", str(path), "--measured", f"{seconds}s", "--runs", str(runs)])
        assert added.exit_code == 0, added.output
    for plans in ((), ("0.1.json", "0.2.json", "0.3.json")):
        result = CliRunner().invoke(main, ["rank", *(str(tmp_path / p) for p in plans), "--measured", str(runs), "--json"])
        assert result.exit_code == 0, result.output
        found = json.loads(result.stdout)
        (task,) = found["tasks"]
        assert sorted(one["measured_seconds"] for one in task["plans"]) == pytest.approx([0.1, 0.2, 0.3])
        predicted = [one["predicted_seconds"] for one in task["plans"]]
        assert predicted == sorted(predicted) and found["pairs"] == 3 and found["unmeasured"] == []
        right = sum(a["measured_place"] < b["measured_place"] for i, a in enumerate(task["plans"]) for b in task["plans"][i + 1 :])
        assert found["pairs_in_order"] == right
    missing = CliRunner().invoke(main, ["rank", str(tmp_path / "0.1.json"), "--measured", str(tmp_path / "none")])
    assert missing.exit_code == 2 and "there is no such folder" in missing.output


def test_a_run_of_a_network_that_has_changed_is_not_predicted_again(tmp_path: Path) -> None:
    run = measured(tmp_path, 1.0)
    write_run(msgspec.structs.replace(run.file, graph="0" * 16), run.path)
    result = CliRunner().invoke(main, ["runs", "predict", "--runs", str(tmp_path)])
    assert result.exit_code == 2 and "another network than the one that was run" in " ".join(result.output.split())
