"""Tori of TPUs: what groups reach along axes and rings, slices by the number of chips, and plans for JAX on them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from taskflow.cli.main import main
from taskflow.machine import Slice, Torus, collective, exchange, load_machine, ring_bytes, save

LINK = 50e9
POD = Torus((16, 16), (True, True), LINK, 1e-6)
TPUS = ("tpu-v5e", "tpu-v5p", "tpu-v6e")


@pytest.mark.parametrize("places, links, hops", [
    (range(16), 2, 8),  # a ring along the last axis
    (range(0, 256, 16), 2, 8),  # and along the first
    (range(256), 4, 16),  # both axes at once
    (range(4), 1, 3),  # a line: no link leads back
    ([i + 16 * j for i in range(4) for j in range(8)], 2, 3 + 7),
    (range(0, 16, 4), 0.5, 2),  # four such groups share a ring
    (range(0, 8, 2), 0.5, 3),  # and two a line
    ([0, 1, 17], 1, 2),  # no box
    ([0, 1, 3], 1, 2),
])  # fmt: skip
def test_a_collective_goes_along_all_axes_of_its_group(places: list[int], links: float, hops: int) -> None:
    assert POD.around(places) == (links * LINK, hops)


def test_an_all_to_all_is_held_up_in_the_middle() -> None:
    """Of a ring of n a message goes n / 4 links on average, and there are 2 n links; of a line a quarter crosses the middle."""
    for count in (2, 4, 8):  # lines
        crossing = (count // 2) ** 2
        assert POD.exchanged(range(count)) == pytest.approx(LINK * count * (count - 1) / crossing)
    assert POD.exchanged(range(16)) == pytest.approx(8 * LINK * 15 / 16)
    assert POD.exchanged(range(256)) == pytest.approx(16 * 8 * LINK * 255 / 256)
    assert POD.exchanged(range(0, 16, 4)) == pytest.approx(8 * LINK * 3 / 4 / 4)


@pytest.mark.parametrize("chips, sizes, wraps, nodes", [
    (4, (2, 2), (False, False), 1), (64, (8, 8), (False, False), 1), (128, (8, 16), (False, True), 1),
    (200, (16, 16), (True, True), 1), (256, (16, 16), (True, True), 1), (512, (16, 16), (True, True), 2),
])  # fmt: skip
def test_so_many_chips_are_a_slice(chips: int, sizes: tuple[int, ...], wraps: tuple[bool, ...], nodes: int) -> None:
    machine = load_machine("tpu-v5e", chips)
    torus = machine.nodes[0].torus
    assert torus is not None and Slice(torus.sizes, torus.wraps) == Slice(sizes, wraps)
    assert len(machine.processors) == chips and machine.node_count == nodes
    assert machine.prefix(256).prefix(chips) == machine


def test_rings_of_a_machine_are_those_of_its_torus() -> None:
    """An all-gather of a ring takes as long as the bytes over both links of an axis, and half as long over two axes."""
    machine, nbytes = load_machine("tpu-v5e", 256), 1 << 30
    one, two = (collective(machine, range(count)).seconds(ring_bytes(count, nbytes, 1), 1) for count in (16, 256))
    assert one == pytest.approx(nbytes * 15 / 16 / (0.9 * 2 * LINK), rel=0.1)
    assert 0.5 < two / one < 0.6
    among = exchange(machine, range(16)).seconds(nbytes * 15)
    assert among == pytest.approx(nbytes * 16 / (8 * 0.9 * LINK), rel=0.05)
    several = load_machine("tpu-v5e", 512)
    across = collective(several, [0, 256]).seconds(ring_bytes(2, nbytes, 1), 1)
    assert across > 5 * collective(several, [0, 1]).seconds(ring_bytes(2, nbytes, 1), 1)


@pytest.mark.parametrize("name", TPUS)
def test_presets_are_their_files(name: str, tmp_path: Path) -> None:
    machine = load_machine(name)
    save(machine, tmp_path / "own.json")
    again = load_machine(tmp_path / "own.json")
    assert again == machine and again.prefix(4).nodes[0].torus is not None
    (node,) = machine.nodes
    assert node.torus is not None and node.torus.source and node.torus.bytes_per_second in (50e9, 100e9)
    (kind,) = machine.kinds
    assert kind.program is not None and kind.program.name == "jax" and kind.source


def test_what_a_torus_file_must_say(tmp_path: Path) -> None:
    save(load_machine("tpu-v5e", 16), tmp_path / "own.json")
    content = json.loads((tmp_path / "own.json").read_text())
    for change, said in (({"sizes": [4, 2]}, "a torus of 8 chips, but 16 processors"), ({"wraps": [True]}, "'wraps' for each")):
        wrong = json.loads(json.dumps(content))
        wrong["nodes"][0]["torus"] |= change
        (tmp_path / "wrong.json").write_text(json.dumps(wrong))
        with pytest.raises(ValueError, match=said):
            load_machine(tmp_path / "wrong.json")


def test_a_plan_for_jax_is_found_and_written(tmp_path: Path) -> None:
    plan, script = tmp_path / "plan.json", tmp_path / "plan.py"
    sizes = ["--set", "layers=2", "--set", "hidden=512", "--set", "inner=1024", "--set", "heads=8", "--set", "key_heads=8",
             "--set", "vocabulary=1024", "--set", "steps=128"]  # fmt: skip
    for line in (
        ["search", "Llama", *sizes, "-m", "tpu-v5e", "-n", "8", "--rule", "adam", "--dtype", "bf16", "--batch", "16", "--for",
         "jax", "--budget", "20p", "--out", str(plan), "--quiet"],
        ["simulate", "Llama", *sizes, "-m", "tpu-v5e", "-n", "8", "--rule", "adam", "--dtype", "bf16", "--batch", "16",
         "--strategy", "t4 d2 mb2 zero3"],
        ["export", str(plan), "--to", "jax", "--out", str(script)],
    ):  # fmt: skip
        done = CliRunner().invoke(main, line)
        assert done.exit_code == 0, done.output
    assert "on 8 devices" in script.read_text()
