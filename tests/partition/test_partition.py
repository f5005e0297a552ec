"""Partitions: sizes, disjointness, completeness, and overlaps against all pairs of pieces."""

from __future__ import annotations

from collections import Counter
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from taskflow.partition import Grid, Image, Partition, Replicate, Tile, Weighted, even_cuts, overlaps, weighted_cuts
from taskflow.regions import Rect

SHAPES = st.lists(st.integers(0, 9), min_size=0, max_size=3)
SEEDS = st.integers(0, 2**32)


def some_partition(random: Random, shape: list[int]) -> Partition:
    """Any kind of partition of an array of this shape, with more pieces than points and empty pieces among them."""
    kind = random.choice(("tile", "weighted", "replicate", "halo", "image", "grid"))
    tiles = Tile(shape, [random.randint(1, 5) for _ in shape])
    if kind == "weighted":
        return Weighted(shape, [[*random.choices((0, 1, 2.5, 7), k=random.randint(0, 3)), 1] for _ in shape])
    if kind == "replicate":
        return Replicate(shape, random.randint(1, 3))
    if kind == "halo":
        width = random.randint(-1, 2)
        widened = lambda r: Rect(tuple(x - width for x in r.lo), tuple(x + width for x in r.hi))  # noqa: E731
        return Image(tiles, widened, tiles.space)
    if kind == "image":
        anywhere = {tiles.rect(color): _any_rect(random, shape) for color in tiles}
        return Image(tiles, anywhere.__getitem__, tiles.space)
    if kind == "grid":
        return Grid([[0, *sorted(random.choices(range(n + 1), k=random.randint(0, 4))), n] for n in shape])
    return tiles


def _any_rect(random: Random, shape: list[int]) -> Rect:
    return Rect(tuple(random.randint(-2, s + 1) for s in shape), tuple(random.randint(-2, s + 3) for s in shape))


def holders(partition: Partition) -> Counter[tuple[int, ...]]:
    """How many pieces hold each point."""
    return Counter(p for rect in partition.rects() for p in rect.points())


@settings(max_examples=300, deadline=None)
@given(SEEDS, SHAPES)
def test_disjoint_and_complete_say_what_the_pieces_are(seed: int, shape: list[int]) -> None:
    partition = some_partition(Random(seed), shape)
    held = holders(partition)
    assert partition.disjoint == all(count == 1 for count in held.values())
    assert partition.complete == (set(held) >= set(partition.space.points()))
    assert set(held) <= set(partition.space.points())
    assert len(partition) == len(list(partition)) == len(partition.rects()) == len(set(partition))


@settings(max_examples=300, deadline=None)
@given(SEEDS, SHAPES)
def test_overlapping_finds_what_a_look_at_every_piece_does(seed: int, shape: list[int]) -> None:
    random = Random(seed)
    partition = some_partition(random, shape)
    for _ in range(4):
        rect = _any_rect(random, shape)
        assert list(partition.overlapping(rect)) == [c for c in partition if partition.rect(c).overlaps(rect)]


@settings(max_examples=300, deadline=None)
@given(SEEDS, SHAPES)
def test_overlaps_finds_what_all_pairs_do(seed: int, shape: list[int]) -> None:
    random = Random(seed)
    left, right = some_partition(random, shape), some_partition(random, shape)
    pairs = ((a, b, left.rect(a).intersect(right.rect(b))) for a in left for b in right)
    assert list(overlaps(left, right)) == [(a, b, shared) for a, b, shared in pairs if not shared.empty]


@given(st.integers(0, 200), st.integers(1, 40))
def test_even_cuts_differ_by_at_most_one_larger_ones_first(size: int, degree: int) -> None:
    cuts = even_cuts(size, degree)
    sizes = [b - a for a, b in zip(cuts, cuts[1:])]
    assert len(sizes) == degree
    assert sum(sizes) == size
    assert max(sizes) - min(sizes) <= 1
    assert sizes == sorted(sizes, reverse=True)


