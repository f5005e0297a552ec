"""What the generic task API refuses, and what it says then."""

from __future__ import annotations

import numpy as np
import pytest

import taskflow
from taskflow.partition import Image, Tile
from taskflow.regions import PrivilegeError, Rect

TILES = Tile((8,), (4,))
HALO = Image(TILES, lambda r: Rect((r.lo[0] - 1,), (r.hi[0] + 1,)), Rect.of((8,)))


@taskflow.task(new="write", old="read")
def copy(new, old, by=1):
    new[:] = by * old


@taskflow.task(new="write", old="read")
def wrong(new, old):
    new[:] = 0
    old[:] = new


@taskflow.task(x="reduce", y="read")
def add(x, y):
    x += y


@pytest.fixture
def tasks():
    return taskflow.TaskRuntime(2)


@pytest.fixture
def u(tasks):
    return tasks.region((8,), name="u")


@pytest.fixture
def v(tasks):
    return tasks.region((8,), name="v")


def test_a_write_to_what_is_only_read(tasks, u, v):
    with pytest.raises(PrivilegeError, match=r"task wrong at point \(0,\): wrote to 'old', which it declares as read"):
        tasks.launch(wrong, over=TILES, new=(u, TILES), old=(v, TILES))


def test_a_write_to_what_is_only_read_in_a_replay(tasks, u, v):
    @taskflow.task(new="write", old="read")
    def later(new, old, calls=[]):  # noqa: B006
        calls.append(None)
        new[:] = 0
        if len(calls) > 4:
            old[:] = 1

    step = tasks.trace(lambda: tasks.launch(later, new=u, old=v))
    for _ in range(4):
        step()
    assert step.replays
    with pytest.raises(PrivilegeError, match=r"task later at point \(\): wrote to 'old'"):
        step()


def test_overlapping_writes(tasks, u, v):
    with pytest.raises(PrivilegeError, match=r"task copy: point tasks of one index launch must not interfere.*'new'"):
        tasks.launch(copy, over=TILES, new=(u, HALO), old=(v, TILES))


def test_reading_what_another_point_writes(tasks, u):
    with pytest.raises(PrivilegeError, match=r"task copy.*'old'.*'new'|task copy.*'new'.*'old'"):
        tasks.launch(copy, over=TILES, new=(u, TILES), old=(u, HALO))


def test_reading_back_a_reduction(tasks, u):
    with pytest.raises(PrivilegeError, match=r"'x' \(reduce\(\+\).*'y' \(read"):
        tasks.launch(add, over=TILES, x=(u, TILES), y=(u, TILES))


def test_a_refused_launch_changes_nothing(tasks, u, v):
    tasks.write(u, np.arange(8))
    with pytest.raises(PrivilegeError):
        tasks.launch(copy, over=TILES, new=(u, HALO), old=(v, TILES))
    assert tasks.read(u).tolist() == list(range(8))


def test_an_undeclared_region(tasks, u, v):
    with pytest.raises(PrivilegeError, match=r"task copy: argument 'by' is a region, but the task declares no privilege"):
        tasks.launch(copy, over=TILES, new=(u, TILES), old=(v, TILES), by=u)


@pytest.mark.parametrize(
    "arguments,message",
    [
        ({"older": 1}, "has no parameter 'older'; it has new, old, by"),
        ({"old": None}, "argument 'old': must be a region"),
    ],
)
def test_names_and_kinds_of_arguments(tasks, u, v, arguments, message):
    with pytest.raises(TypeError, match=message):
        tasks.launch(copy, over=TILES, **{"new": (u, TILES), "old": (v, TILES), **arguments})


def test_a_missing_argument(tasks, u):
    with pytest.raises(TypeError, match="argument 'old' is missing"):
        tasks.launch(copy, over=TILES, new=(u, TILES))


