"""RectIndex, DisjointMap and canonical against plain sets and dicts of points."""

from __future__ import annotations

from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from taskflow.regions import DisjointMap, Rect, RectIndex, canonical

SEEDS = st.integers(0, 2**32)
Value = tuple[int, ...]


def random_rect(random: Random, ndim: int, space: int = 12) -> Rect:
    """A Rect that is not empty, of mixed sizes, some with negative corners."""
    lo = tuple(random.randint(-space // 2, space) for _ in range(ndim))
    return Rect(lo, tuple(a + random.choice((1, 1, 2, 3, 5, 9, 20)) for a in lo))


@settings(max_examples=150, deadline=None)
@given(SEEDS, st.integers(0, 3), st.integers(0, 60))
def test_index_finds_what_overlaps(seed: int, ndim: int, steps: int) -> None:
    random = Random(seed)
    index: RectIndex[int] = RectIndex()
    known: dict[Rect, int] = {}
    for step in range(steps):
        if known and random.random() < 0.35:
            gone = random.choice(sorted(known))
            del index[gone], known[gone]
        else:
            rect = random_rect(random, ndim)
            index[rect] = known[rect] = step
        wanted = random_rect(random, ndim)
        assert index.overlapping(wanted) == sorted((r, v) for r, v in known.items() if r.overlaps(wanted))
        assert len(index) == len(known)
    assert dict(index.items()) == known
    assert set(index) == set(known)
    for rect in list(known):
        assert rect in index
        assert index.get(rect) == known[rect]
        del index[rect]
        assert rect not in index
    assert index.overlapping(random_rect(random, ndim)) == []


def test_index_refuses_empty_rects_and_ignores_empty_questions() -> None:
    index: RectIndex[int] = RectIndex()
    with pytest.raises(ValueError, match=r"at least one point, got \[3:3\]"):
        index[Rect((3,), (3,))] = 1
    index[Rect((0,), (9,))] = 1
    assert index.overlapping(Rect((5,), (4,))) == []
    with pytest.raises(KeyError):
        del index[Rect((0,), (8,))]
    assert index.setdefault(Rect((0,), (9,)), lambda: 2) == 1
    assert index.setdefault(Rect((0,), (8,)), lambda: 2) == 2


class Counting(Rect):
    """A Rect that counts how many Rects it was compared with."""

    __slots__ = ()
    asked = 0

    def overlaps(self, other: Rect) -> bool:
        Counting.asked += 1
        return Rect.overlaps(self, other)


@pytest.mark.parametrize("cut", [(256,), (1, 256), (16, 16), (4, 1, 64)])
def test_looking_up_a_tile_with_halo_visits_few_of_many(cut: tuple[int, ...]) -> None:
    index: RectIndex[int] = RectIndex()
    tiles = [
        Counting(tuple(50 * c for c in corner), tuple(50 * c + 50 for c in corner)) for corner in Rect.of(cut).points()
    ]
    for i, tile in enumerate(tiles):
        index[tile] = i
        index[Counting(tile.lo, tuple(x + 1 for x in tile.lo))] = -i  # and a tiny one in its corner
    Counting.asked = found = 0
    for tile in tiles:
        wide = Rect(tuple(x - 1 for x in tile.lo), tuple(x + 1 for x in tile.hi))
        found += len(index.overlapping(wide))
    assert Counting.asked <= 4 * found


@settings(max_examples=150, deadline=None)
@given(SEEDS, st.integers(0, 2), st.integers(1, 25))
def test_disjoint_map_is_a_dict_of_points(seed: int, ndim: int, steps: int) -> None:
    random = Random(seed)
    segments: DisjointMap[tuple[int, ...]] = DisjointMap()
    model: dict[tuple[int, ...], tuple[int, ...]] = {}
    for step in range(steps):
        rect = random_rect(random, ndim, space=6)
        action = random.choice(("assign", "carve", "update"))
        if action == "assign":
            segments.assign(rect, (step,))
            model.update(dict.fromkeys(rect.points(), (step,)))
        elif action == "carve":
            assert segments.carve(rect) == any(p in model for p in rect.points())
            for point in rect.points():
                model.pop(point, None)
        else:
            seen: list[Rect] = []

            def change(part: Rect, old: Value | None, step: int = step, seen: list[Rect] = seen) -> Value:
                seen.append(part)
                assert all(model.get(p) == old for p in part.points())
                return (*(old or ()), step)

            segments.update(rect, change)
            assert sorted(p for part in seen for p in part.points()) == sorted(rect.points())
            for point in rect.points():
                model[point] = (*model.get(point, ()), step)
        assert _points(segments) == model
        asked = random_rect(random, ndim, space=6)
        inside = segments.within(asked)
        asked_points = set(asked.points())
        assert {p: v for r, v in inside for p in r.points()} == {p: v for p, v in model.items() if p in asked_points}
        assert {p for r in segments.gaps(asked) for p in r.points()} == set(asked.points()) - set(model)
    segments.replace(lambda value: (len(value),))
    assert _points(segments) == {p: (len(v),) for p, v in model.items()}


def _points(segments: DisjointMap[tuple[int, ...]]) -> dict[tuple[int, ...], tuple[int, ...]]:
    """The map as a dict of points, after a check that its segments are disjoint."""
    found = [(p, value) for rect, value in segments.items() for p in rect.points()]
    assert len(found) == len(dict(found))
    return dict(found)


def test_update_splits_a_segment_that_is_larger() -> None:
    segments: DisjointMap[str] = DisjointMap()
    segments.assign(Rect((0,), (10,)), "a")
    segments.update(Rect((2,), (4,)), lambda _, old: f"{old}b")
    assert sorted(segments.items()) == [(Rect((0,), (2,)), "a"), (Rect((2,), (4,)), "ab"), (Rect((4,), (10,)), "a")]
    segments.assign(Rect((3,), (3,)), "nothing")
    segments.assign(Rect((0,), (10,)), "c")
    assert list(segments.items()) == [(Rect((0,), (10,)), "c")]


@settings(max_examples=200, deadline=None)
@given(SEEDS, st.integers(0, 3), st.integers(1, 6))
def test_canonical_depends_on_the_points_only(seed: int, ndim: int, count: int) -> None:
    random = Random(seed)
    union: set[tuple[int, ...]] = set()
    one: list[Rect] = []
    for _ in range(count):
        parts = [random_rect(random, ndim, space=3)]
        for rect in one:
            parts = [part for p in parts for part in p.minus(rect)]
        one += parts
        union |= {p for part in parts for p in part.points()}
    cells = [Rect(p, tuple(x + 1 for x in p)) for p in union]  # the same points, cut as finely as can be
    random.shuffle(cells)
    if len(cells) > 300:
        return
    merged = canonical(one)
    assert merged == canonical(cells)
    assert {p for r in merged for p in r.points()} == union
    assert sum(r.volume for r in merged) == len(union)


def test_canonical_puts_a_cut_rect_together() -> None:
    whole = Rect((0, 0), (4, 6))
    assert canonical(whole.minus(Rect((1, 2), (2, 4))) + [Rect((1, 2), (2, 4))]) == (whole,)
    assert canonical([]) == canonical([Rect((2,), (2,))]) == ()
