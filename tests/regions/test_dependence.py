"""The analysis on programs small enough to write down what must come out."""

from __future__ import annotations

import numpy as np
import pytest
from region_oracle import halo

from taskflow.partition import Tile, overlaps
from taskflow.regions import (
    INITIAL,
    Analysis,
    Clear,
    Contribution,
    DependenceKind,
    Instance,
    Launched,
    LogicalRegion,
    Privilege,
    PrivilegeError,
    Rect,
    Requirement,
)

A = LogicalRegion("a", Rect.of((12,)), np.dtype(np.float32))
B = LogicalRegion("b", Rect.of((12,)), np.dtype(np.float32))
READ, WRITE, READ_WRITE, REDUCE = Privilege.READ, Privilege.WRITE, Privilege.READ_WRITE, Privilege.REDUCE
BOTH = pytest.mark.parametrize("exact", [False, True])


def span(lo: int, hi: int) -> Rect:
    return Rect((lo,), (hi,))


def on(privilege: Privilege, lo: int, hi: int, region: LogicalRegion = A) -> Requirement:
    return Requirement(region, span(lo, hi), privilege)


def run(*launches: tuple[int, Requirement], exact: bool = False) -> list[Launched]:
    """Launches of one requirement each, given as (processor, requirement)."""
    analysis = Analysis(exact=exact)
    return [analysis.launch([requirement], processor) for processor, requirement in launches]


def waits(launched: Launched) -> list[tuple[int, DependenceKind, Rect]]:
    return [(d.earlier, d.kind, d.rect) for d in launched.dependences]


@pytest.mark.parametrize(
    ("earlier", "later", "kind"),
    [
        (WRITE, READ, DependenceKind.TRUE),
        (REDUCE, READ, DependenceKind.TRUE),
        (READ_WRITE, READ_WRITE, DependenceKind.TRUE),
        (WRITE, READ_WRITE, DependenceKind.TRUE),
        (REDUCE, READ_WRITE, DependenceKind.TRUE),
        (READ_WRITE, READ, DependenceKind.TRUE),
        (READ, WRITE, DependenceKind.ANTI),
        (READ, REDUCE, DependenceKind.ANTI),
        (READ, READ_WRITE, DependenceKind.ANTI),
        (WRITE, WRITE, DependenceKind.OUTPUT),
        (READ_WRITE, WRITE, DependenceKind.OUTPUT),
        (WRITE, REDUCE, DependenceKind.OUTPUT),
        (READ_WRITE, REDUCE, DependenceKind.OUTPUT),
        (REDUCE, WRITE, DependenceKind.OUTPUT),
        (READ, READ, None),
        (REDUCE, REDUCE, None),
    ],
)
def test_kinds(earlier: Privilege, later: Privilege, kind: DependenceKind | None) -> None:
    _, second = run((0, on(earlier, 0, 8)), (1, on(later, 4, 12)))
    assert waits(second) == ([] if kind is None else [(0, kind, span(4, 8))])


def test_other_regions_and_disjoint_rects_do_not_conflict() -> None:
    *_, third = run((0, on(WRITE, 0, 6)), (0, on(WRITE, 0, 12, B)), (1, on(WRITE, 6, 12)))
    assert waits(third) == []


def test_a_write_hides_what_it_covers() -> None:
    *_, last = run((0, on(WRITE, 0, 12)), (1, on(WRITE, 4, 8)), (2, on(READ, 0, 12)))
    assert waits(last) == [
        (0, DependenceKind.TRUE, span(0, 4)), (0, DependenceKind.TRUE, span(8, 12)), (1, DependenceKind.TRUE, span(4, 8)),
    ]
    assert [(c.source, c.rect, c.source_processor, c.target_processor) for c in last.copies] == [
        (0, span(0, 4), 0, 2), (0, span(8, 12), 0, 2), (1, span(4, 8), 1, 2),
    ]


def test_a_write_waits_for_the_readers_not_for_the_write_that_they_hide() -> None:
    *_, last = run((0, on(WRITE, 0, 12)), (0, on(READ, 0, 6)), (1, on(READ, 4, 12)), (0, on(WRITE, 0, 12)))
    assert waits(last) == [(1, DependenceKind.ANTI, span(0, 6)), (2, DependenceKind.ANTI, span(4, 12))]


def test_initial_contents_are_copied_from_nowhere_in_particular() -> None:
    (only,) = run((3, on(READ, 2, 5)))
    (copy,) = only.copies
    assert (copy.source, copy.source_processor, copy.rect) == (INITIAL, INITIAL, span(2, 5))
    assert copy.origin == Instance(A, A.rect, INITIAL)
    assert copy.target == Instance(A, span(2, 5), 3)
    assert copy.nbytes == 12


