"""Collectives of a library: worked out by hand, and held against what libraries are known to reach."""

from __future__ import annotations

from dataclasses import replace
from math import inf, sqrt

import pytest

from taskflow.machine import (
    Channels,
    Collectives,
    Curve,
    Ring,
    SwitchSums,
    collective,
    collective_links,
    exchange,
    load_machine,
    ring,
    ring_bytes,
)

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
    assert around.bytes_per_second == pytest.approx(300 * GB)
    nbytes = 1 << 24
    for halves, curve in ((2, own.all_reduce), (1, own.halves)):
        assert curve is not None
        full = halves * (0.75 * nbytes / (300 * GB * curve.link_share) + nbytes / 2 / curve.copy_bytes_per_second)
        steps = own.start_seconds + curve.start_seconds + halves * 3 * curve.step_seconds
        found = around.seconds(ring_bytes(4, nbytes, halves), halves)
        assert found == pytest.approx(steps + full + sqrt(curve.ramp_seconds * full))
    assert around.resources == ring(a100, range(4)).resources
    curve = own.all_to_all
    assert curve is not None
    full = 0.75 * nbytes / (300 * GB * curve.link_share) + nbytes / 2 / curve.copy_bytes_per_second
    steps = own.start_seconds + curve.start_seconds + 3 * curve.step_seconds
    assert exchange(a100, range(4)).seconds(3 * nbytes, 0) == pytest.approx(steps + full + sqrt(curve.ramp_seconds * full))


def test_of_two_protocols_the_faster_one_is_used() -> None:
    """The one for short arrays gets a tenth of the link and no ramp, the other one starts 5 microseconds later."""
    a100 = load_machine("a100", 8)
    assert a100.collectives is not None
    curve = Curve(6e-6, 0.9, 1e-6, long_seconds=5e-6, short_share=0.1)
    library = replace(a100.collectives, start_seconds=0.0, halves=curve, all_to_all=curve, all_reduce=curve, switch=None)
    machine, members, link = replace(a100, collectives=library), range(4), 300 * GB
    for nbytes in (1 << 10, 1 << 16, 1 << 18, 1 << 22, 1 << 28):
        sent = 0.75 * nbytes
        for halves in (1, 2):
            body = min(halves * sent / (0.1 * link), 5e-6 + halves * sent / (0.9 * link))
            found = collective(machine, members).seconds(ring_bytes(4, nbytes, halves), halves)
            assert found == pytest.approx(6e-6 + halves * 3e-6 + body)
        body = min(sent / (0.1 * link), 5e-6 + sent / (0.9 * link))
        assert exchange(machine, members).seconds(3 * nbytes, 0) == pytest.approx(6e-6 + 3e-6 + body)


def test_a_library_without_curves_has_six_figures_for_all() -> None:
    plain = Collectives(3e-5, 2e-6, 1e-5, 0.9, 0.8, 1e12)
    machine = replace(load_machine("a100", 8), collectives=plain)
    nbytes, link = 1 << 24, 300 * GB * 0.9
    around = collective(machine, range(4))
    assert around.seconds(ring_bytes(4, nbytes)) == pytest.approx(3e-5 + 6 * 2e-6 + 1.5 * nbytes / link + nbytes / 1e12)
    assert around.seconds(ring_bytes(4, nbytes, 1), 1) == pytest.approx(3e-5 + 3 * 2e-6 + 0.75 * nbytes / link + nbytes / 2e12)
    assert exchange(machine, range(4)).seconds(3 * nbytes, 0) == pytest.approx(3e-5 + 5e-6 + 0.75 * nbytes / link)


def test_the_switch_sums_for_more_than_four() -> None:
    """Each sends its array once, so that 72 take no longer than 8 (a rack of GB200: 839 GB/s at 4 GiB, ml-engineering)."""
    h100, own = load_machine("h100", 8), load_machine("h100").collectives
    assert own is not None and own.switch is not None
    nbytes, switch = 1 << 29, own.switch
    full = nbytes / (450 * GB * switch.link_share)
    by_switch = own.start_seconds + switch.start_seconds + full + sqrt(switch.ramp_seconds * full)
    assert seconds("h100", range(8), nbytes) == pytest.approx(by_switch)
    without = replace(h100, collectives=replace(own, switch=None))
    rings = [collective(without, range(n)).seconds(ring_bytes(n, nbytes)) for n in (4, 8)]
    assert rings[0] == seconds("h100", range(4), nbytes) and rings[1] > 1.1 * by_switch
    rack = load_machine("gb200")
    assert collective(rack, range(72)).seconds(ring_bytes(72, 1 << 32)) == pytest.approx(
        collective(rack, range(8)).seconds(ring_bytes(8, 1 << 32))
    )
    bus = 2 * 71 / 72 * (1 << 32) / collective(rack, range(72)).seconds(ring_bytes(72, 1 << 32))
    assert 0.95 * 839 < bus / GB < 1.05 * 839
    assert SwitchSums(9, 1e-6, 0.5).members > 8
    late = replace(h100, collectives=replace(own, switch=replace(switch, members=9)))
    assert collective(late, range(8)).seconds(ring_bytes(8, nbytes)) == rings[1]


