"""The analysis against brute force: random programs run on separate memories as they do on one array, in any allowed
order."""

from __future__ import annotations

from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from region_oracle import Program, Steps, analyse, random_program, run_on_instances, run_sequentially

from taskflow.regions import Analysis, DependenceKind, Launched, Privilege, Requirement, covers

POLICIES = pytest.mark.parametrize(
    "policy",
    [{"exact": False}, {"exact": True}, {"exact": True, "contiguous": True}],
    ids=["reuse", "exact", "contiguous"],
)
SEEDS = st.integers(0, 2**32)


@POLICIES
@settings(max_examples=75, deadline=None)
@given(seed=SEEDS, count=st.integers(1, 24))
def test_any_allowed_order_computes_what_program_order_does(policy: dict[str, bool], seed: int, count: int) -> None:
    program = random_program(seed, count)
    steps = Steps(program, analyse(program, **policy))
    expected = run_sequentially(program)
    assert steps.races() == []
    random = Random(seed + 1)
    for _ in range(3):
        assert run_on_instances(steps, steps.random_order(random)) == expected


@settings(max_examples=150, deadline=None)
@given(seed=SEEDS, count=st.integers(1, 24))
def test_dependences_are_conflicts_and_join_every_conflicting_pair(seed: int, count: int) -> None:
    program = random_program(seed, count)
    launched = analyse(program, exact=False)
    above: list[int] = []
    for x in launched:
        bits = 1 << x.number
        for d in x.dependences:
            assert d.earlier < d.later == x.number
            bits |= above[d.earlier]
        above.append(bits)
    for later, (requirements, _) in enumerate(program.launches):
        for earlier in range(later):
            if any(a.conflicts(b) for a in program.launches[earlier][0] for b in requirements):
                assert above[later] >> earlier & 1, f"{earlier} and {later} conflict, but there is no path"
    for x in launched:
        for d in x.dependences:
            shared = [
                a.rect.intersect(b.rect)
                for a in program.launches[d.earlier][0]
                for b in program.launches[d.later][0]
                if a.region is b.region is d.region and _explains(d.kind, a, b)
            ]
            assert not d.rect.empty
            assert covers(shared, d.rect), str(d)
            if d.kind is DependenceKind.ORDER:
                assert program.launches[d.earlier][1] == program.launches[d.later][1]


def _explains(kind: DependenceKind, a: Requirement, b: Requirement) -> bool:
    if kind is DependenceKind.ORDER:
        return a.privilege is b.privilege is Privilege.REDUCE and a.rect == b.rect
    if not a.conflicts(b):
        return False
    if kind is DependenceKind.TRUE:
        return a.privilege is not Privilege.READ and b.privilege.reads
    if kind is DependenceKind.ANTI:
        return a.privilege is Privilege.READ and b.privilege is not Privilege.READ
    return a.privilege is not Privilege.READ and b.privilege in (Privilege.WRITE, Privilege.REDUCE)


@settings(max_examples=75, deadline=None)
@given(seed=SEEDS, count=st.integers(1, 16))
def test_rects_of_one_pair_and_kind_are_disjoint(seed: int, count: int) -> None:
    program = random_program(seed, count)
    for requirements, _ in program.launches[:-1]:
        del requirements[1:]
    for x in analyse(program, exact=True)[:-1]:
        keyed: dict[tuple[int, DependenceKind], list[object]] = {}
        for d in x.dependences:
            keyed.setdefault((d.earlier, d.kind), []).append(d.rect)
        for rects in keyed.values():
            assert not any(a.overlaps(b) for i, a in enumerate(rects) for b in rects[:i])  # type: ignore[attr-defined]


@POLICIES
@settings(max_examples=50, deadline=None)
@given(seed=SEEDS, count=st.integers(1, 10))
def test_equal_snapshots_mean_equal_movements_from_then_on(policy: dict[str, bool], seed: int, count: int) -> None:
    body = random_program(seed, count)
    del body.launches[-1]
    analysis = Analysis(**policy)
    state = analysis.snapshot()
    steady: list[object] | None = None
    for _ in range(6):
        shape = _iterate(analysis, body)
        if steady is not None:
            assert shape == steady
        old, state = state, analysis.snapshot()
        if old == state:
            steady = shape
        else:
            assert steady is None, "a steady state was left"


def _iterate(analysis: Analysis, body: Program) -> list[object]:
    """What one run of the body moves, without the numbers of launches."""
    return [_shape(analysis.launch(requirements, processor)) for requirements, processor in body.launches]


def _shape(x: Launched) -> object:
    copies = [(c.rect, c.origin, c.target) for c in x.copies]
    sums = [(s.rect, s.target, [(c.rect, c.instance) for c in s.contributions]) for s in x.reductions]
    return (copies, sums, x.clears, x.instances)


@POLICIES
@settings(max_examples=30, deadline=None)
@given(seed=SEEDS, count=st.integers(1, 16))
def test_the_same_program_gives_the_same_analysis(policy: dict[str, bool], seed: int, count: int) -> None:
    program = random_program(seed, count)
    assert analyse(program, **policy) == analyse(program, **policy)
