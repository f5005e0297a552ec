"""Collectives of a library: worked out by hand, and held against what libraries are known to reach."""

from __future__ import annotations

from dataclasses import replace
from math import inf

import pytest

from taskflow.machine import Channels, Ring, collective, collective_links, load_machine, ring, ring_bytes

GB = 1e9


def seconds(machine: str, members: range, nbytes: int, halves: int = 2) -> float:
    cluster = load_machine(machine, 16)
    return collective(cluster, members).seconds(ring_bytes(len(members), nbytes, halves), halves)


def bus(machine: str, members: range, nbytes: int) -> float:
    """Bytes a second as nccl-tests count them: what a ring's members send."""
    n = len(members)
    return 2 * (n - 1) / n * nbytes / seconds(machine, members, nbytes)


def test_within_a_node_by_hand() -> None:
    a100 = load_machine("a100", 8)
    own, around = a100.collectives, collective(a100, range(4))
    assert own is not None and isinstance(around, Channels) and around.network_bytes_per_second == inf
    assert around.bytes_per_second == pytest.approx(300 * GB * own.link_share)
    nbytes = 1 << 24
    link, copy = nbytes / (300 * GB * own.link_share), nbytes / own.copy_bytes_per_second
    assert around.seconds(ring_bytes(4, nbytes)) == pytest.approx(own.start_seconds + 6 * own.step_seconds + 1.5 * link + copy)
    half = around.seconds(ring_bytes(4, nbytes, 1), 1)
    assert half == pytest.approx(own.start_seconds + 3 * own.step_seconds + 0.75 * link + copy / 2)
    assert around.resources == ring(a100, range(4)).resources


def test_between_nodes_all_cards_send() -> None:
    """One ring uses one card of a node; channels use all that the members reach, and where members share one, it counts once."""
    a100 = load_machine("a100", 16)
    around = collective(a100, range(16))
    assert isinstance(around, Channels) and around.nodes == 2
    own = a100.collectives
    assert around.network_bytes_per_second == pytest.approx(8 * 25 * GB * own.network_share)
    assert ring(a100, range(16)).seconds(ring_bytes(16, 1 << 28)) > 5 * around.seconds(ring_bytes(16, 1 << 28))
    pair = collective(a100, (3, 11))
    assert pair.network_bytes_per_second == pytest.approx(25 * GB * own.network_share) and pair.bytes_per_second == inf
    # Every card goes both ways, and what the collective occupies has a name.
    links = collective_links(a100, range(16))
    assert {16 + number for number in links} == set(around.resources)
    assert sum("->network" in link.name for link in links.values()) == 16
    shared = replace(a100, nodes=tuple(
        replace(node, switches=(*node.switches, "pcie"), wires=(
            node.wires[0], replace(node.wires[1], between=("gpu*", "pcie")),
            replace(node.wires[1], between=("pcie", "network"), bytes_per_second=20 * GB),
        )) for node in a100.nodes
    ))  # fmt: skip
    assert collective(shared, range(16)).network_bytes_per_second == pytest.approx(20 * GB * own.network_share)


def test_trees_between_many_nodes_save_steps() -> None:
    large = load_machine("a100", 512)
    group = range(0, 512, 8)
    around, own = collective(large, group), large.collectives
    small = around.seconds(ring_bytes(64, 4096))
    assert small < own.start_seconds + 2 * 7 * own.network_step_seconds
    sizes = [around.seconds(ring_bytes(64, 1 << k)) for k in range(31)]
    assert sizes == sorted(sizes)
    assert around.seconds(ring_bytes(64, 1 << 33)) > 2 * 63 / 64 * (1 << 33) / around.network_bytes_per_second


@pytest.mark.parametrize(
    "machine, members, low, high",
    [
        ("a100", range(8), 220, 240),  # nccl-tests of DGX A100: 230 to 235
        ("a100", range(2), 190, 205),
        ("h100", range(8), 350, 380),  # NCCL's rings: 370 (nccl-tests issue 212)
        ("a100", range(16), 150, 180),
    ],
)
def test_the_bus_bandwidth_of_long_arrays(machine: str, members: range, low: float, high: float) -> None:
    assert low < bus(machine, members, 1 << 33) / GB < high


def test_machines_that_do_not_say_keep_their_rings() -> None:
    for name in ("k80", "p100", "host"):
        machine = load_machine(name, 4)
        assert machine.collectives is None and isinstance(collective(machine, range(4)), Ring)
    silent = replace(load_machine("a100", 16), collectives=None)
    assert collective(silent, range(16)) == ring(silent, range(16))
