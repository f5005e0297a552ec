"""Launches and traces mean what the same program means on one array per region."""

from __future__ import annotations

import numpy as np
import pytest
from fast_and_slow import fast_among
from task_oracle import compare

import taskflow
from taskflow.mapper import Mapper
from taskflow.partition import Image, Tile
from taskflow.regions import Rect


@pytest.mark.parametrize(("processors", "count"), fast_among(
    [(processors, count) for processors in range(1, 6) for count in (16, 40)], [(1, 16), (3, 16), (5, 16)],
))
def test_random_programs(processors, count):
    replayed = 0
    for seed in range(count):
        runner = compare(1000 * processors + seed, processors)
        replayed += runner.step.replays
    assert replayed > 2.5 * count  # most cases are replayed


@taskflow.task(new="write", old="read")
def heat(new, old, color, alpha):
    """One explicit step of the heat equation on a piece; the ends of the rod keep their values."""
    n, first = new.shape[0], 0 if color[0] == 0 else 1
    middle = old[first : first + n]
    left = middle if first == 0 else old[:n]
    right = old[first + 1 : first + 1 + n]
    new[:] = middle
    new[: len(right)] += alpha * (right - middle[: len(right)])
    new[:] += alpha * (left - middle) if first else 0
    if first == 0:
        new[1:] += alpha * (middle[:-1] - middle[1:])


@taskflow.task(x="read")
def total(x):
    return x.sum()


@taskflow.task(x="read-write")
def scale(x, by):
    x *= by


@taskflow.task(x="write")
def number_by_color(x, color):
    x[:] = color[0]


def rod(processors: int, pieces: int, mapper: Mapper | None = None):
    tasks = taskflow.TaskRuntime(processors, mapper=mapper)
    u, v = tasks.region((100,), name="u"), tasks.region((100,), name="v")
    tasks.write(u, np.sin(np.arange(100.0)))
    tiles = Tile((100,), (pieces,))
    halo = Image(tiles, lambda r: Rect((r.lo[0] - 1,), (r.hi[0] + 1,)), u.rect)

    def body():
        tasks.launch(heat, over=tiles, new=(v, tiles), old=(u, halo), alpha=0.1)
        tasks.launch(heat, over=tiles, new=(u, tiles), old=(v, halo), alpha=0.1)
        return tasks.launch(total, over=tiles, x=(u, tiles), reduce="sum")

    return tasks, u, tiles, tasks.trace(body, name="step")


def plain_rod(steps: int):
    u = np.sin(np.arange(100.0))
    for _ in range(2 * steps):
        new = u.copy()
        new[:-1] += 0.1 * (u[1:] - u[:-1])
        new[1:] += 0.1 * (u[:-1] - u[1:])
        u = new
    return u


def test_a_stencil_is_bitwise_the_same_on_any_number_of_processors():
    runs = []
    for processors in (1, 2, 3, 5, 8):
        tasks, u, _, step = rod(processors, 8)
        for _ in range(20):
            total_now = step()
        runs.append((tasks.read(u).tobytes(), total_now.get()))
        np.testing.assert_allclose(tasks.read(u), plain_rod(20), rtol=0, atol=1e-14)
        assert step.replays >= 16
    assert len(set(runs)) == 1


def test_a_stencil_copies_its_halo_only():
    _, _, _, step = rod(4, 4)
    for _ in range(5):
        step()
    copies = [t for t in step.program.graph if t.kind.value == "copy" and t.name.startswith(("u[", "v["))]
    assert len(copies) == 2 * 2 * 3  # two launches, both sides of three borders
    assert all(t.nbytes == 8 for t in copies)


def test_a_trace_runs_its_body_each_time_and_analyses_until_steady():
    runs = []
    tasks = taskflow.TaskRuntime(2)
    x = tasks.region((8,))
    tasks.write(x, 1.0)

    def body():
        runs.append(None)
        tasks.launch(scale, over=2, x=(x, Tile((8,), (2,))), by=2.0)

    step = tasks.trace(body)
    for _ in range(10):
        step()
    assert len(runs) == 10 and step.analyses == 2 and step.replays == 8
    assert (tasks.read(x) == 1024).all()


@taskflow.task(x="read-write")
def add(x, alpha, weights=None):
    x += alpha * (1 if weights is None else weights[0])