@BOTH
def test_an_instance_is_shared_and_filled_once(exact: bool) -> None:
    launches = run((0, on(WRITE, 0, 6)), (1, on(WRITE, 6, 12)), (2, on(READ, 4, 8)), (2, on(READ, 4, 8)), exact=exact)
    third, fourth = launches[2:]
    assert [(c.source, c.rect) for c in third.copies] == [(0, span(4, 6)), (1, span(6, 8))]
    assert fourth.copies == ()
    assert fourth.shares == tuple(c.number for c in third.copies)
    assert fourth.instances == third.instances == (Instance(A, span(4, 8), 2),)


@BOTH
def test_only_what_became_invalid_is_copied_again(exact: bool) -> None:
    *_, last = run(
        (0, on(WRITE, 0, 12)), (1, on(READ, 2, 10)), (0, on(WRITE, 4, 6)), (1, on(READ, 2, 10)), exact=exact
    )
    assert [(c.source, c.rect) for c in last.copies] == [(2, span(4, 6))]


def test_the_owners_piece_serves_smaller_rects_on_its_processor() -> None:
    *_, inside, elsewhere = run((0, on(WRITE, 0, 8)), (0, on(READ, 2, 5)), (1, on(READ, 2, 5)), exact=True)
    assert inside.copies == ()
    assert inside.instances == (Instance(A, span(0, 8), 0),)
    assert [c.target for c in elsewhere.copies] == [Instance(A, span(2, 5), 1)]


def test_contiguous_policy_copies_a_strided_rect_out_of_the_owners_piece() -> None:
    matrix = LogicalRegion("m", Rect.of((4, 6)), np.dtype(np.float32))
    for rect, copies in ((Rect((1, 0), (3, 6)), 0), (Rect((1, 2), (2, 4)), 0), (Rect((1, 2), (3, 4)), 1)):
        analysis = Analysis(exact=True, contiguous=True)
        analysis.launch([Requirement(matrix, matrix.rect, WRITE)], 0)
        launched = analysis.launch([Requirement(matrix, rect, READ)], 0)
        assert len(launched.copies) == copies, rect


def test_exact_rule_copies_one_piece_per_overlap() -> None:
    tiles = Tile((12,), (4,))
    image = halo(tiles, A.rect, 1)
    analysis = Analysis(exact=True)
    for i, tile in enumerate(tiles.rects()):
        analysis.launch([Requirement(A, tile, WRITE)], i)
    found = {
        (c.target_processor, c.source, c.rect)
        for i, wide in enumerate(image.rects())
        for c in analysis.launch([Requirement(A, wide, READ)], i).copies
    }
    assert found == {(a[0], b[0], rect) for a, b, rect in overlaps(image, tiles)}


def test_stencil_copies_only_halo_cells_once_it_is_steady() -> None:
    tiles = Tile((12,), (4,))
    wide = halo(tiles, A.rect, 1).rects()
    analysis = Analysis()
    copied: list[list[tuple[int, int, Rect]]] = []
    states = []
    for step in range(6):
        source, target = (A, B) if step % 2 == 0 else (B, A)
        copied.append([])
        for i, tile in enumerate(tiles.rects()):
            launched = analysis.launch([Requirement(source, wide[i], READ), Requirement(target, tile, WRITE)], i)
            copied[-1] += [(c.source_processor, c.target_processor, c.rect) for c in launched.copies]
        states.append(analysis.snapshot())
    halos = [
        (1, 0, span(3, 4)), (0, 1, span(2, 3)), (2, 1, span(6, 7)),
        (1, 2, span(5, 6)), (3, 2, span(9, 10)), (2, 3, span(8, 9)),
    ]
    assert sorted(copied[4]) == sorted(copied[5]) == sorted(halos)
    assert states[3] == states[5]
    assert states[0] != states[2]


def test_a_local_copy_joins_instances_on_one_processor() -> None:
    *_, last = run((0, on(WRITE, 0, 6)), (0, on(WRITE, 6, 12)), (0, on(READ, 3, 9)))
    assert [(c.origin.rect, c.rect, c.source_processor) for c in last.copies] == [
        (span(0, 6), span(3, 6), 0), (span(6, 12), span(6, 9), 0),
    ]


