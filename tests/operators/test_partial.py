"""Several processors that write one Rect leave partial values there: `Strategy.partial` says so by the dimensions alone, of every
operator and random cuts."""

from __future__ import annotations

from math import prod
from random import Random

import pytest
from operator_bench import KINDS, SEEDS, draw

from taskflow.graph import Node, OperatorGraph
from taskflow.mapper import OpConfig, Strategy
from taskflow.operators.tensor import Tensor
from taskflow.regions import Rect


@pytest.mark.parametrize("kind", KINDS)
def test_values_are_partial_where_several_processors_write_one_rect(kind: str) -> None:
    for seed in SEEDS[:20]:
        random, case = Random(f"partial {kind} {seed}"), draw(kind, seed)
        outputs = tuple(Tensor(OperatorGraph(), 0, number, kind, spec) for number, spec in enumerate(case.outputs))
        dims = case.operator.dims(case.specs)
        node = Node(0, kind, case.operator, (), outputs, (), case.specs, dims)
        for _ in range(5):
            degrees = tuple(random.randint(1, min(4, dim.size)) if dim.divisible and dim.size else 1 for dim in dims)
            devices = random.choice((1, 2, 3))
            config = OpConfig(degrees, tuple(random.randrange(devices) for _ in range(prod(degrees))))
            makers: dict[tuple[int, Rect], set[int]] = {}
            for rect, processor in config.pieces(node):
                for output in enumerate(node.writes(rect)):
                    makers.setdefault(output, set()).add(processor)
            several = any(len(processors) > 1 for processors in makers.values())
            assert Strategy(devices, {kind: config}).partial(node) == several, f"{node}: {config.describe(node)}"