def test_values_may_change_from_one_iteration_to_the_next():
    tasks = taskflow.TaskRuntime(2)
    x, pieces = tasks.region((4,)), Tile((4,), (2,))
    lr, weights, named = 1.0, np.array([2.0]), [3.0]

    def body():
        nonlocal lr
        tasks.launch(add, over=2, x=(x, pieces), alpha=lr)
        lr /= 2
        tasks.launch(add, over=2, x=(x, pieces), alpha=100.0, weights=weights)
        weights[0] += 1  # between two launches: each has the values of its time
        tasks.launch(add, over=2, x=(x, pieces), alpha=10_000.0, weights=named)
        named[0] += 1
        return lr

    step = tasks.trace(body)
    for i in range(6):
        assert step() == 0.5 ** (i + 1)
    assert (step.analyses, step.replays) == (2, 4)
    wanted = sum(0.5**i + 100 * (2 + i) + 10_000 * (3 + i) for i in range(6))
    assert tasks.read(x).tolist() == [wanted] * 4


def test_a_future_of_somebody_else_may_change_in_a_trace():
    tasks = taskflow.TaskRuntime(2)
    x, y = tasks.region((4,)), tasks.region((4,))
    tasks.write(x, 1.0)
    futures = []
    step = tasks.trace(lambda: tasks.launch(add, x=y, alpha=futures[-1]))
    wanted = 0.0
    for i in range(6):
        tasks.launch(scale, x=x, by=2.0)
        futures.append(tasks.launch(total, x=x, reduce="sum"))
        step()
        wanted += 4 * 2.0 ** (i + 1)
        assert (tasks.read(y) == wanted).all()
    assert step.replays >= 3


def test_other_launches_than_recorded_are_analysed_not_replayed():
    tasks = taskflow.TaskRuntime(2)
    x, pieces = tasks.region((4,)), Tile((4,), (2,))
    twice = False

    def body():
        tasks.launch(add, over=2, x=(x, pieces), alpha=1.0)
        if twice:
            tasks.launch(scale, over=2, x=(x, pieces), by=2.0)
        return tasks.launch(total, over=2, x=(x, pieces), reduce="sum")

    step = tasks.trace(body)
    value = 0.0
    for i in range(12):
        twice = i in (5, 9, 10, 11)
        value = (value + 1) * (2 if twice else 1)
        assert step().get() == 4 * value and (tasks.read(x) == value).all(), i
    # 0 and 1 until steady; 5, 9, 10 depart, of which the second in turn is compiled
    assert (step.analyses, step.replays) == (5, 7)
    twice = None

    def breaks():
        tasks.launch(add, over=2, x=(x, pieces), alpha=1.0)
        if twice:
            raise KeyError("mine")
        tasks.launch(add, over=2, x=(x, pieces), alpha=1.0)

    step = tasks.trace(breaks)
    for _ in range(4):
        step()
    twice = True
    with pytest.raises(KeyError, match="mine"):
        step()
    assert (tasks.read(x) == value + 9).all()  # what was launched before the error has run
    twice = False
    step()
    assert (tasks.read(x) == value + 11).all()


def test_a_trace_of_traces_is_refused_even_when_replayed():
    tasks = taskflow.TaskRuntime(2)
    x = tasks.region((4,))
    inner = tasks.trace(lambda: tasks.launch(scale, x=x, by=2.0))
    for _ in range(4):
        inner()
    twice = False

    def body():
        tasks.launch(scale, x=x, by=2.0)
        if twice:
            inner()

    step = tasks.trace(body)
    for _ in range(4):
        step()
    twice = True
    with pytest.raises(RuntimeError, match=r"call trace .*: not inside trace"):
        step()


@pytest.mark.parametrize("count", fast_among([12, 40], [12]))
@pytest.mark.parametrize("processors", range(1, 5))
def test_random_bodies_that_change(processors, count):
    """Values that change in each iteration, some in place, and now and then other launches, places, or fewer."""
    replayed = 0
    for seed in range(count):
        replayed += compare(1000 * processors + seed, processors, changing=True).step.replays
    assert replayed > 1.5 * count