def test_cuts_that_do_not_fit(tasks, u, v):
    with pytest.raises(ValueError, match=r"argument 'old': the partition must cut \[0:8\].*but it cuts \[0:9\]"):
        tasks.launch(copy, over=TILES, new=(u, TILES), old=(v, Tile((9,), (4,))))
    with pytest.raises(ValueError, match=r"argument 'old': the partition must have the colors of the launch, \(4,\)"):
        tasks.launch(copy, over=TILES, new=(u, TILES), old=(v, Tile((8,), (2,))))
    with pytest.raises(ValueError, match=r"argument 'old': \[0:9\] is not in region v"):
        tasks.launch(copy, new=u, old=(v, Rect((0,), (9,))))


def test_a_region_of_somebody_else(tasks, u):
    other = taskflow.TaskRuntime(1).region((8,), name="w")
    with pytest.raises(ValueError, match=r"'old': region w.* was not made by this Tasks"):
        tasks.launch(copy, new=u, old=other)


def test_places_and_reductions(tasks, u, v):
    with pytest.raises(ValueError, match=r"place\(\(0,\)\) must be a processor from 0 to 1, got 2"):
        tasks.launch(copy, over=TILES, new=(u, TILES), old=(v, TILES), place=lambda c: 2)
    with pytest.raises(ValueError, match="reduce must be one of sum, min, max or None, got 'product'"):
        tasks.launch(copy, new=u, old=v, reduce="product")
    with pytest.raises(TypeError, match="task copy: must return a number"):
        tasks.launch(copy, new=u, old=v, reduce="sum")


def test_declarations():
    with pytest.raises(ValueError, match="declares 'z', but its parameters are x"):
        taskflow.task(z="read")(lambda x: None)
    with pytest.raises(ValueError, match="the privilege of 'x' must be one of"):
        taskflow.task(x="look")(lambda x: None)
    with pytest.raises(TypeError, match="must be a plain one"):
        taskflow.task(x="read")(lambda x, *rest: None)
    with pytest.raises(ValueError, match="must not be called 'over'"):
        taskflow.task(x="read")(lambda x, over: None)
    with pytest.raises(TypeError, match=r"declared with @taskflow\.task"):
        taskflow.TaskRuntime(1).launch(lambda: None)


def test_regions(tasks, u):
    with pytest.raises(ValueError, match="'u': the name must be new"):
        tasks.region((3,), name="u")
    with pytest.raises(ValueError, match=r"write u: shape must be \(8,\), got \(7,\)"):
        tasks.write(u, np.zeros(7))


def test_what_a_trace_cannot_replay(tasks, u, v):
    @taskflow.task(x="read")
    def total(x):
        return x.sum()

    old = []

    def uses_old():
        if old:
            tasks.launch(copy, new=v, old=u, by=old[-1])
        old.append(tasks.launch(total, x=u, reduce="sum"))

    for body in (lambda: tasks.read(u), lambda: tasks.write(u, 1), lambda: tasks.launch(total, x=u, reduce="sum").get()):
        with pytest.raises(RuntimeError, match="not inside trace"):
            tasks.trace(body)()
    inner = tasks.trace(lambda: tasks.launch(copy, new=v, old=u))
    for _ in range(4):
        inner()
    with pytest.raises(RuntimeError, match=r"call trace .*: not inside trace"):
        tasks.trace(inner)()
    step = tasks.trace(uses_old)
    step()
    with pytest.raises(RuntimeError, match="'by': sum of total is of an earlier iteration"):
        step()


def test_an_error_in_a_task_names_it(tasks, u, v):
    @taskflow.task(new="write", old="read")
    def breaks(new, old, color):
        if color == (2,):
            raise KeyError("mine")

    with pytest.raises(KeyError) as caught:
        tasks.launch(breaks, over=TILES, new=(u, TILES), old=(v, TILES))
    assert "in task breaks[2] @ 1" in getattr(caught.value, "__notes__", ["in task breaks[2] @ 1"])