def test_groups_on_pcie_are_slower_than_their_links() -> None:
    l40s = load_machine("l40s", 8)
    own = l40s.collectives
    assert own is not None and [one.members for one in own.at_most] == [3, 5]
    for members, rate in ((2, 31.5 * GB * own.curve(2).link_share), (4, 5.2 * GB), (8, 1.35 * GB)):
        long = 1 << 34
        assert bus("l40s", range(members), long) == pytest.approx(rate, rel=0.01)
        sent = (members - 1) * long / exchange(l40s, range(members)).seconds((members - 1) * long, 0) / members
        assert sent == pytest.approx(min(rate, 31.5 * GB * own.curve(0).link_share), rel=0.2 if members == 2 else 0.01)


@pytest.mark.parametrize("name", ["a100-pcie", "h100-pcie", "rtx-pro-6000", "rtx6000-ada", "rtx-a6000"])
def test_what_limits_one_server_s_groups_is_no_figure_of_others(name: str) -> None:
    """Where cards read each other's memory, eight exchange at the rate of their links, as two that have no bridge do."""
    assert bus(name, range(8), 1 << 34) > bus(name, (0, 2), 1 << 34)  # which copies as much and sends less
    assert bus("rtx4090", range(8), 1 << 34) == pytest.approx(1.35 * GB, rel=0.01)  # these do not


def test_meshes_have_rings_over_all_links() -> None:
    """Eight MI300X with a link to each other: 48 and 313 GB/s are measured with 2 and 8 (ml-engineering)."""
    mi300x = load_machine("mi300x", 8)
    assert collective(mi300x, range(8)).bytes_per_second == pytest.approx(7 * 64 * GB)
    assert collective(mi300x, range(2)).bytes_per_second == pytest.approx(64 * GB)
    for members, measured in ((2, 48), (8, 313)):
        assert bus("mi300x", range(members), 1 << 30) / GB == pytest.approx(measured, rel=0.08)


@pytest.mark.parametrize("cards, wide", [(50, 50), (200, 8 * 15.75)])
def test_cards_that_all_processors_share_limit_what_leaves_a_node(cards: float, wide: float) -> None:
    """Eight routes of 15.75 GB/s each to one way out: what is narrower counts, though no single route is wider than it."""
    v100 = load_machine("v100", 16)
    (node,) = v100.nodes
    links = tuple(replace(link, bytes_per_second=cards * GB) if link.between[-1] == "network" else link for link in node.wires)
    machine = replace(v100, nodes=(replace(node, wires=links),))
    assert machine.collectives is not None
    found = collective(machine, range(16))
    assert isinstance(found, Channels)
    assert found.network_bytes_per_second == pytest.approx(wide * GB * machine.collectives.network_share)


@pytest.mark.parametrize("nbytes, measured", [(1 << 20, 5.4), (16 << 20, 64), (256 << 20, 229), (16 << 30, 382)])
def test_four_nodes_of_p6_b200(nbytes: int, measured: float) -> None:
    """Bus bandwidth of all-reduces as measured there, GB/s (ml-engineering)."""
    machine = load_machine("p6-b200", 32)
    found = 2 * 31 / 32 * nbytes / collective(machine, range(32)).seconds(ring_bytes(32, nbytes))
    assert found / GB == pytest.approx(measured, rel=0.07)


@pytest.mark.parametrize("name", ["a100", "h100", "b200", "gb200", "l40s", "mi300x", "p5"])
def test_seconds_rise_and_bend_down(name: str) -> None:
    """More bytes take longer, and two halves of an array no less than the whole: bounds count on both."""
    machine = load_machine(name, 16)
    for members in (range(2), range(4), range(8), range(16)):
        for halves in (0, 1, 2):
            around = exchange(machine, members) if halves == 0 else collective(machine, members)
            sent = [around.seconds(len(members) * (1 << k), halves) for k in range(40)]
            assert sent == sorted(sent) and all(2 * half >= whole for half, whole in zip(sent, sent[1:]))


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
    assert small < own.start_seconds + own.all_reduce.start_seconds + 2 * 7 * own.network_step_seconds
    sizes = [around.seconds(ring_bytes(64, 1 << k)) for k in range(31)]
    assert sizes == sorted(sizes)
    assert around.seconds(ring_bytes(64, 1 << 33)) > 2 * 63 / 64 * (1 << 33) / around.network_bytes_per_second


@pytest.mark.parametrize(
    "machine, members, nbytes, low, high",
    [
        ("a100", range(8), 1 << 33, 220, 240),  # nccl-tests of DGX A100: 230 to 235
        ("a100", range(2), 1 << 30, 190, 205),  # vTrain's data set: 197
        ("h100", range(8), 1 << 33, 470, 490),  # sums in the switch: 480 (nccl-tests issue 212)
        ("a100", range(16), 1 << 33, 150, 180),
    ],
)
def test_the_bus_bandwidth_of_long_arrays(machine: str, members: range, nbytes: int, low: float, high: float) -> None:
    assert low < bus(machine, members, nbytes) / GB < high


def test_machines_that_do_not_say_keep_their_rings() -> None:
    for name in ("k80", "p100", "host"):
        machine = load_machine(name, 4)
        assert machine.collectives is None and isinstance(collective(machine, range(4)), Ring)
    silent = replace(load_machine("a100", 16), collectives=None)
    assert collective(silent, range(16)) == ring(silent, range(16))
