"""Described machines: routes over shared links, prefixes, any number of nodes."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from taskflow.machine import (
    Cluster,
    Device,
    Group,
    NodeTemplate,
    Wire,
    host,
    load_machine,
    preset_names,
    save,
    transfer_seconds,
)
from taskflow.regions import Rect
from taskflow.tasks.lower.emit import Emitter
from taskflow.tasks.simulate import roofline, simulate

GIB = 1 << 30
CLOUDS = (
    "a2-highgpu", "a2-ultragpu", "a3-high", "a3-mega", "a3-ultra", "a4-highgpu", "g4dn", "g5", "g6", "g6e", "nd-a100-v4",
    "nd-h100-v5", "nd-h200-v5", "nd-mi300x-v5", "ndm-a100-v4", "p3", "p3dn", "p4d", "p4de", "p5", "p5en", "p6-b200",
)  # fmt: skip
ON_PCIE = (
    "a100-pcie", "a10g", "h100-pcie", "l4", "l40s", "rtx-a6000", "rtx-pro-6000", "rtx3090", "rtx4090", "rtx5090", "rtx6000-ada",
    "t4",
)  # fmt: skip
BOUGHT = (
    "a100", "a800", "b200", "b300", "gb200", "gb300", "gh200", "h100", "h20", "h200", "h800", "mi250x", "mi300x", "mi325x",
    "mi355x", "superpod-h100", "v100", *ON_PCIE,
)  # fmt: skip
TPUS = ("tpu-v5e", "tpu-v5p", "tpu-v6e")
CLUSTERS = (*BOUGHT, *CLOUDS, *TPUS, "a100-v100", "k80", "k80-peak", "p100", "p100-peak")


def hops(machine: Cluster, source: int, target: int) -> list[str]:
    return [name.split(".")[1].replace("->", " ").split()[1] for name in machine.link_names(source, target)]


def test_presets_are_what_the_paper_says() -> None:
    assert {*CLUSTERS, "host", "this", "this-gpu"} == set(preset_names())
    k80, p100 = load_machine("k80"), load_machine("P100")
    assert (len(k80.processors), k80.node_count) == (64, 16)
    assert (len(p100.processors), p100.node_count) == (16, 4)
    assert str(k80) == "k80: 64 x k80 on 16 nodes"
    assert [p.node for p in k80.processors] == [i // 4 for i in range(64)]
    for name in CLUSTERS:
        machine = load_machine(name)
        assert machine.name == name
        assert machine.source and all(d.source for d in machine.kinds)
        assert all(w.source for n in machine.nodes for w in n.wires)
    # Effective rates are below the vendor's, for each kind of route.
    for one, other in ((0, 1), (0, 2), (0, 4)):
        for name in ("k80", "p100"):
            slow, fast = (transfer_seconds(load_machine(n).route(one, other), GIB) for n in (name, f"{name}-peak"))
            assert slow > 1.4 * fast
    assert transfer_seconds(k80.route(0, 2), 4 * GIB) == pytest.approx(1, rel=1e-4)
    assert transfer_seconds(k80.route(0, 4), GIB) == pytest.approx(1, rel=1e-4)


@pytest.mark.parametrize("name, cards", [
    ("a100", 200), ("h100", 400), ("h200", 400), ("gh200", 50), ("b200", 400), ("b300", 800), ("gb200", 72 * 50),
    ("gb300", 72 * 100),
    ("mi300x", 400), ("mi325x", 400), ("mi355x", 400), ("l40s", 50), ("p4d", 50), ("p5", 400), ("p5en", 400), ("p6-b200", 400),
    ("a3-high", 100), ("a3-mega", 200), ("a3-ultra", 400), ("nd-h100-v5", 400), ("nd-mi300x-v5", 400),
    ("tpu-v5e", 256 * 3.125), ("tpu-v6e", 256 * 12.5),
    ("v100", 50), ("p3", 3.125), ("p3dn", 12.5), ("mi250x", 100), ("a10g", 12.5), ("l4", 12.5), ("t4", 12.5), ("rtx4090", 12.5),
    ("a100-pcie", 25), ("h100-pcie", 50), ("rtx-pro-6000", 50), ("a800", 200), ("h800", 400), ("h20", 400), ("a2-highgpu", 12.5),
    ("a2-ultragpu", 12.5), ("p4de", 50), ("a4-highgpu", 400), ("nd-a100-v4", 200), ("ndm-a100-v4", 200), ("nd-h200-v5", 400),
])  # fmt: skip
def test_what_leaves_a_node(name: str, cards: float) -> None:
    """GB/s of all cards of a node together, as vendors say it (docs/guide/machines.md), and one machine more of a kind."""
    size = max(node.count for node in load_machine(name).nodes)
    machine = load_machine(name, 2 * size)
    ways = {link.number: link.bytes_per_second for p in range(size) for link in machine.way_out(p)[-1:]}
    assert machine.node_count == 2 and sum(ways.values()) == pytest.approx(cards * 1e9)


def test_presets_that_begin_as_another() -> None:
    """A cloud's node is a device and its own network; a device of the same chip differs in its memory."""
    h100, p5, h200, p5en = (load_machine(name) for name in ("h100", "p5", "h200", "p5en"))
    assert p5.kinds == h100.kinds and p5en.kinds == h200.kinds
    (one,), (other,) = h100.kinds, h200.kinds
    assert (other.flops_per_second, other.efficiency, other.program) == (one.flops_per_second, one.efficiency, one.program)
    assert (one.memory_bytes, other.memory_bytes) == (80e9, 141e9) and other.memory_bytes_per_second == 4.8e12
    assert p5.collectives is not None and h100.collectives is not None
    assert p5.collectives.switch == h100.collectives.switch
    assert p5.collectives.network_step_seconds == 3.5e-5 and h100.collectives.network_step_seconds == 1.2e-5


