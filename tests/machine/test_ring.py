"""Rings: what a collective occupies and how long it takes, worked out by hand."""

from __future__ import annotations

from random import Random

import pytest

from taskflow.machine import Device, Link, Processor, host, load_machine, ring, ring_bytes, ring_share
from taskflow.machine.ring import _by_messages, all_pairs
from taskflow.tasks.simulate import all_reduce_seconds


class Line:
    """Three processors; 0 and 1 beside each other, both reach 2 over one slow cable that goes both ways."""

    name = "line"
    processors = tuple(Processor(i, Device("cpu", 1 << 30, (("float32", 1e9),), 1e9, 1e-6), 0) for i in range(3))

    def route(self, source: int, target: int) -> tuple[Link, ...]:
        if 2 in (source, target):
            return (Link(1, "cable", 1e8, 7e-6),)
        return (Link(0, "bus", 1e9, 2e-6),)


def test_the_link_with_most_to_carry_decides() -> None:
    around = ring(Line(), (0, 1, 2))
    # In each of 4 rounds a third of the array goes over the bus once, over the cable twice.
    assert around.resources == (3, 4) and not around.copies
    assert around.hop_seconds == pytest.approx(7e-6)
    nbytes = 3_000_000
    moved = ring_bytes(3, nbytes)
    assert moved == 4 * nbytes
    assert around.seconds(moved) == pytest.approx(4 * (7e-6 + 2 * (nbytes / 3) / 1e8))
    assert around.seconds(ring_bytes(3, nbytes, 1), 1) == pytest.approx(2 * (7e-6 + 2 * (nbytes / 3) / 1e8))


def test_small_arrays_are_summed_by_trees() -> None:
    """Of 64 processors 12 latencies, not 126; of large arrays the ring moves less. Two members are a ring and a tree alike."""
    around = ring(load_machine("k80", 64), range(64))
    hop, rate = around.hop_seconds, around.bytes_per_second
    small, large = ring_bytes(64, 4096), ring_bytes(64, 1 << 30)
    assert around.seconds(small) == pytest.approx(12 * hop + small * 64 / 63 / rate)
    assert around.seconds(small) < (126 * hop + small / rate) / 8
    assert around.seconds(large) == pytest.approx(126 * hop + large / rate)
    assert around.seconds(ring_bytes(64, 4096, 1), 1) == pytest.approx(63 * hop + small / 2 / rate)  # halves go around the ring
    sizes = [ring_bytes(64, 1 << k) for k in range(31)]
    assert [around.seconds(s) for s in sizes] == sorted(around.seconds(s) for s in sizes)
    pair = ring(load_machine("k80", 64), (0, 5))
    for nbytes in (0, 8, 1 << 20):
        assert pair.seconds(nbytes) == pytest.approx(2 * pair.hop_seconds + nbytes / pair.bytes_per_second)
    five = ring(load_machine("p100", 16), range(5))
    assert five.seconds(0) == pytest.approx(6 * five.hop_seconds)  # three rounds up, three down


def test_shares_are_all_of_it() -> None:
    for members in range(2, 9):
        for nbytes in (0, 1, 4, 1000, 1003):
            shares = [ring_share(members, place, nbytes) for place in range(members)]
            assert sum(shares) == ring_bytes(members, nbytes) and max(shares) - min(shares) <= 1


def test_processors_that_copy_add_too() -> None:
    machine = host(3)
    around = ring(machine, (0, 1, 2))
    assert around.copies and set(around.resources) >= {0, 1, 2}
    asked = []

    def within(processor: int, flops: int, nbytes: int) -> float:
        asked.append((processor, flops, nbytes))
        return 5.0 + processor

    seconds = all_reduce_seconds(machine, (0, 1, 2), ring_bytes(3, 3000), 2 * 750, within)
    # Each adds two thirds of the 750 numbers: two arrays read, one written.
    assert asked == [(p, 500, 6000) for p in range(3)]
    assert seconds == pytest.approx(7.0 + around.seconds(ring_bytes(3, 3000)))


def test_a_k80_cluster_moves_what_the_paper_says() -> None:
    """NMT's 135 M parameters on 64 K80: FACTS' 2 x 4 bytes x parameters x 63 (65.8 GB in the paper for about 131 M)."""
    assert ring_bytes(64, 4 * 135_000_000) == 2 * 4 * 135_000_000 * 63
    around = ring(load_machine("k80", 64), range(64))
    # A node's ring leaves over one network card: its rate is the ring's.
    card = min(link.bytes_per_second for link in load_machine("k80", 64).route(3, 4))
    assert around.bytes_per_second <= 64 * card


@pytest.mark.parametrize(("name", "devices"), [("a100", 32), ("h100", 20), ("a100-v100", 8), ("k80", 12), ("p100", 8)])
def test_an_all_to_all_is_that_of_all_its_messages(name: str, devices: int) -> None:
    """Found by nodes, the same to the last bit as by going through every message."""
    machine, random = load_machine(name, devices), Random(f"{name} {devices}")
    for _ in range(12):
        members = random.sample(range(devices), random.randint(2, devices))
        if random.random() < 0.5:
            members.sort()
        messages = [
            (one, members[(place + further) % len(members)])
            for further in range(1, len(members)) for place, one in enumerate(members)
        ]
        assert all_pairs(machine, members) == _by_messages(machine, members, messages)
