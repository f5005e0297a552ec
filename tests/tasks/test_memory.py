"""The memory plan against its definition: what lives at the same time never shares bytes."""

from __future__ import annotations

from itertools import combinations
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from taskflow.tasks import memory
from taskflow.tasks.memory import ALIGNMENT, NEAR, Lifetime, MemoryPlan, plan_memory
from taskflow.tasks.places import places, places_by_time

POSITIONS = 30


@st.composite
def schedules(draw: st.DrawFn) -> list[Lifetime]:
    """Lifetimes of up to 40 buffers, in any order, with numbers that have gaps."""
    numbers = draw(st.lists(st.integers(0, 999), unique=True, max_size=40))
    lives = []
    for number in numbers:
        first = draw(st.integers(0, POSITIONS))
        last = draw(st.integers(first, POSITIONS))
        nbytes = draw(st.one_of(st.integers(0, 10 * ALIGNMENT), st.sampled_from([1, ALIGNMENT, 4 * ALIGNMENT, 1 << 20])))
        lives.append(Lifetime(number, nbytes, first, last))
    return lives


def rounded(nbytes: int) -> int:
    """The bytes that a buffer of ``nbytes`` takes in the arena."""
    return max(ALIGNMENT, (nbytes + ALIGNMENT - 1) // ALIGNMENT * ALIGNMENT)


def overlap(a: Lifetime, b: Lifetime, plan: MemoryPlan) -> bool:
    low_a, low_b = plan.offsets[a.buffer], plan.offsets[b.buffer]
    return low_a < low_b + b.nbytes and low_b < low_a + a.nbytes


@settings(max_examples=150, deadline=None)
@given(schedules())
def test_what_lives_together_lies_apart(lives: list[Lifetime]) -> None:
    plan = plan_memory(lives)
    assert set(plan.offsets) == {life.buffer for life in lives}
    for life in lives:
        offset = plan.offsets[life.buffer]
        assert offset % ALIGNMENT == 0 and offset >= 0 and offset + life.nbytes <= plan.nbytes
    for a, b in combinations(lives, 2):
        if a.first <= b.last and b.first <= a.last:
            assert not overlap(a, b, plan), f"{a} at {plan.offsets[a.buffer]}, {b} at {plan.offsets[b.buffer]}"


@settings(max_examples=100, deadline=None)
@given(schedules())
def test_the_arena_is_between_the_peak_and_the_sum(lives: list[Lifetime]) -> None:
    plan = plan_memory(lives)
    peak = max(
        (sum(rounded(x.nbytes) for x in lives if x.first <= at <= x.last) for at in range(POSITIONS + 1)), default=0
    )
    assert plan.peak_bytes == peak <= plan.nbytes <= sum(rounded(x.nbytes) for x in lives)


@settings(max_examples=50, deadline=None)
@given(schedules(), st.integers(1, 1 << 16))
def test_equal_sizes_fit_perfectly(lives: list[Lifetime], nbytes: int) -> None:
    """With one size there is no fragmentation: the arena is as small as any can be."""
    equal = [Lifetime(life.buffer, nbytes, life.first, life.last) for life in lives]
    plan = plan_memory(equal)
    assert plan.nbytes == plan.peak_bytes


@settings(max_examples=50, deadline=None)
@given(schedules(), st.randoms(use_true_random=False))
def test_the_plan_does_not_depend_on_the_order_given(lives: list[Lifetime], random: object) -> None:
    shuffled = list(lives)
    random.shuffle(shuffled)
    assert plan_memory(shuffled) == plan_memory(lives)


def test_a_chain_needs_two_places() -> None:
    """Each buffer is read while the next is written, as in a deep network without backward."""
    chain = [Lifetime(i, 1000, i, i + 1) for i in range(100)]
    assert plan_memory(chain).nbytes == 2 * 1024


def test_the_same_position_is_no_reuse() -> None:
    """A task that reads one buffer for the last time and writes another for the first must not do so in one place."""
    plan = plan_memory([Lifetime(0, 64, 0, 5), Lifetime(1, 64, 5, 9), Lifetime(2, 64, 6, 9)])
    assert plan.offsets[0] != plan.offsets[1] and plan.offsets[2] == plan.offsets[0]


def test_neighbouring_holes_become_one() -> None:
    small = [Lifetime(i, ALIGNMENT, 0, 1) for i in range(4)]
    plan = plan_memory([*small, Lifetime(9, 4 * ALIGNMENT, 2, 3)])
    assert plan.offsets[9] == 0 and plan.nbytes == 4 * ALIGNMENT


def test_a_hole_at_the_end_grows() -> None:
    plan = plan_memory([Lifetime(0, 64, 0, 9), Lifetime(1, 64, 0, 1), Lifetime(2, 640, 2, 9)])
    assert plan.offsets[2] == 64 and plan.nbytes == 64 + 640


def accumulated(layers: int, steps: int) -> list[Lifetime]:
    """A recurrent network's backward pass: gradients of weights live from layer to layer, values of many sizes in between."""
    lives = [Lifetime(k, (k + 1) << 20, 3 * k, 3 * k + 4 * steps) for k in range(layers)]
    for at in range(layers * steps):
        lives.append(Lifetime(1000 + at, (at % 11 + 1) * 300_000, at, at + 5 + at % 7))
    return lives


@pytest.mark.parametrize("many", [3000, 20])
def test_large_buffers_leave_no_holes(many: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where best fit in order of time wastes memory, placing by size does not; with few of many so placed, plans still hold."""
    lives = accumulated(8, 4)
    ordered = sorted(lives, key=lambda life: (life.first, life.buffer))
    _, top, peak = places_by_time([rounded(x.nbytes) for x in ordered], [x.first for x in ordered], [x.last for x in ordered])
    assert top > 1.1 * peak
    monkeypatch.setattr(memory, "MANY", many)
    plan = plan_memory(lives)
    assert plan.nbytes < top and plan.peak_bytes == peak
    assert plan.nbytes <= NEAR * plan.peak_bytes or many < len(lives)
    for a, b in combinations(lives, 2):
        assert a.last < b.first or b.last < a.first or not overlap(a, b, plan)


@settings(max_examples=100, deadline=None)
@given(schedules(), st.floats(0, 1.1))
def test_the_compiled_places_are_those_of_the_definition(lives: list[Lifetime], part: float) -> None:
    compiled = pytest.importorskip("taskflow.tasks._places", reason="it was not compiled")
    given = [x.nbytes for x in lives], [x.first for x in lives], [x.last for x in lives]
    most = 1 + int(part * sum(given[0]))
    found, defined = compiled.places(*given, most), places(*given, most)
    assert (found is None) == (defined is None) and (defined is None or found.tolist() == defined.tolist())
    ordered = sorted(lives, key=lambda life: life.first)
    by_time = [rounded(x.nbytes) for x in ordered], [x.first for x in ordered], [x.last for x in ordered]
    (found, *sizes), (defined, *of) = compiled.places_by_time(*by_time), places_by_time(*by_time)
    assert found.tolist() == defined.tolist() and sizes == of


def test_a_place_is_the_lowest_that_is_free() -> None:
    found = places([4, 2, 2, 3, 1], [0, 0, 5, 5, 0], [4, 9, 9, 9, 9], 11)
    assert found is not None and found.tolist() == [0, 4, 0, 6, 9]
    assert places([4, 2, 2, 3, 1], [0, 0, 5, 5, 0], [4, 9, 9, 9, 9], 10) is None


@pytest.mark.parametrize("lives", [[], [Lifetime(3, 0, 0, 0)]])
def test_nearly_nothing(lives: list[Lifetime]) -> None:
    plan = plan_memory(lives)
    assert plan.nbytes == ALIGNMENT * len(lives) and len(plan.offsets) == len(lives)


def test_an_arena_is_no_larger_than_backwards_in_time() -> None:
    random, better = Random(5), 0
    for _ in range(60):
        lives = []
        for number in range(40):
            first, nbytes = random.randrange(30), random.choice((64, 640, 6400)) * random.randint(1, 9)
            lives.append(Lifetime(number, nbytes, first, first + random.randrange(12)))
        mirrored = [Lifetime(life.buffer, life.nbytes, 50 - life.last, 50 - life.first) for life in lives]
        one, other = plan_memory(lives), plan_memory(mirrored)
        assert one.peak_bytes == other.peak_bytes
        assert one.nbytes <= 1.05 * max(NEAR * one.peak_bytes, other.nbytes)  # buffers that end together come in another order
        ordered = sorted(lives, key=lambda life: (life.first, life.buffer))
        by_time = places_by_time(*([getattr(life, of) for life in ordered] for of in ("nbytes", "first", "last")))[1]
        better += one.nbytes < by_time
    assert better > 10