def test_writes_go_to_a_containing_instance_unless_exact() -> None:
    for exact, where in ((False, span(2, 10)), (True, span(4, 8))):
        *_, last = run((0, on(READ, 2, 10)), (0, on(WRITE, 4, 8)), exact=exact)
        assert last.instances == (Instance(A, where, 0),)


def test_what_is_read_and_written_is_in_the_largest_instance() -> None:
    """Where two hold as much of it: later reads of any Rect in the larger one find it there."""
    *_, last = run((0, on(READ, 4, 8)), (0, on(READ, 0, 12)), (0, on(READ_WRITE, 4, 8)))
    assert last.instances == (Instance(A, span(0, 12), 0),) and last.copies == ()


def test_a_launch_shares_movements_of_earlier_launches_alone() -> None:
    """Of two arguments of a launch that read the same, one brings it for both."""
    launched = Analysis().launch([on(READ, 0, 8), on(READ, 0, 8)], 0)
    assert len(launched.copies) == 1 and launched.shares == ()


@BOTH
def test_sums_come_in_the_order_of_launches_whatever_their_rects(exact: bool) -> None:
    *_, last = run((0, on(REDUCE, 4, 12)), (0, on(REDUCE, 0, 12)), (1, on(READ, 0, 12)), exact=exact)
    assert [c.launches for c in last.reductions[0].contributions] == [(0,), (1,)]


@BOTH
def test_reductions_accumulate_per_processor_and_are_summed_in_program_order(exact: bool) -> None:
    launches = run(
        (0, on(WRITE, 0, 12)), (1, on(REDUCE, 0, 8)), (2, on(REDUCE, 4, 12)), (1, on(REDUCE, 0, 8)),
        (0, on(READ, 0, 12)), (3, on(READ, 0, 12)), exact=exact,
    )
    _, first, second, third, reader, other = launches
    one, two = Instance(A, span(0, 8), 1, partial=True), Instance(A, span(4, 12), 2, partial=True)
    assert first.clears == (Clear(span(0, 8), one),)
    assert second.clears == (Clear(span(4, 12), two),)
    assert third.clears == ()
    assert (1, DependenceKind.ORDER, span(0, 8)) in waits(third)
    assert {d.kind for d in second.dependences} == {DependenceKind.OUTPUT}
    (need,) = reader.reductions
    assert need.contributions == (Contribution(span(0, 8), one, (1, 3)), Contribution(span(4, 12), two, (2,)))
    assert (need.target, need.target_processor, need.rect) == (Instance(A, span(0, 12), 0), 0, span(0, 12))
    assert need.after == ()
    assert reader.copies == ()
    # What was summed once is copied from there: its source is the launch that had it summed, after that sum.
    assert other.reductions == ()
    assert [(c.source, c.source_processor, c.after) for c in other.copies] == [(4, 0, (need.number,))]
    assert not any(d.earlier == 4 for d in other.dependences)


def test_a_sum_elsewhere_first_brings_the_base_values() -> None:
    *_, reader = run((0, on(WRITE, 0, 12)), (1, on(REDUCE, 0, 4)), (2, on(READ, 2, 6)))
    (copy,), (need,) = reader.copies, reader.reductions
    assert (copy.source, copy.rect) == (0, span(2, 6))
    assert [c.rect for c in need.contributions] == [span(2, 4)]
    assert need.after == (copy.number,)
    assert reader.movements == (copy, need)


def test_a_write_discards_the_sums_that_it_covers() -> None:
    analysis = Analysis()
    analysis.launch([on(REDUCE, 0, 12)], 1)
    analysis.launch([on(WRITE, 0, 6)], 0)
    again = analysis.launch([on(REDUCE, 0, 12)], 1)
    partial = Instance(A, span(0, 12), 1, partial=True)
    assert again.clears == (Clear(span(0, 6), partial),)
    assert (0, DependenceKind.ORDER, span(6, 12)) in waits(again)
    (need,) = analysis.launch([on(READ, 0, 12)], 0).reductions
    assert need.contributions == (
        Contribution(span(6, 12), partial, (0, 2)), Contribution(span(0, 6), partial, (2,)),
    )
    analysis.launch([on(WRITE, 0, 12)], 0)
    assert analysis.launch([on(READ, 0, 12)], 0).reductions == ()