@given(SHAPES, st.data())
def test_tile_pieces_differ_by_at_most_one_in_every_dimension(shape: list[int], data: st.DataObject) -> None:
    degrees = [data.draw(st.integers(1, 12)) for _ in shape]
    tiles = Tile(shape, degrees)
    assert tiles.colors == tuple(degrees)
    for i in range(len(shape)):
        sizes = {rect.shape[i] for rect in tiles.rects()}
        assert max(sizes) - min(sizes) <= 1


@given(st.integers(0, 1000), st.lists(st.floats(0, 1e6), min_size=1, max_size=8).filter(lambda w: sum(w) > 1e-3))
def test_weighted_pieces_are_within_one_point_of_their_share(size: int, weights: list[float]) -> None:
    cuts = weighted_cuts(size, weights)
    assert cuts[0] == 0
    assert cuts[-1] == size
    assert list(cuts) == sorted(cuts)
    for a, b, weight in zip(cuts, cuts[1:], weights):
        assert abs((b - a) - size * weight / sum(weights)) <= 1 + 1e-6


def test_examples() -> None:
    assert Tile((10,), (4,)).cuts == ((0, 3, 6, 8, 10),)
    assert Tile((2,), (4,)).rects() == [Rect((0,), (1,)), Rect((1,), (2,)), Rect((2,), (2,)), Rect((2,), (2,))]
    assert Weighted((12,), ((1, 2, 3),)).cuts == ((0, 2, 6, 12),)
    assert Weighted((3,), ((1, 0, 1),)).rect((1,)).empty
    image = Image(Tile((10,), (2,)), lambda r: Rect((r.lo[0] - 1,), (r.hi[0] + 1,)), Rect.of((10,)))
    assert image.rects() == [Rect((0,), (6,)), Rect((4,), (10,))]
    assert (image.disjoint, image.complete) == (False, True)
    assert list(overlaps(image, Tile((10,), (2,)))) == [
        ((0,), (0,), Rect((0,), (5,))), ((0,), (1,), Rect((5,), (6,))),
        ((1,), (0,), Rect((4,), (5,))), ((1,), (1,), Rect((5,), (10,))),
    ]
    assert list(Tile((), ()).overlapping(Rect.of(()))) == [()]
    assert Replicate((0,), 3).disjoint


def test_names() -> None:
    assert str(Tile((4, 6), (2, 1))) == "[0:4, 0:6] cut 2x1"
    assert str(Tile((), ())) == "[] cut 1"
    assert str(Replicate((4,), 3)) == "[0:4] x 3 copies"
    assert str(Image(Tile((4,), (2,)), lambda r: r, Rect.of((4,)))) == "image over [0:4], 2 pieces"


def test_refusals_say_what_was_required_and_given() -> None:
    with pytest.raises(ValueError, match=r"Tile: 2 dimensions need 2 entries, got 1"):
        Tile((4, 4), (2,))
    with pytest.raises(ValueError, match=r"Tile: every degree must be at least 1, got \(0,\)"):
        Tile((4,), (0,))
    with pytest.raises(ValueError, match=r"Weighted: every degree must be at least 1"):
        Weighted((4,), ((),))
    for bad in ((1, -1), (0, 0), (float("inf"), 1), (float("nan"), 1)):
        with pytest.raises(ValueError, match="Weighted: weights must be finite"):
            Weighted((4,), (bad,))
    with pytest.raises(ValueError, match="Replicate: copies must be at least 1, got 0"):
        Replicate((4,), 0)
    with pytest.raises(ValueError, match=r"cuts of dimension 1 .* rising order, got \(0, 3, 2\)"):
        Grid(((0, 4), (0, 3, 2)))
    with pytest.raises(ValueError, match=r"Tile: no size may be negative, got \(4, -1\)"):
        Tile((4, -1), (1, 1))
