"""Stages as lanes, micro-batches as colours: the chart says what the simulator says, and bubbles are what is left of a lane."""

from __future__ import annotations

import re

import numpy as np
import pytest
from report_cases import report_of
from test_report_page import read

from taskflow.mapper import Pipeline
from taskflow.report import page
from taskflow.report.pipeline import KINDS, TOGETHER, colour, pipeline_chart, pipeline_section
from taskflow.tasks.task import Compute

BATCH = 8
PLANS = ("p2 d2 mb1", "t2 p2 mb2 recompute=full", "p2 mb1 d2 schedule=zb-h1", "p2 d2 mb1 v2", "p4 mb1 schedule=gpipe",
         "p2 d2 mb1 schedule=zbv")


@pytest.mark.parametrize("plan", PLANS)
def test_lanes_have_the_work_of_their_devices(plan: str) -> None:
    judge, report = report_of("GPT-2", plan, 4, batch=BATCH)
    found, tasks, spans = report.value["pipeline"], judge.lowered(), judge.timeline().spans
    pipeline = judge.strategy.pipeline
    assert isinstance(pipeline, Pipeline) and found["description"] == str(pipeline)
    assert sorted(device for lane in found["lanes"] for device in lane["devices"]) == list(range(4))
    ranks = [pipeline.schedule.stages(rank, pipeline.ranks, pipeline.count // pipeline.ranks) for rank in range(pipeline.ranks)]
    assert [lane["stages"] for lane in found["lanes"]] == ranks
    whole = found["end_seconds"] - found["begin_seconds"]
    for lane in found["lanes"]:
        own = [task for task in tasks if isinstance(task.work, Compute) and task.processor == lane["shown"]]
        busy = sum(spans[task.number].end - spans[task.number].start for task in own)
        drawn = sum(block[4] - block[3] for block in lane["blocks"])
        assert busy <= drawn + 1e-12 and drawn - busy <= len(own) * judge.seconds / 2000
        assert lane["idle_share"] == pytest.approx(1 - busy / whole)
        blocks = lane["blocks"]
        assert all(a[4] <= b[3] + 1e-15 for a, b in zip(blocks, blocks[1:]))  # one after the other
        passes = [tuple(block[:3]) for block in blocks if block[0] not in (1, TOGETHER)]
        order = [one for i, one in enumerate(passes) if not i or passes[i - 1] != one]
        kinds = {"F": 0, "B": 2, "W": 3}
        wanted = [(kinds[p.kind.value], p.micro_batch, p.stage) for p in pipeline.passes() if p.stage in lane["stages"]]
        assert order == [one for one in wanted if one in set(order)] and set(order) == set(wanted)
    again = "recompute" in plan
    assert any(block[0] == 1 for lane in found["lanes"] for block in lane["blocks"]) == again


@pytest.mark.parametrize("plan", PLANS)
def test_the_page_shows_them(plan: str) -> None:
    _, report = report_of("GPT-2", plan, 4, batch=BATCH)
    found = report.value["pipeline"]
    reader = read(page(report))
    assert any(attributes.get("id") == "pipeline" for _, attributes in reader.elements)
    chart = pipeline_chart(found)
    boxes = re.findall(r"<title>([^<]*)</title><rect [^>]*fill=\"([^\"]+)\"", chart)
    assert len(boxes) == sum(1 + len(lane["blocks"]) for lane in found["lanes"])
    assert sum(fill == "url(#bubble)" for _, fill in boxes) == len(found["lanes"])
    for title, fill in boxes:
        if match := re.match(r"(\D+), micro-batch (\d+)", title):
            assert fill == colour(int(match[2]), found["micro_batches"], KINDS.index(match[1]))
    assert f"{found['description']}; devices are idle for" in "".join(reader.text["dd"])


def test_colours_tell_micro_batches_and_kinds_apart() -> None:
    for count in (2, 12, 40):
        assert len({colour(m, count, kind) for m in range(count) for kind in range(TOGETHER)}) == TOGETHER * count


def test_rows_know_their_micro_batch() -> None:
    judge, report = report_of("GPT-2", "p2 d2 mb1", 4, batch=BATCH)
    counts, lowered = np.bincount(report.columns["micro"]), judge.lowered()
    wanted = [0] * len(counts)
    for one, first, last in lowered.passes:
        wanted[one.micro_batch + 1] += sum(len(t.processors) if t.source == t.processor and t.kind.travels else 1
                                           for t in lowered.tasks[first:last])
    assert counts[1:].tolist() == wanted[1:] and counts[0] > 0
    _, thin = report_of("GPT-2", "p2 d2 mb1", 4, most_rows=100, batch=BATCH)
    assert len(thin.columns["micro"]) < len(report.columns["micro"]) and set(thin.columns["micro"]) <= set(report.columns["micro"])


def test_without_stages_there_is_none() -> None:
    for plan in ("d4 mb1", "data"):
        _, report = report_of("GPT-2", plan, 4, batch=BATCH)
        assert report.value["pipeline"] is None and 'id="pipeline"' not in page(report)
    assert pipeline_section(None) == ""


def test_very_many_passes_leave_lanes_out_and_say_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("taskflow.report.pipeline.MOST_BLOCKS", 20)
    report_of.cache_clear()
    _, report = report_of("GPT-2", "p4 mb1 schedule=gpipe", 4, batch=BATCH)
    report_of.cache_clear()
    assert len(report.value["pipeline"]["lanes"]) == 2 and "2 lanes in the middle are left out" in page(report)
