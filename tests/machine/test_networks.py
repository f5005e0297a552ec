"""Networks with levels and rails: routes and collectives by hand."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from random import Random

import pytest

from taskflow.machine import (
    Cluster,
    Level,
    Network,
    PartOfMachine,
    collective,
    exchange,
    load_machine,
    ring_bytes,
    save,
    transfer_seconds,
)
from taskflow.machine.ring import _by_messages, _pairs, all_pairs

GB = 1e9


def h100(nodes: int, *levels: Level, rails: bool = False) -> Cluster:
    return replace(load_machine("h100", 8 * nodes), network=Network(levels, rails))


def test_messages_that_leave_a_switch_have_its_share() -> None:
    tree = h100(16, Level(4, 0.5, 1e-6), Level(8, 0.25, 2e-6))
    plain = load_machine("h100", 128)
    for target, share, late in ((1, 1, 0), (8, 1, 0), (31, 1, 0), (32, 0.5, 1e-6), (63, 0.5, 1e-6), (64, 0.25, 3e-6)):
        one, other = tree.route(0, target), plain.route(0, target)
        assert [link.number for link in one] == [link.number for link in other]
        assert min(link.bytes_per_second for link in one) == share * min(link.bytes_per_second for link in other)
        assert transfer_seconds(one, 0) == pytest.approx(transfer_seconds(other, 0) + late)
    assert tree.way_out(3) == plain.way_out(3), "the cards are the same"
    assert PartOfMachine(tree, (0, 64)).route(0, 1) == tree.route(0, 64)


def test_a_ring_leaves_a_switch_once_a_strided_group_always() -> None:
    """Of a ring through 4 nodes below each switch a quarter leaves it, which half of the bandwidth allows."""
    plain, tree = load_machine("h100", 64), h100(8, Level(4, 0.5))
    everyone, apart, long = range(64), (0, 32), 1 << 34

    def seconds(machine: Cluster, members: tuple[int, ...] | range, halves: int) -> float:
        return collective(machine, members).seconds(ring_bytes(len(members), long, halves), halves)

    for halves in (1, 2):
        assert seconds(tree, everyone, halves) == seconds(plain, everyone, halves)
        assert seconds(tree, range(32), halves) == seconds(plain, range(32), halves)
        assert seconds(tree, apart, halves) == pytest.approx(2 * seconds(plain, apart, halves), rel=0.01)
    narrow = h100(8, Level(4, 0.1))
    assert seconds(narrow, everyone, 1) == pytest.approx(seconds(plain, everyone, 1) / 0.4, rel=0.3)
    far = h100(8, Level(4, 1.0, 1e-3))
    assert seconds(far, everyone, 1) == pytest.approx(seconds(plain, everyone, 1) + 2e-3)
    assert seconds(far, apart, 1) == pytest.approx(seconds(plain, apart, 1) + 1e-3)
    small = ring_bytes(64, 1024)
    assert collective(far, everyone).seconds(small) == pytest.approx(collective(plain, everyone).seconds(small) + 2e-3)


def test_an_all_to_all_has_the_share_for_what_leaves() -> None:
    plain, tree = load_machine("h100", 64), h100(8, Level(4, 0.25))
    one, other = exchange(plain, range(64)), exchange(tree, range(64))
    # Each card carries 56 messages at 50 GB/s, of which 32 leave the switch at 12.5.
    assert one.pairs.bytes_per_second == pytest.approx(64 * 63 * 50 * GB / 56)
    assert other.pairs.bytes_per_second == pytest.approx(64 * 63 * 12.5 * GB / 32)
    assert exchange(tree, range(32)) == exchange(h100(8), range(32))


@pytest.mark.parametrize("seed", range(4))
def test_all_pairs_node_by_node_are_those_message_by_message(seed: int) -> None:
    random = Random(f"levels {seed}")
    for _ in range(12):
        levels = (Level(2, random.choice((1.0, 0.5, 0.3)), 1e-6), Level(4, random.choice((0.5, 0.2)), 2e-6))
        machine = h100(8, *levels)
        members = random.sample(range(64), random.randrange(2, 20))
        found, plain = all_pairs(machine, members), _by_messages(machine, members, list(_pairs(members, len(members))))
        assert found.bytes_per_second == pytest.approx(plain.bytes_per_second)
        if len({p // 8 for p in members}) > 1:
            assert set(found.resources) == set(plain.resources)


def test_rails_cross_the_sender_s_node_first() -> None:
    rails = h100(2, rails=True)
    assert rails.route(3, 11) == load_machine("h100", 16).route(3, 11)
    assert [name.split(".")[1] for name in rails.link_names(3, 13)] == [
        "gpu3->nvswitch", "nvswitch->gpu5", "gpu5->network", "network->gpu5",
    ]  # fmt: skip
    assert {link.number for link in rails.route(3, 13)} & {link.number for link in rails.route(5, 13)}
    # The card of the receiver's place may be that of a processor that is not used.
    part = rails.prefix(12)
    assert [name.split(".")[1] for name in part.link_names(9, 6)][-2:] == ["gpu6->network", "network->gpu6"]
    assert rails.alike_routes((0, 8), (11, 3)) is None and rails.alike_routes((0, 8), (8, 0)) is not None
    assert exchange(rails, range(16)).pairs.bytes_per_second == exchange(h100(2), range(16)).pairs.bytes_per_second


def test_replicas_are_alike_only_if_the_same_levels_are_left() -> None:
    tree = h100(8, Level(4, 0.5))
    assert tree.alike_routes((0, 16), (8, 24)) is not None
    assert tree.alike_routes((0, 24), (8, 32)) is None


def test_files(tmp_path: Path) -> None:
    tree = h100(4, Level(2, 0.5, 1e-6, "a fat tree"), Level(4, 0.25), rails=True)
    save(tree, tmp_path / "m.json")
    assert load_machine(tmp_path / "m.json") == tree
    content = json.loads((tmp_path / "m.json").read_text())
    assert content["network"]["levels"][0] == {"nodes": 2, "share": 0.5, "latency_seconds": 1e-6, "source": "a fat tree"}
    content["network"]["levels"][1]["nodes"] = 3
    (tmp_path / "m.json").write_text(json.dumps(content))
    with pytest.raises(ValueError, match=r"m.json: network: a level must have a multiple of .*, got 3 above 2"):
        load_machine(tmp_path / "m.json")