def test_links_of_other_makes_of_a_chip() -> None:
    """GB/s each way between two GPUs of a node: as exported to China, in a DGX-1's cube, over bridges, and through the host."""
    for name, pair, rate in (
        ("a800", (0, 1), 200), ("h800", (0, 7), 200), ("h20", (0, 7), 450), ("v100", (0, 3), 50), ("v100", (0, 1), 25),
        ("v100", (0, 5), 15.75), ("mi250x", (0, 1), 200), ("mi250x", (0, 2), 50), ("rtx3090", (0, 1), 56.25),
        ("rtx3090", (1, 2), 15.75), ("rtx4090", (0, 1), 15.75), ("rtx6000-ada", (0, 1), 31.5), ("rtx-pro-6000", (0, 1), 63),
    ):  # fmt: skip
        assert min(link.bytes_per_second for link in load_machine(name).route(*pair)) == rate * 1e9, (name, pair)
    links = [sum(link.bytes_per_second for b in range(8) for link in load_machine("v100").route(a, b)[:1] if a != b
                 and "pcie" not in link.name) for a in range(8)]  # fmt: skip
    assert links == [150e9] * 8  # six NVLinks each
    h800, h100 = load_machine("h800", 1).kinds[0], load_machine("h100", 1).kinds[0]
    assert h800.rate("bfloat16") == h100.rate("bfloat16") and h800.rate("float64") == 1e12


def test_a_chip_that_nobody_measured_reaches_what_its_nearest_one_does() -> None:
    """The best product of the A100, the L40S, the H100, the B200 and the MI300X, as a part of their peak."""
    for share, names in (
        (271 / 312, ("a10g", "rtx3090", "rtx-a6000", "a100-pcie")), (265 / 362, ("rtx4090",)),
        (794 / 989, ("h100-pcie",)), (1745 / 2250, ("rtx5090", "rtx-pro-6000")), (668 / 1307.4, ("mi250x",)),
        (0.75, ("v100", "t4")),
    ):  # fmt: skip
        for name in names:
            (kind,) = load_machine(name, 1).kinds
            assert kind.reaches("contraction", 0.75) == pytest.approx(share, abs=1e-3), name
            assert kind.program is not None and "measured" in kind.source, name


@pytest.mark.parametrize("name, as_of", [
    ("l4", "l40s"), ("rtx6000-ada", "l40s"), ("h20", "h100"), ("h800", "h100"), ("a800", "a100"),
])  # fmt: skip
def test_products_of_a_chip_like_a_measured_one_reach_its_part_of_the_peak(name: str, as_of: str) -> None:
    (one,), (other,) = load_machine(name, 1).kinds, load_machine(as_of, 1).kinds
    assert one.matrix_products == other.matrix_products and one.matrix_products
    assert one.rate("bfloat16") <= 1.01 * other.rate("bfloat16") and one.program == other.program