def test_gradient_of_a_halo_is_summed_where_it_is_read() -> None:
    """Tasks add to their halo Rects (dT, d, R); each owner then reads its tile: one sum of two or three partial
    instances."""
    tiles = Tile((12,), (4,))
    analysis = Analysis(exact=True)
    for i, tile in enumerate(tiles.rects()):
        analysis.launch([Requirement(A, tile, WRITE)], i)
    for i, wide in enumerate(halo(tiles, A.rect, 1).rects()):
        analysis.launch([Requirement(A, wide, REDUCE)], i)
    for i, tile in enumerate(tiles.rects()):
        launched = analysis.launch([Requirement(A, tile, READ)], i)
        (need,) = launched.reductions
        near = [j for j in (i - 1, i, i + 1) if 0 <= j < 4]
        assert [c.instance.processor for c in need.contributions] == near
        assert launched.copies == ()
        assert need.target == Instance(A, tile, i)


def test_empty_rects_and_scalars() -> None:
    analysis = Analysis()
    scalar = LogicalRegion("s", Rect.of(()), np.dtype(np.float32))
    first = analysis.launch([on(WRITE, 3, 3), Requirement(scalar, scalar.rect, WRITE)], 0)
    assert first.instances == (None, Instance(scalar, scalar.rect, 0))
    second = analysis.launch([on(READ, 3, 3), Requirement(scalar, scalar.rect, READ)], 1)
    assert waits(second) == [(0, DependenceKind.TRUE, scalar.rect)]
    assert len(second.copies) == 1


def test_refusals_change_nothing() -> None:
    analysis = Analysis()
    analysis.launch([on(WRITE, 0, 12)], 0)
    before = analysis.snapshot()
    with pytest.raises(ValueError, match="processor must be 0 or more, got -1"):
        analysis.launch([on(READ, 0, 1)], -1)
    with pytest.raises(ValueError, match=r"read a\[8:13\] is not in its region a\[0:12\]"):
        analysis.launch([on(WRITE, 0, 4), on(READ, 8, 13)], 1)
    with pytest.raises(ValueError, match="is not in its region"):
        analysis.launch([Requirement(A, Rect((0, 0), (1, 1)), READ)], 1)
    with pytest.raises(PrivilegeError, match="launch 1: arguments 0"):
        analysis.launch([on(READ, 0, 8), on(WRITE, 4, 6)], 1)
    assert analysis.snapshot() == before
    assert analysis.launches == 1
    with pytest.raises(ValueError, match="exact=True"):
        Analysis(contiguous=True)


def test_snapshot_sees_owners_validity_and_sums_but_no_numbers() -> None:
    def state(*launches: tuple[int, Requirement]) -> object:
        analysis = Analysis()
        for processor, requirement in launches:
            analysis.launch([requirement], processor)
        return analysis.snapshot()

    once = state((0, on(WRITE, 0, 12)))
    assert once == state((0, on(WRITE, 0, 12)), (0, on(WRITE, 0, 12)))
    assert once == state((0, on(READ, 0, 12)), (0, on(READ_WRITE, 0, 12)))
    assert once != state((0, on(WRITE, 0, 12)), (0, on(WRITE, 6, 12)))  # one instance, but two launches: two copies
    assert once != state((1, on(WRITE, 0, 12)))
    assert once != state((0, on(WRITE, 0, 12)), (1, on(READ, 0, 12)))
    assert once != state((0, on(WRITE, 0, 12)), (1, on(REDUCE, 0, 12)))
    assert hash(once) == hash(state((0, on(WRITE, 0, 12))))


def test_forgotten_launches_are_not_waited_for_but_their_values_stay() -> None:
    analysis = Analysis()
    for processor in range(3):
        analysis.launch([on(READ, 0, 12)], processor)
    analysis.launch([on(WRITE, 0, 6)], 1)
    analysis.forget(below=2)
    launched = analysis.launch([on(WRITE, 4, 12)], 0)
    assert waits(launched) == [(2, DependenceKind.ANTI, span(6, 12)), (3, DependenceKind.OUTPUT, span(4, 6))]
    analysis.forget(below=analysis.launches)
    launched = analysis.launch([on(READ, 0, 12)], 2)
    assert waits(launched) == []
    assert [(c.source, c.rect) for c in launched.copies] == [(3, span(0, 4)), (4, span(4, 12))]


def test_printing() -> None:
    first, second = run((0, on(REDUCE, 0, 4)), (1, on(READ, 0, 12)))
    assert str(second) == "launch 1 @ 1: waits for [0], 1 copies, 1 sums"
    assert str(second.dependences[0]) == "0 -> 1 true a[0:4]"
    assert str(second.copies[0]) == "copy 0: a[0:12] of -1, a[0:12] @ -1 -> a[0:12] @ 1"
    assert str(second.reductions[0]) == "sum 1: a[0:12] @ 1 += a[0:4] @ 0"
    assert str(first.instances[0]) == "+a[0:4] @ 0"
