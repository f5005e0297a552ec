"""Configurations in words: what describe writes, parse_config reads."""

from __future__ import annotations

from random import Random

import pytest

from taskflow.mapper.config import OpConfig, ranges
from taskflow.mapper.notation import parse_config, parse_ranges
from taskflow.models import build
from taskflow.optimizer.space.space import SearchSpace, SpaceOptions


@pytest.mark.parametrize("model", ["nmt", "inception-v3", "transformer", "alexnet"])
def test_what_is_described_is_read_back(model: str) -> None:
    graph, random = build(model, preset="small"), Random(model)
    space = SearchSpace(graph, 9, SpaceOptions(placements="arbitrary"))
    for node in graph:
        for _ in range(5):
            config = space[node].draw(random)
            assert parse_config(config.describe(node), node, 9) == config


def test_without_processors_and_ranges() -> None:
    node = build("mlp", preset="small").node("fc1")
    assert parse_config("n/3", node, 4).processors == (0, 1, 2)
    assert parse_config("whole", node, 4).processors == (0,)
    assert parse_config("n/2 @ 3,1", node, 4).processors == (3, 1)
    assert parse_config("n/2 x2", node, 4) == OpConfig((2, *[1] * (len(node.dims) - 1)), (0, 1, 2, 3), copies=2)
    assert parse_config("n/2 x2 @ 0-3", node, 4).describe(node) == "n/2 x2 @ 0-3"
    repeated = OpConfig((6, *[1] * (len(node.dims) - 1)), (3, 0, 1, 3, 0, 1))
    assert repeated.describe(node) == "n/6 @ (3,0-1)*2" and parse_config(repeated.describe(node), node, 4) == repeated
    for numbers in ((0,), (0, 1, 2, 3), (3, 2, 1), (5, 0, 1, 2, 9), (1, 1, 1)):
        assert parse_ranges(ranges(numbers), "x") == numbers


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "has no cut; write whole @ 0"),
        ("@ 0", "has no cut"),
        ("q/2 @ 0-1", "'q/2' in 'q/2 @ 0-1' is not a cut; write DIMENSION/PIECES with one of the dimensions n, "),
        ("n/2 n @ 0-1", "'n' in"),
        ("n/2 @ 0-9", "2 pieces need as many processors, got 10"),
        ("n/2 @ (0-1)*1000000000", "2 pieces need as many processors, got"),
        ("n/2 @ (0-1)", "must be numbers and ranges"),
        ("n/2 @ 3-4", "processor 4 does not exist; there are 0 to 3"),
        ("n/0", "degree of n must be 1 to"),
        ("n/2 @ 1-0", "runs backwards"),
        ("n/2 @ a,b", "must be numbers and ranges"),
        ("n/2 @ 0-99999999", "longer than any machine"),
        ("n/2 x2 @ 0-2", "2 x 2 copies need as many processors, got 3"),
        ("n/2 x2 @ 0,0,1,1", "copies of a piece run on different processors, got 0,0"),
        ("k/2 x2 @ 0-3", "pieces along k write the same elements, and are added, so that they cannot have copies"),
        ("x2 n/2 @ 0-3", "'x2' in"),
    ],
)
def test_what_cannot_be_read(text: str, message: str) -> None:
    with pytest.raises(ValueError, match="operator fc1") as error:
        parse_config(text, build("mlp", preset="small").node("fc1"), 4)
    assert message in str(error.value)