def test_k80_routes() -> None:
    k80 = load_machine("k80")
    assert k80.route(5, 5) == ()
    assert hops(k80, 0, 1) == ["board0", "gpu1"]  # neighbours: over the switch of their own
    assert hops(k80, 3, 2) == ["board1", "gpu2"]
    assert hops(k80, 1, 2) == ["board0", "pcie", "board1", "gpu2"]
    assert hops(k80, 0, 63) == ["board0", "pcie", "network", "pcie", "board1", "gpu3"]
    names = k80.link_names(0, 63)
    assert [name.split(".")[0] for name in names] == ["node0"] * 3 + ["node15"] * 3
    there, back = k80.route(0, 63), k80.route(63, 0)
    assert not {link.number for link in there} & {link.number for link in back}  # full duplex
    assert all(link.number < k80.link_count for link in (*there, *back))
    with pytest.raises(IndexError, match="0 to 63"):
        k80.route(0, 64)


def test_links_are_numbered_apart() -> None:
    for machine in (load_machine("p100"), load_machine("h100", 12), host(5)):
        names: dict[int, str] = {}
        count = len(machine.processors)
        for a in range(count):
            for b in range(count):
                for link in machine.route(a, b):
                    assert names.setdefault(link.number, link.name) == link.name
        assert len(set(names.values())) == len(names)


def test_gpus_of_a_p100_node_have_links_of_their_own() -> None:
    p100 = load_machine("p100")
    assert all(len(p100.route(a, b)) == 1 for a in range(4) for b in range(4) if a != b)
    assert hops(p100, 2, 9) == ["pcie", "network", "pcie", "gpu1"]
    nic = {link.number for link in p100.route(0, 4)} & {link.number for link in p100.route(1, 8)}
    assert len(nic) == 1


def test_each_gpu_of_a_dgx_has_its_own_card() -> None:
    h100 = load_machine("h100")
    assert hops(h100, 0, 7) == ["nvswitch", "gpu7"]
    assert hops(h100, 0, 8) == ["network", "gpu0"]
    assert not {x.number for x in h100.route(0, 8)} & {x.number for x in h100.route(1, 9)}


def test_products_multiply_in_what_is_behind_the_name(tmp_path: Path) -> None:
    h100 = load_machine("h100", 16)
    assert load_machine("h100:fp32", 16) == h100 and h100.kinds[0].product_rate("float32") == h100.kinds[0].rate() == 66.9e12
    bf16 = load_machine("H100:bf16", 16)
    device = bf16.processors[3].device
    assert (bf16.name, device.products, len(bf16.processors)) == ("h100:bf16", "bfloat16", 16)
    assert (device.rate(), device.product_rate("float32"), device.product_rate("float64")) == (66.9e12, 989.4e12, 33.5e12)
    assert load_machine("h200:tf32").kinds[0].product_rate(np.dtype("float32")) == 494.7e12
    save(bf16, tmp_path / "mine.json")
    assert load_machine(tmp_path / "mine.json") == bf16
    save(h100, tmp_path / "plain.json")
    assert load_machine(f"{tmp_path / 'plain.json'}:bf16", 8) == load_machine("h100:bf16", 8)
    with pytest.raises(ValueError, match="machine p100: p100 has no rate for bfloat16; it has float16, float32, float64"):
        load_machine("p100:bf16")
    with pytest.raises(ValueError, match=r"machine h100:fp8: no precision 'fp8' of products; use :tf32 or :bf16"):
        load_machine("h100:fp8")
    with pytest.raises(ValueError, match="precision must be fp32, tf32, bf16, got 'int8'"):
        h100.multiplying_in("int8")


@pytest.mark.parametrize("name", CLUSTERS)
def test_prefix(name: str) -> None:
    whole = load_machine(name)
    for devices in (1, 3, 4, min(9, len(whole.processors))):
        part = load_machine(name, devices)
        assert len(part.processors) == devices
        assert part.processors == whole.processors[:devices]
        assert part.route(0, devices - 1) == whole.route(0, devices - 1)
    with pytest.raises(ValueError, match="devices must be 1 or more, got 0"):
        load_machine(name, 0)


