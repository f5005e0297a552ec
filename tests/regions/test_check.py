"""Which launches are refused, and what the refusal says."""

from __future__ import annotations

import re

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from region_oracle import halo, random_program

from taskflow.partition import Partition, Replicate, Tile
from taskflow.regions import (
    LogicalRegion,
    Privilege,
    PrivilegeError,
    Rect,
    Requirement,
    check_index_launch,
    check_privileges,
)

A = LogicalRegion("a", Rect.of((12,)), np.dtype(np.float32))
B = LogicalRegion("b", Rect.of((12,)), np.dtype(np.float32))
TILES = Tile((12,), (3,))
Points = dict[tuple[int, ...], list[Requirement]]
HALO = halo(TILES, A.rect, 1)


def points(**arguments: tuple[LogicalRegion, Partition, Privilege]) -> Points:
    colors = list(next(iter(arguments.values()))[1])
    return {
        color: [Requirement(region, cut.rect(color), privilege) for region, cut, privilege in arguments.values()]
        for color in colors
    }


def test_one_launch_names_task_arguments_and_rects() -> None:
    conflict = [Requirement(A, Rect((0,), (6,)), Privilege.READ), Requirement(A, Rect((4,), (8,)), Privilege.WRITE)]
    with pytest.raises(PrivilegeError) as error:
        check_privileges("stencil", conflict, ("old", "new"))
    for part in ("stencil", "'old'", "'new'", "read a[0:6]", "write a[4:8]", "share [4:6]"):
        assert part in str(error.value)


@pytest.mark.parametrize("privilege", [Privilege.READ, Privilege.REDUCE])
def test_reads_may_overlap_and_so_may_reductions(privilege: Privilege) -> None:
    twice = [Requirement(A, A.rect, privilege)] * 2
    check_privileges("twice", twice)
    check_index_launch("twice", {(0,): twice, (1,): twice})


def test_index_launch_over_tiles_with_halos_of_another_region_is_fine() -> None:
    check_index_launch("stencil", points(x=(B, HALO, Privilege.READ), y=(A, TILES, Privilege.WRITE)))
    check_index_launch("sum", points(x=(A, TILES, Privilege.READ), y=(B, Replicate((12,), 3), Privilege.REDUCE)))


def test_index_launch_that_writes_overlapping_pieces_is_refused() -> None:
    with pytest.raises(PrivilegeError) as error:
        check_index_launch("blur", points(y=(A, HALO, Privilege.WRITE)), ("y",))
    said = ("blur", "'y'", "write a[3:9]", "of point (1,)", "shares [3:5]", "write a[0:5]", "of point (0,)", "disjoint")
    for part in said:
        assert part in str(error.value)


@pytest.mark.parametrize("privilege", [Privilege.READ, Privilege.REDUCE, Privilege.READ_WRITE])
def test_what_a_point_writes_no_other_point_may_touch(privilege: Privilege) -> None:
    shifted: Points = {
        (i,): [Requirement(A, TILES.rect((i,)), Privilege.WRITE), Requirement(A, TILES.rect(((i + 1) % 3,)), privilege)]
        for i in range(3)
    }
    with pytest.raises(PrivilegeError, match=re.escape("of point (1,)")):
        check_index_launch("shift", shifted)


@settings(max_examples=150, deadline=None)
@given(st.integers(0, 2**32), st.integers(1, 5))
def test_refused_exactly_if_some_pair_conflicts(seed: int, count: int) -> None:
    launches = random_program(seed, count).launches[:-1]
    given_points: Points = {(i,): requirements for i, (requirements, _) in enumerate(launches)}
    pairs = [
        (a, b)
        for j, later in enumerate(given_points.values())
        for earlier in list(given_points.values())[:j]
        for a in earlier
        for b in later
    ]
    if any(a.conflicts(b) for a, b in pairs):
        with pytest.raises(PrivilegeError):
            check_index_launch("task", given_points)
    else:
        check_index_launch("task", given_points)


def test_cost_grows_with_the_points_not_with_their_pairs(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = 0
    overlaps = Rect.overlaps

    def counting(self: Rect, other: Rect) -> bool:
        nonlocal asked
        asked += 1
        return overlaps(self, other)

    monkeypatch.setattr(Rect, "overlaps", counting)
    tiles = Tile((1000,), (250,))
    region = LogicalRegion("a", tiles.space, np.dtype(np.float32))
    check_index_launch("task", points(y=(region, tiles, Privilege.WRITE)))
    assert 0 < asked <= 4 * len(tiles)
