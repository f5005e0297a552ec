"""The SOAP space: complete, without repeats, uniform."""

from __future__ import annotations

from collections import Counter
from itertools import product
from math import prod
from random import Random

import pytest
from fast_and_slow import fast_among
from language_model import model

import taskflow
from taskflow.mapper import OpConfig
from taskflow.models import build
from taskflow.operators.operator import Dim, Soap
from taskflow.optimizer.space.constraints import Constraints
from taskflow.optimizer.space.permitted import Permitted
from taskflow.optimizer.space.space import OperatorSpace, SearchSpace, SpaceOptions, place

DIMS = (Dim("n", 6, Soap.SAMPLE), Dim("a", 3, Soap.ATTRIBUTE, divisible=False), Dim("c", 4, Soap.PARAMETER),
        Dim("k", 2, Soap.REDUCTION))


@pytest.mark.parametrize("reduction", [False, True])
@pytest.mark.parametrize("processors", [1, 3, 4])
def test_arbitrary_space_is_every_degree_and_every_processor(processors: int, reduction: bool) -> None:
    space = OperatorSpace(DIMS, processors, SpaceOptions("any", "arbitrary", reduction))
    expected = {
        OpConfig((n, 1, c, k), places)
        for n, c, k in product(range(1, 7), range(1, 5), range(1, 3 if reduction else 2))
        if n * c * k <= processors
        for places in product(range(processors), repeat=n * c * k)
    }
    listed = list(space)
    assert len(listed) == len(set(listed)) == space.size
    assert set(listed) == expected


@pytest.mark.parametrize("processors", [1, 2, 4, 6, 8])
def test_structured_space_has_no_repeats_and_knows_its_members(processors: int) -> None:
    space = OperatorSpace(DIMS, processors)
    listed = list(space)
    assert len(listed) == len(set(listed)) == space.size
    assert all(space.contains(c) for c in listed)
    assert all(len(set(c.processors)) == len(c.processors) for c in listed)  # one piece a processor
    assert {c.degrees for c in listed} == {
        (n, 1, c, k) for n, c, k in product(range(1, 7), range(1, 5), (1, 2)) if n * c * k <= processors
    }
    assert set(space.candidates()) <= set(space.candidates(aligned=False)) == set(listed)
    assert not space.contains(OpConfig((1, 3, 1, 1), (0, 0, 0)))


def test_placements_are_contiguous_strided_and_permuted() -> None:
    space = set(OperatorSpace(DIMS, 8))
    assert OpConfig((4, 1, 1, 1), (4, 5, 6, 7)) in space
    assert OpConfig((4, 1, 1, 1), (1, 3, 5, 7)) in space
    assert OpConfig((2, 1, 4, 1), (0, 2, 4, 6, 1, 3, 5, 7)) in space  # the sample dimension fastest
    assert place((2, 1, 2, 2), 8, order=5).processors != place((2, 1, 2, 2), 8).processors


@pytest.mark.parametrize("processors", [1, 4, 6])
def test_contiguous_placements_are_some_of_the_structured_ones(processors: int) -> None:
    space = OperatorSpace(DIMS, processors, SpaceOptions(placements="contiguous"))
    listed = list(space)
    assert len(listed) == len(set(listed)) == space.size == len(space.tuples) * processors
    assert all(space.contains(c) for c in listed) and set(listed) <= set(OperatorSpace(DIMS, processors))
    assert set(listed) == {place(t, processors, offset) for t in space.tuples for offset in range(processors)}
    assert set(space.candidates(aligned=False)) == set(listed)
    assert processors < 4 or not space.contains(place((2, 1, 1, 1), processors, 0, 2))


def test_draw_is_uniform() -> None:
    space = OperatorSpace(DIMS, 4)
    draws = 40 * space.size
    random = Random(3)
    counts = Counter(space.draw(random) for _ in range(draws))
    statistic = sum((counts[c] - 40) ** 2 / 40 for c in space)
    degrees = space.size - 1
    assert abs(statistic - degrees) < 4 * (2 * degrees) ** 0.5  # chi-square has mean d and variance 2 d


