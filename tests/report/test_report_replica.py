"""Large plans are shown by their first replica; for plans of which all tasks can be shown, that says the same."""

from __future__ import annotations

import numpy as np
import pytest
from fast_and_slow import fast_among

from taskflow.machine import load_machine
from taskflow.mapper import HybridParallel, map_graph
from taskflow.models import build
from taskflow.optimizer.evaluate import make_evaluator
from taskflow.report import page, report_data
from taskflow.report.data import Report
from taskflow.rules import Adam

PLANS = (
    ("p2 d4 mb1", 8), ("t2 d4 mb2", 8), ("t2 p2 d2 mb1 zero1", 8), ("p2 d4 mb1 v2", 8), ("d8 mb2 recompute=full", 8),
    ("d8 mb2 zero3", 8), ("p2 d8 mb1 zero1", 16),
)


def _report(plan: str, devices: int) -> Report:
    graph = build("llama", preset="small", batch=32, layers=8, hidden=256, dtype="bfloat16")
    machine = load_machine("h100", devices)
    return report_data(
        make_evaluator(graph, machine, rule=Adam()), map_graph(HybridParallel(plan), graph, machine), beside_seconds=0
    )


@pytest.mark.parametrize(("plan", "devices"), fast_among(PLANS, [PLANS[2], PLANS[3], PLANS[5]]))
def test_the_first_replica_shows_what_all_tasks_show(plan: str, devices: int, monkeypatch: pytest.MonkeyPatch) -> None:
    every = _report(plan, devices)
    monkeypatch.setattr("taskflow.optimizer.evaluate.shown.too_many_to_show", lambda strategy: True)
    monkeypatch.setattr("taskflow.optimizer.evaluate.ordered.MOST_WHOLE", 0)
    few = _report(plan, devices)
    shown = [device["number"] for device in few.value["machine"]["devices"]]
    assert len(shown) < devices == few.value["machine"]["all_devices"] == len(every.value["machine"]["devices"])
    for key in ("seconds", "tasks", "transfer_bytes", "units"):
        assert few.value["plan"][key] == every.value["plan"][key], key
    assert few.value["plan"]["bytes"] == pytest.approx(every.value["plan"]["bytes"], abs=4 * devices)  # a replica's loss
    for ours, number in zip(few.value["machine"]["devices"], shown, strict=True):
        theirs = every.value["machine"]["devices"][number]
        assert ours["split"] == pytest.approx(theirs["split"], abs=1e-9 * every.value["plan"]["seconds"])
        for what in ("sent_bytes", "received_bytes"):
            assert ours[what] == pytest.approx(theirs[what], abs=64)  # parts of collectives are rounded, and the losses
    for one, other in zip(few.value["operators"], every.value["operators"], strict=True):
        assert one["name"] == other["name"] and one["tasks"] == other["tasks"]
        assert one["seconds"] == pytest.approx(other["seconds"], rel=1e-9, abs=1e-12)
        assert one["bytes"] == pytest.approx(other["bytes"], abs=4 * devices)
        assert np.prod(one["grid"]) == len(one["processors"]) == len(one["pieces"])
    links = {link["name"]: link for link in every.value["machine"]["links"]}
    for link in few.value["machine"]["links"]:
        assert link["busy_seconds"] == pytest.approx(links[link["name"]]["busy_seconds"], rel=1e-9), link["name"]
    for ours, number in zip(few.value["memory"], shown, strict=True):
        theirs = every.value["memory"][number]
        assert (ours["weights"], ours["state"]) == (theirs["weights"], theirs["state"])
        assert ours["peak_bytes"] == pytest.approx(theirs["peak_bytes"], rel=0.01)  # as close as a folded step's memory is
    columns, place = few.columns, 0
    for memory, points in zip(few.value["memory"], columns["memory_points"].tolist(), strict=True):
        assert memory["peak_bytes"] == columns["memory_bytes"][place : place + points].max()
        place += points
    if every.value["pipeline"] is not None:
        assert few.value["pipeline"]["idle_share"] == pytest.approx(every.value["pipeline"]["idle_share"], rel=1e-9)
        assert [lane["stages"] for lane in few.value["pipeline"]["lanes"]] == [
            lane["stages"] for lane in every.value["pipeline"]["lanes"]
        ]
    _same_rows(few, every, shown)
    assert "the first replica" in page(few) and "the first replica" not in page(every)


def _same_rows(few: Report, every: Report, shown: list[int]) -> None:
    """A shown device computes the same pieces at the same times."""
    def computing(report: Report, device: int) -> list[tuple[int, ...]]:
        rows = report.columns
        own = (rows["processor"] == device) & (rows["category"] < 2)
        return sorted(zip(*(rows[name][own].tolist() for name in ("start", "end", "operator", "piece", "micro"))))

    for place, number in enumerate(shown):
        assert computing(few, place) == computing(every, number)
    lanes = len(shown) + len(few.value["machine"]["links"])
    assert all(0 <= lane < lanes for route in few.value["machine"]["routes"].values() for lane in route)
    rows = few.columns
    sent = rows["category"] >= 5
    for source, target in {*zip(rows["source"][sent].tolist(), rows["processor"][sent].tolist())}:
        assert f"{source} {target}" in few.value["machine"]["routes"] and target < len(shown)