def test_a_trace_notices_what_happens_outside():
    tasks, u, _, step = rod(3, 3)
    for _ in range(5):
        step()
    analyses = step.analyses
    tasks.launch(scale, x=u, by=2.0, place=lambda c: 1)  # moves all of u to one processor
    step()
    assert step.analyses > analyses
    whole = 2 * plain_rod(5)
    for _ in range(2):
        new = whole.copy()
        new[:-1] += 0.1 * (whole[1:] - whole[:-1])
        new[1:] += 0.1 * (whole[:-1] - whole[1:])
        whole = new
    np.testing.assert_allclose(tasks.read(u), whole, rtol=0, atol=1e-13)
    for _ in range(6):
        step()
    analyses, replays = step.analyses, step.replays
    tasks.read(u)
    other = tasks.region((4,))
    tasks.launch(number_by_color, over=4, x=(other, Tile((4,), (4,))))
    step()
    assert (step.analyses, step.replays) == (analyses, replays + 1)  # neither touched what it uses


def test_new_initial_contents_are_seen_by_a_trace():
    tasks, u, _, step = rod(2, 2)
    for _ in range(6):
        step()
    tasks.write(u, np.sin(np.arange(100.0)))
    step()
    np.testing.assert_allclose(tasks.read(u), plain_rod(1), rtol=0, atol=1e-14)


class _Forgetful(Mapper):
    def slice_task(self, node, machine):
        raise AssertionError

    def map_task(self, node, piece, degrees, machine):
        raise AssertionError

    def memoize(self, trace):
        return trace != "step"


def test_a_mapper_may_forbid_to_memoize():
    tasks, u, _, step = rod(2, 2, _Forgetful())
    for _ in range(6):
        step()
    assert step.analyses == 6 and step.replays == 0 and step.program is None
    np.testing.assert_allclose(tasks.read(u), plain_rod(6), rtol=0, atol=1e-14)


def test_futures():
    tasks = taskflow.TaskRuntime(3)
    x = tasks.region((6,))
    pieces = Tile((6,), (6,))
    tasks.launch(number_by_color, over=6, x=(x, pieces))
    found = {how: tasks.launch(total, over=6, x=(x, pieces), reduce=how) for how in ("sum", "min", "max")}
    assert {how: future.get() for how, future in found.items()} == {"sum": 15, "min": 0, "max": 5}
    tasks.launch(scale, over=6, x=(x, pieces), by=found["sum"])
    assert tasks.read(x).tolist() == [15.0 * i for i in range(6)]
    assert tasks.launch(total, x=x, reduce="sum").get() == 225
    assert tasks.launch(total, x=x) is None


def test_a_future_in_a_trace_has_the_latest_value():
    tasks = taskflow.TaskRuntime(2)
    x, y = tasks.region((4,)), tasks.region((4,))
    tasks.write(x, 1.0)
    tasks.write(y, 1.0)
    pieces = Tile((4,), (2,))

    def body():
        twice = tasks.launch(total, over=2, x=(x, pieces), reduce="sum")
        tasks.launch(scale, over=2, x=(y, pieces), by=twice)
        tasks.launch(scale, over=2, x=(x, pieces), by=0.5)
        return twice

    step = tasks.trace(body)
    expected, held = 1.0, None
    for i in range(8):
        future = step()
        held = held or future
        expected *= 4.0 * 0.5**i
        assert future is held and future.get() == 4.0 * 0.5**i
        assert (tasks.read(y) == expected).all()
    assert step.replays >= 5
    late = tasks.trace(lambda: tasks.launch(scale, x=y, by=held))
    for _ in range(4):
        late()
        expected *= held.get()
    step()
    expected *= 4.0 * 0.5**8
    late()
    assert (tasks.read(y) == expected * held.get()).all()


def test_a_place_and_many_launches_of_one_processor():
    tasks = taskflow.TaskRuntime(3)
    x = tasks.region((9,))
    pieces = Tile((9,), (9,))
    tasks.launch(number_by_color, over=pieces, x=(x, pieces), place=lambda c: (c[0] * 2) % 3)
    assert tasks.read(x).tolist() == list(range(9))


def test_reading_before_anything_was_written():
    tasks = taskflow.TaskRuntime(2)
    x = tasks.region((2, 3), "int32")
    assert tasks.read(x).tolist() == [[0, 0, 0], [0, 0, 0]]
    tasks.write(x, 7)
    assert tasks.read(x).dtype == np.int32 and (tasks.read(x) == 7).all()


def test_a_trace_without_regions():
    called = []

    @taskflow.task()
    def note(color, what):
        called.append((color, what))
        return 2.0

    tasks = taskflow.TaskRuntime(2)
    step = tasks.trace(lambda: tasks.launch(note, over=(1, 2), what="x", reduce="sum"))
    for _ in range(5):
        assert step().get() == 4.0
    assert step.replays == 3 and called == [((0, 0), "x"), ((0, 1), "x")] * 5
