"""Replays of the task API: recorded to a file, and told to the mapper."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from trace_format import verify_events

import taskflow
from taskflow.mapper import DataParallel
from taskflow.partition import Image, Tile
from taskflow.regions import Rect
from taskflow.runtime.profiler.recording import read_trace


@taskflow.task(x="read-write")
def double(x: Any) -> None:
    x *= 2


class Listener(DataParallel):
    """Notes what it hears."""

    def __init__(self) -> None:
        self.heard: list[tuple[int, dict[str, float], int]] = []

    def report_profiling(self, profile: Any) -> None:
        self.heard.append((profile.step, profile.by_kind(), len(profile.tasks)))


def iterate(rt: taskflow.TaskRuntime, times: int) -> Any:
    region = rt.region((6,))
    rt.write(region, 1.0)
    tiles = Tile((6,), (3,))
    step = rt.trace(lambda: rt.launch(double, over=tiles, x=(region, tiles)))
    for _ in range(times):
        step()
    assert (rt.read(region) == 2.0**times).all()
    return step


@pytest.mark.parametrize("recorded", [False, True])
def test_mappers_hear_of_every_replay(tmp_path: Path, recorded: bool) -> None:
    listener = Listener()
    with taskflow.TaskRuntime(3, mapper=listener) as rt:
        if recorded:
            rt.record_replays(tmp_path / "run.json", range(1, 3))
        step = iterate(rt, 8)
    assert [number for number, _, _ in listener.heard] == list(range(step.replays)) and step.replays >= 4
    assert all(set(kinds) == {"call"} and count == 3 for _, kinds, count in listener.heard)


def test_replays_are_written_to_a_file(tmp_path: Path) -> None:
    with taskflow.TaskRuntime(3) as rt:
        tracer = rt.record_replays(tmp_path / "run.json.gz")
        iterate(rt, 8)
        assert tracer.written
    content = read_trace(tmp_path / "run.json.gz")
    verify_events(content)
    ran = [e["args"] for e in content["traceEvents"] if e["ph"] == "X" and e["cat"] == "compute"]
    assert Counter(said["step"] for said in ran) == {3: 3, 4: 3, 5: 3}
    assert {said["operator"] for said in ran} == {"double"} and {said["kind"] for said in ran} == {"call"}


def test_what_there_is_is_written_at_the_end(tmp_path: Path) -> None:
    with taskflow.TaskRuntime(3) as rt:
        rt.record_replays(tmp_path / "run.json", range(1, 100))
        iterate(rt, 8)
        assert not (tmp_path / "run.json").exists()
    about = read_trace(tmp_path / "run.json")["otherData"]
    assert not about["complete"] and about["steps"][0] == 2
    assert np.isfinite(about["step_seconds"]).all()


def test_a_cut_of_another_region_is_no_repetition() -> None:
    """Though its Rects are those of the launch before."""
    with taskflow.TaskRuntime(2) as rt:
        region, tiles = rt.region((6,)), Tile((6,), (2,))
        rt.write(region, 1.0)
        larger = Image(tiles, lambda rect: rect, Rect.of((8,)))
        given = iter([tiles, tiles, tiles, larger])

        def once() -> None:
            cut = next(given)
            rt.launch(double, over=tiles, x=(region, cut))

        step = rt.trace(once)
        for _ in range(3):
            step()
        with pytest.raises(ValueError, match=r"\[0:8\]"):
            step()
