"""What is said at once of many nodes of one kind is what is said of each."""

from __future__ import annotations

from random import Random
from typing import Any

import pytest

from taskflow.machine import Channels, Cluster, collective, load_machine


class OneByOne:
    """A cluster that says nothing of several nodes at once."""

    def __init__(self, of: Cluster) -> None:
        self.name, self.processors, self.collectives = of.name, of.processors, of.collectives
        self.route, self.way_out, self.way_in = of.route, of.way_out, of.way_in


def clusters() -> list[Cluster]:
    whole = [load_machine(name) for name in ("p100", "a100-v100")]
    return [*whole, *(load_machine(*of) for of in (("k80", 48), ("a100", 48), ("h100", 48), ("a100", 44), ("h100", 21)))]


@pytest.mark.parametrize("seed", range(8))
def test_collectives_are_those_that_are_found_node_by_node(seed: int) -> None:
    random, alike = Random(f"alike nodes {seed}"), 0
    for machine in clusters():
        count, plain = len(machine.processors), OneByOne(machine)
        for _ in range(40):
            step, size = random.choice((1, 2, 4, 8)), random.choice((1, 2, 3, 4, 8))
            members = [p for p in range(count) if p % 8 < size]
            if random.random() < 0.5:
                members = list(range(random.randrange(step), count, step))
            if random.random() < 0.3:
                random.shuffle(members)
            if len(members) < 2:
                continue
            found: Any = collective(machine, members)
            assert found == collective(plain, members), f"{machine} {members}"  # type: ignore[arg-type]
            alike += isinstance(found, Channels) and machine.repeated(members) is not None
    assert alike > 20, "most of these lie in the same places of several nodes"


@pytest.mark.parametrize("seed", range(8))
def test_routes_of_several_pairs_are_those_of_each(seed: int) -> None:
    random, alike = Random(f"alike routes {seed}"), 0
    for machine in clusters():
        count = len(machine.processors)
        for _ in range(40):
            sources = list(range(random.randrange(8), count, random.choice((8, 8, 4))))
            shift = random.randrange(1, 16)
            targets = [(p + shift) % count for p in sources]
            found = machine.alike_routes(sources, targets)
            if found is not None and shift % count:
                alike += 1
                routes = [machine.route(*ends) for ends in zip(sources, targets)]
                assert [list(links) for links in zip(*found)] == [[link.number for link in route] for route in routes]
                (like,) = {tuple((k.bytes_per_second, k.latency_seconds, k.occupies_endpoints) for k in route) for route in routes}
                assert len(like) == len(found)
            for out, way in ((True, machine.way_out), (False, machine.way_in)) if machine.node_count > 1 else ():
                numbers = machine.alike_ways(sources, out)
                if numbers is not None:
                    assert [list(of) for of in zip(*numbers)] == [[link.number for link in way(p)] for p in sources]
    assert alike > 20