def test_more_nodes_of_a_machine_that_is_sold_by_the_node() -> None:
    machine = load_machine("h200", 1024)
    assert (len(machine.processors), machine.node_count) == (1024, 128)
    assert load_machine("h200", 1021).node_count == 128
    assert transfer_seconds(machine.route(3, 1000), 0) < 1e-5
    with pytest.raises(ValueError, match="k80: has 64 processors, 65 asked for"):
        load_machine("k80", 65)


def test_host() -> None:
    machine = host(3)
    (link,) = machine.route(2, 0)
    assert link.occupies_endpoints
    assert (host(1).route(0, 0), len(load_machine("this", 5).processors)) == ((), 5)
    assert not any(k.occupies_endpoints for k in load_machine("k80").route(0, 9))
    with pytest.raises(ValueError, match="at least 1 processor"):
        host(0)


def test_fewest_hops_then_bandwidth() -> None:
    device = Device("d", 1, (("float32", 1.0),), 1.0, 0.0)

    def machine(*wires: Wire) -> Cluster:
        node = NodeTemplate("n", (Group("p", "d", 3),), ("slow", "fast", "far"), wires)
        return Cluster("m", (device,), (node,), (("n", 1),))

    both = (Wire(("p*", "slow"), 1.0, 0.1), Wire(("p*", "fast"), 2.0, 0.3))
    assert hops(machine(*both), 0, 1) == ["fast", "p1"]
    assert hops(machine(*reversed(both)), 0, 1) == ["fast", "p1"]
    direct = machine(*both, Wire(("p0", "p1"), 0.5, 0.5))
    assert hops(direct, 0, 1) == ["p1"]
    assert hops(direct, 0, 2) == ["fast", "p2"]  # never through processor 1
    equal = machine(Wire(("p*", "slow"), 1.0, 0.1), Wire(("p*", "fast"), 1.0, 0.1))
    assert hops(equal, 0, 1) == ["slow", "p1"]  # the one declared first
    # Behind the narrow link to p1 both ways are equally wide, so latency decides, though more fits the way over "fast".
    narrow = machine(
        Wire(("p0", "slow"), 3.0, 0.1), Wire(("p0", "fast"), 5.0, 0.4), Wire(("slow", "far"), 3.0, 0.1),
        Wire(("fast", "far"), 5.0, 0.1), Wire(("far", "p[12]"), 2.0, 0.1),
    )
    assert hops(narrow, 0, 1) == ["slow", "far", "p1"] and hops(narrow, 1, 0) == ["far", "slow", "p0"]
    half = machine(Wire(("p*", "slow"), 1.0, 0.1, full_duplex=False))
    assert half.route(0, 1) == tuple(reversed(half.route(1, 0)))


def makespan(machine: Cluster, *copies: tuple[int, int]) -> float:
    """Seconds until copies of 1 GiB, all ready at once, have arrived."""
    emit, rect = Emitter(len(machine.processors)), Rect((0,), (GIB // 4,))
    for number, (source, target) in enumerate(copies):
        give, take = (emit.buffer(f"{number}", rect, p, np.dtype(np.float32)) for p in (source, target))
        emit.transfer(f"{number}", emit.whole(give), emit.whole(take))
    return simulate(emit.graph, machine, roofline(machine)).makespan


def test_transfers_that_share_a_link_wait_for_each_other() -> None:
    k80 = load_machine("k80")
    alone = makespan(k80, (0, 4))
    assert makespan(k80, (0, 4), (3, 8)) == pytest.approx(2 * alone)  # the card of node 0, outwards
    assert makespan(k80, (0, 8), (4, 9)) == pytest.approx(2 * alone)  # the card of node 2, inwards
    assert makespan(k80, (0, 4), (4, 0)) == pytest.approx(alone)  # the two directions
    assert makespan(k80, (0, 4), (8, 12)) == pytest.approx(alone)  # other nodes
    within = makespan(k80, (0, 2))
    assert makespan(k80, (0, 2), (1, 3)) == pytest.approx(2 * within)  # the switch of both boards
    assert makespan(k80, (0, 1), (2, 3)) == pytest.approx(makespan(k80, (0, 1)))
    peak = load_machine("h100")
    assert makespan(peak, (0, 8), (1, 9)) == pytest.approx(makespan(peak, (0, 8)))
