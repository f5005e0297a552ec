"""Rect against plain sets of points."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from taskflow.regions import Instance, LogicalRegion, Rect, covers, tilings

Point = tuple[int, ...]
BOUND = st.integers(-3, 6)


def rects(ndim: int) -> st.SearchStrategy[Rect]:
    """Rects of this many dimensions, empty ones and those with ends the wrong way round included."""
    corner = st.tuples(*[BOUND] * ndim)
    return st.builds(Rect, corner, corner)


def several(count: int) -> st.SearchStrategy[tuple[Rect, ...]]:
    return st.integers(0, 3).flatmap(lambda ndim: st.tuples(*[rects(ndim)] * count))


def points(rect: Rect) -> set[Point]:
    return set(rect.points())


@given(several(1))
def test_volume_shape_and_empty(given_rects: tuple[Rect]) -> None:
    (rect,) = given_rects
    assert rect.volume == len(list(rect.points())) == len(points(rect)) == np.prod(rect.shape, dtype=int)
    assert rect.empty == (not points(rect))
    assert rect.ndim == len(rect.shape)
    assert all(all(lo <= x < hi for lo, x, hi in zip(rect.lo, p, rect.hi)) for p in rect.points())


@given(several(2))
def test_intersect_overlaps_contains(pair: tuple[Rect, Rect]) -> None:
    a, b = pair
    assert points(a.intersect(b)) == points(a) & points(b)
    assert a.overlaps(b) == bool(points(a) & points(b)) == b.overlaps(a)
    assert a.contains(b) == (points(b) <= points(a))


@given(several(2))
def test_minus_is_disjoint_and_exact(pair: tuple[Rect, Rect]) -> None:
    a, b = pair
    pieces = a.minus(b)
    assert set().union(*map(points, pieces)) == points(a) - points(b)
    assert sum(piece.volume for piece in pieces) == len(points(a) - points(b))
    assert not any(piece.empty for piece in pieces)
    assert len(pieces) <= max(1, 2 * a.ndim)


@given(several(2))
def test_bound_is_the_smallest_that_holds_both(pair: tuple[Rect, Rect]) -> None:
    a, b = pair
    whole = a.bound(b)
    both = points(a) | points(b)
    assert both <= points(whole)
    for i in range(a.ndim):
        along = {p[i] for p in both}
        if along:
            assert (whole.lo[i], whole.hi[i]) == (min(along), max(along) + 1)
    assert both or whole.empty


@given(several(4))
def test_covers(four: tuple[Rect, ...]) -> None:
    whole, *parts = four
    assert covers(parts, whole) == (points(whole) <= set().union(*map(points, parts)))


@given(several(1), st.tuples(*[st.integers(-4, 4)] * 3))
def test_shift_and_relative(given_rects: tuple[Rect], offset: Point) -> None:
    (rect,) = given_rects
    offset = offset[: rect.ndim]
    moved = rect.shift(offset)
    assert points(moved) == {tuple(x + o for x, o in zip(p, offset)) for p in rect.points()}
    assert moved.relative_to(offset_rect(offset)) == rect


def offset_rect(offset: Point) -> Rect:
    return Rect(offset, tuple(o + 1 for o in offset))


@given(several(2))
def test_slices_pick_its_points(pair: tuple[Rect, Rect]) -> None:
    base = pair[0].bound(pair[1])
    inner = pair[0]
    if inner.empty:
        return
    array = np.zeros(base.shape, int)
    array[inner.slices(base)] = 1
    assert array.sum() == inner.volume
    assert {p for p in base.points() if array[tuple(x - o for x, o in zip(p, base.lo))]} == points(inner)


@given(st.permutations([0, 1, 2, 0, 1, 2, 0, 1]))
def test_rects_that_tile_another_one_each_time_they_come(order: list[int]) -> None:
    whole, parts = Rect.of((2, 6)), [Rect((0, 2 * i), (2, 2 * i + 2)) for i in range(3)]
    given_ = [parts[i] for i in order]
    found = tilings(given_, whole)
    assert [len(numbers) for numbers in found] == [3, 3]  # the third time one is missing
    for time, numbers in enumerate(found):
        assert {given_[n] for n in numbers} == set(parts) and numbers == sorted(numbers)
        assert all(given_[:n].count(given_[n]) == time for n in numbers)
    assert tilings([whole], whole) == [[0]] and tilings([whole, whole], whole) == []
    assert tilings([parts[0], parts[1]], whole) == [] == tilings([parts[0], parts[1], Rect((0, 3), (2, 6))], whole)


def test_printing_and_of() -> None:
    assert str(Rect((0, 2), (3, 4))) == "[0:3, 2:4]"
    assert Rect.of((3, 4)) == Rect((0, 0), (3, 4))
    assert str(Rect.of(())) == "[]"
    assert Rect.of(()).volume == 1


def test_regions_are_the_same_only_if_they_are_one_object() -> None:
    one, two = (LogicalRegion("a", Rect.of((4,)), np.dtype(np.float32)) for _ in range(2))
    assert one != two
    assert one.nbytes == 16
    half = Instance(one, Rect((0,), (2,)), 3)
    assert half.nbytes == 8
    assert half == Instance(one, Rect((0,), (2,)), 3) != Instance(two, Rect((0,), (2,)), 3)
    assert half != Instance(one, Rect((0,), (2,)), 3, partial=True)
    assert (str(one), str(half)) == ("a[0:4] float32", "a[0:2] @ 3")
    with pytest.raises(AttributeError):
        half.processor = 4  # type: ignore[misc]