def test_degree_choices_and_their_fallback() -> None:
    dims = tuple(Dim(f"d{i}", 3**4 * 2**4, Soap.ATTRIBUTE) for i in range(5))
    assert {d for t in OperatorSpace(DIMS, 8, SpaceOptions("even")).tuples for d in t} == {1, 2, 3, 4, 6}
    assert {d for t in OperatorSpace(DIMS, 8, SpaceOptions("powers")).tuples for d in t} == {1, 2, 4}
    big = OperatorSpace(dims, 1024)  # too many tuples of any degrees: fewer choices, still a finite list
    assert all(d & (d - 1) == 0 for t in big.tuples for d in t)
    assert max(prod(t) for t in big.tuples) == 1024


@pytest.mark.parametrize("pieces", [1, 4, 5, 6, 7, 8])
def test_cuts_into_so_many_pieces(pieces: int) -> None:
    space = OperatorSpace(DIMS, 7, SpaceOptions("even"))  # no dimension of 5 or 7
    exactly = [t for t in space.tuples if prod(t) == pieces]
    assert list(space.cuts(pieces)) == exactly and bool(exactly) == (pieces in (1, 4, 6))
    assert list(space.cuts(pieces, dimensions=2)) == [t for t in exactly if sum(d > 1 for d in t) <= 2]
    simple = [t for t in space.tuples if sum(d > 1 for d in t) <= 2 and t[3] == 1]
    assert list(space.cuts(pieces, dimensions=2, contracted=False)) == [t for t in simple if t in exactly]
    nearest = {5: 4, 7: 6, 8: 6}.get(pieces, pieces)
    assert list(space.cuts(pieces, nearest=True)) == [t for t in space.tuples if prod(t) == nearest]
    found = space.cuts(pieces, dimensions=2, contracted=False, nearest=True)
    assert list(found) == [t for t in simple if prod(t) == nearest]


def test_a_pinned_operator_has_its_own_cut_where_there_must_be_one() -> None:
    pin = OpConfig((2, 1, 2, 2), tuple(range(8)))
    space = OperatorSpace(DIMS, 8, permitted=Permitted(tuple(dim.name for dim in DIMS), pin.degrees, pin=pin))
    for pieces in (4, 8):
        assert space.cuts(pieces, nearest=True) == (pin.degrees,)
        assert space.cuts(pieces, dimensions=2, contracted=False, nearest=True) == (pin.degrees,)
        assert space.cuts(pieces, dimensions=2) == () and bool(space.cuts(pieces)) == (pieces == 8)


def test_options_are_checked() -> None:
    for wrong in ({"degrees": "odd"}, {"placements": "somewhere"}, {"most_pieces": -1}):
        with pytest.raises(ValueError, match="space"):
            SpaceOptions(**wrong)  # type: ignore[arg-type]


def test_random_strategies_fit_the_graph_and_follow_the_seed() -> None:
    graph = model()
    space = SearchSpace(graph, 4)
    for seed in range(20):
        configs = space.random(Random(seed))
        assert configs == space.random(Random(seed))
        for node in graph:
            configs[node.name].verify(node, 4)


@pytest.mark.parametrize("algorithm", fast_among(["guided", "mcmc", "optcnn"], ["guided", "optcnn"]))
def test_where_contiguous_placements_are_asked_for_all_are(algorithm: str) -> None:
    """The experts' plan too, which deals a layer's pieces to one processor of each node."""
    graph, machine = build("NMT", preset="small"), taskflow.load_machine("p100", 8)
    space = SpaceOptions(placements="contiguous", constraints=Constraints.parse({"softmax*": {"devices": [1, 3, 5, 7]}}))
    found = taskflow.search(graph, machine, budget="3000p", algorithm=algorithm, space=space)
    assert "expert (repaired)" in found.starts
    for name, config in found.strategy.configs.items():
        row = (1, 3, 5, 7) if name.startswith("softmax") else tuple(range(8))
        first = row.index(config.processors[0])
        assert config.processors == tuple(row[(first + i) % len(row)] for i in range(len(config.processors))), name
