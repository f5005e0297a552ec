"""One operator cut as another one is: by any rule for which dimensions belong together."""

from __future__ import annotations

from itertools import product
from math import prod
from random import Random

import pytest

import taskflow
from taskflow.graph import OperatorGraph
from taskflow.mapper import OpConfig
from taskflow.mapper.alike import (
    Match,
    by_class,
    by_name,
    by_name_or_size,
    by_samples,
    config_like,
    cut_like,
    degrees_like,
)
from taskflow.models import build
from taskflow.operators.operator import Dim, Soap

RULES = (by_name, by_name_or_size, by_class, by_samples)
SAMPLE, ATTRIBUTE, PARAMETER, REDUCTION = Soap.SAMPLE, Soap.ATTRIBUTE, Soap.PARAMETER, Soap.REDUCTION


def dims(random: Random) -> tuple[Dim, ...]:
    names = random.sample("abcde", random.randrange(5))
    return tuple(
        Dim(name, random.choice((1, 2, 3, 4, 6)), random.choice(tuple(Soap)), random.random() < 0.8) for name in names
    )


def degrees(of: tuple[Dim, ...], random: Random) -> tuple[int, ...]:
    return tuple(random.randint(1, dim.size) if dim.divisible else 1 for dim in of)


def counterpart(color: tuple[int, ...], match: Match, other: tuple[int, ...]) -> tuple[int, ...]:
    """The other operator's piece in the same place; the first in dimensions without counterpart."""
    return tuple(next((c for c, j in reversed(list(zip(color, match))) if j == k), 0) for k in range(len(other)))


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("seed", range(40))
def test_pieces_go_with_those_in_the_same_place(rule, seed: int) -> None:  # type: ignore[no-untyped-def]
    random = Random(seed)
    own, other = dims(random), dims(random)
    match, given = rule(own, other), degrees(other, random)
    assert len(match) == len(own) and all(j is None or 0 <= j < len(other) for j in match)
    found, places = cut_like(own, match, given)
    assert found == degrees_like(own, match, given)
    for degree, dim, j in zip(found, own, match):
        assert degree == (min(given[j], dim.size) if j is not None and dim.divisible else 1)
    colors = list(product(*map(range, given)))
    for color, place in zip(product(*map(range, found)), places):
        assert colors[place] == counterpart(color, match, given)
    config = OpConfig(given, tuple(random.sample(range(100), prod(given))))
    plain = config_like(own, match, config)
    assert plain == OpConfig(found, tuple(config.processors[k] for k in places))
    if len(set(match) - {None}) == sum(j is not None for j in match):  # `fill` is for rules that give each dimension its own
        filled = config_like(own, match, config, fill=True)
        assert filled.degrees[1:] == found[1:] and set(plain.processors) <= set(filled.processors) <= set(config.processors)
        assert len(set(filled.processors)) == len(filled.processors)  # all of a piece's share are different ones


def test_rules_differ_in_what_goes_together() -> None:
    conv = (Dim("n", 8, SAMPLE), Dim("k", 4, PARAMETER), Dim("h", 6, ATTRIBUTE), Dim("c", 3, REDUCTION))
    relu = (Dim("n", 8, SAMPLE), Dim("a1", 4, ATTRIBUTE), Dim("a2", 6, ATTRIBUTE))
    dense = (Dim("rows", 8, SAMPLE), Dim("c", 10, PARAMETER), Dim("k", 24, REDUCTION))
    assert by_name(relu, conv) == (0, None, None) and by_name_or_size(relu, conv) == (0, 1, 2)
    # A name is a name, whatever it means to the other one; what is contracted is not in its output.
    assert by_name(dense, conv) == (0, 3, 1) and by_name_or_size(dense, conv) == (0, None, 1)
    assert by_class(dense, conv) == (0, 1, 3) and by_class(relu, conv) == (0, 2, None)
    assert by_samples(dense, conv) == (0, None, None) == by_samples(relu, conv)
    assert by_samples((), conv) == by_name((), conv) == () and by_name(relu, ()) == (None,) * 3


def test_a_state_of_channels_goes_with_the_channels() -> None:
    channels, conv = (Dim("a0", 8, ATTRIBUTE),), (Dim("n", 8, SAMPLE), Dim("k", 8, PARAMETER))
    assert by_name_or_size(channels, conv) == (0,) and by_name_or_size(channels, (conv[1], conv[0])) == (0,)
    other = (Dim("n", 4, SAMPLE), Dim("k", 8, PARAMETER))
    assert by_name_or_size(channels, other) == (1,)


def test_processors_without_a_piece_get_one_by_samples() -> None:
    own, match = (Dim("n", 8, SAMPLE), Dim("x", 4, ATTRIBUTE)), (0, None)
    config = OpConfig((2, 3), (5, 4, 3, 2, 1, 0))
    assert config_like(own, match, config) == OpConfig((2, 1), (5, 2))
    assert config_like(own, match, config, fill=True) == OpConfig((6, 1), (5, 4, 3, 2, 1, 0))
    short = (Dim("n", 5, SAMPLE), own[1])  # too short for three more each
    assert config_like(short, match, config, fill=True) == OpConfig((4, 1), (5, 4, 2, 1))
    for stays in (Dim("n", 8, SAMPLE, False), Dim("n", 8, REDUCTION)):
        assert len(config_like((stays, own[1]), match, config, fill=True).processors) == (1 if not stays.divisible else 2)


def decoder(samples: int, width: int) -> OperatorGraph:
    graph = OperatorGraph(name="part")
    x = taskflow.input(graph, (samples, 6), name="x")
    taskflow.relu(taskflow.linear(x, width, name="fc"), name="more")
    return graph


def test_a_part_of_a_network_keeps_its_cuts_as_far_as_sizes_allow() -> None:
    trained, part = build("MLP", preset="small"), decoder(2, 5)
    trained_fc = decoder(8, 8)
    strategy = taskflow.Strategy(8, {
        "x": OpConfig((4, 1), (0, 1, 2, 3)), "fc": OpConfig((4, 2, 1), (7, 6, 5, 4, 3, 2, 1, 0)),
        "more": OpConfig((8, 1), tuple(range(8))),
    })
    found = taskflow.mapper.alike(strategy, trained_fc, part)
    assert found["x"] == OpConfig((2, 1), (0, 1)) and found["fc"] == OpConfig((2, 2, 1), (7, 6, 5, 4))
    nothing = taskflow.mapper.alike(strategy, trained, OperatorGraph())
    assert not nothing.configs
    other = OperatorGraph(name="other")
    x = taskflow.input(other, (3, 6), name="new x")
    taskflow.relu(taskflow.linear(x, 5, name="fc"), name="new")
    found = taskflow.mapper.alike(strategy, trained_fc, other)
    assert found["new x"] == OpConfig((3, 1), (0, 1, 2))  # nothing feeds it: over all processors
    assert found["fc"] == OpConfig((3, 2, 1), (7, 6, 5, 4, 3, 2)) and found["new"] == OpConfig((3, 1), (7, 5, 3))
