"""Machine files: what is written is read back, and whatever is wrong is said."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from taskflow.machine import host, load_machine, preset_names, save

GOOD: dict[str, Any] = {
    "format": "taskflow-machine",
    "version": 1,
    "name": "small",
    "devices": [
        {
            "kind": "gpu", "memory_bytes": 1000, "flops_per_second": {"float32": 1e12}, "memory_bytes_per_second": 1e11,
            "launch_seconds": 0,
        }
    ],
    "nodes": [
        {
            "name": "box",
            "processors": [{"name": "gpu", "device": "gpu", "count": 2}],
            "switches": ["switch"],
            "links": [
                {"between": ["gpu*", "switch"], "bytes_per_second": 1e9, "latency_seconds": 1e-6},
                {"between": ["switch", "network"], "bytes_per_second": 1e8, "latency_seconds": 0, "duplex": "half"},
            ],
        }
    ],
    "layout": [{"node": "box", "count": 2}],
}


@pytest.mark.parametrize("name", preset_names())
@pytest.mark.parametrize("devices", [None, 3])
def test_round_trip(name: str, devices: int | None, tmp_path: Path) -> None:
    machine = load_machine(name, devices)
    save(machine, tmp_path / "machine.json")
    again = load_machine(tmp_path / "machine.json")
    assert again == machine
    assert again.processors == machine.processors
    count = len(machine.processors)
    assert all(again.route(0, p) == machine.route(0, p) for p in range(count))
    assert [path.name for path in tmp_path.iterdir()] == ["machine.json"]


def load(content: object, tmp_path: Path) -> Any:
    path = tmp_path / "m.json"
    path.write_text(content if isinstance(content, str) else json.dumps(content))
    return load_machine(path)


def test_a_file_by_hand(tmp_path: Path) -> None:
    machine = load(GOOD, tmp_path)
    assert str(machine) == "small: 4 x gpu on 2 nodes"
    assert machine.link_names(0, 2) == (
        "node0.gpu0->switch", "node0.switch-network", "node1.switch-network", "node1.switch->gpu0",
    )  # fmt: skip
    assert set(machine.route(0, 2)) & set(machine.route(3, 1)) == set(machine.route(0, 2)[1:3])  # half duplex
    assert len(load_machine(tmp_path / "m.json", devices=3).processors) == 3


def edit(*path: Any, to: Any = None, drop: bool = False) -> Callable[[dict[str, Any]], None]:
    def change(content: Any) -> None:
        for step in path[:-1]:
            content = content[step]
        if drop:
            del content[path[-1]]
        elif path[-1] == "+":
            content.append(to)
        else:
            content[path[-1]] = to

    return change


DEVICE, NODE, LINK = ("devices", 0), ("nodes", 0), ("nodes", 0, "links", 0)
WRONG = [
    (edit("format", to="other"), "not a machine file"),
    (edit("version", to=2), "version 2 of the format; this taskflow reads 1"),
    (edit("name", drop=True), "m.json: 'name' is missing"),
    (edit("name", to=""), "name: must be a text that is not empty, got ''"),
    (edit("colour", to=1), "m.json: unknown key 'colour'; it may have 'format'"),
    (edit("devices", to={}), "devices: must be a list, got {}"),
    (edit("devices", "+", to=3), r"devices\[1\]: must be an object \{...\}, got 3"),
    (edit("devices", "+", to=GOOD["devices"][0]), "device 'gpu' declared twice"),
    (edit(*DEVICE, "memory", to=1), r"devices\[0\]: unknown key 'memory'; did you mean 'memory_bytes'\?"),
    (edit(*DEVICE, "memory_bytes", to=1.5), r"devices\[0\].memory_bytes: must be an integer from 1 to 2..62, got 1.5"),
    (edit(*DEVICE, "memory_bytes", to=-1), r"devices\[0\].memory_bytes: must be an integer from 1 to 2..62, got -1"),
    (edit(*DEVICE, "memory_bytes_per_second", to=0), r"memory_bytes_per_second: must be a number from 1e-100 to 1e\+100, got 0"),
    (edit(*DEVICE, "memory_bytes_per_second", to="fast"),
     r"memory_bytes_per_second: must be a number from 1e-100 to 1e\+100, got 'fast'"),
    (edit(*DEVICE, "launch_seconds", to=-1), r"launch_seconds: must be a number from 0 to 1e\+100, got -1"),
    (edit(*DEVICE, "flops_per_second", to=1e12), r"flops_per_second: must be an object \{...\}, got 1000000000000.0"),
    (edit(*DEVICE, "flops_per_second", to={"float64": 1}), "must have a rate for 'float32'"),
    (edit(*DEVICE, "flops_per_second", "float16", to=float("nan")), "flops_per_second.float16: must be a finite number, got nan"),
    (edit(*DEVICE, "products", to="bfloat16"), "'products' needs a rate for 'bfloat16' in 'flops_per_second'"),
    (edit(*DEVICE, "products", to="float16"), "products: must be 'bfloat16', 'float32' or 'tf32', got 'float16'"),
    (edit(*DEVICE, "efficiency", to={"magic": 0.5}),
     "efficiency.magic: the key must be 'contraction', 'convolution', 'memory' or 'recurrent'"),
    (edit(*DEVICE, "efficiency", to={"memory": 1.5}), "efficiency.memory: must be a number from 1e-100 to 1, got 1.5"),
    (edit("nodes", "+", to=GOOD["nodes"][0]), "node 'box' declared twice"),
    (edit(*NODE, "processors", to=[]), r"nodes\[0\].processors: must be a list that is not empty"),
    (edit(*NODE, "processors", 0, "count", to=0), r"nodes\[0\].processors\[0\].count: must be an integer from 1 to 2..62, got 0"),
    (edit(*NODE, "processors", 0, "count", to=True), "count: must be an integer from 1 to 2..62, got true"),
    (edit(*NODE, "processors", 0, "device", to="tpu"), "device 'tpu' is used but not declared; declared are 'gpu'"),
    (edit(*NODE, "processors", "+", to={"name": "gpu", "device": "gpu"}), "'gpu0' declared twice"),
    (edit(*NODE, "switches", to=["a", "a"]), "'a' declared twice"),
    (edit(*NODE, "switches", to=["network"]), "'network' declared twice"),
    (edit(*NODE, "switches", to="switch"), "switches: must be a list, got 'switch'"),
    (edit(*LINK, "bytes_per_second", drop=True), r"nodes\[0\].links\[0\]: 'bytes_per_second' is missing"),
    (edit(*LINK, "bytes_per_second", to=-5), r"links\[0\].bytes_per_second: must be a number from 1e-100 to 1e\+100, got -5"),
    (edit(*LINK, "latency_seconds", to=float("inf")), "latency_seconds: must be a finite number, got inf"),
    (edit(*LINK, "duplex", to="both"), "duplex: must be 'full' or 'half', got 'both'"),
    (edit(*LINK, "occupies_endpoints", to=1), "occupies_endpoints: must be true or false or 'receiver' or 'sender', got 1"),
    (edit(*LINK, "occupies_endpoints", to="both"), "must be true or false or 'receiver' or 'sender', got 'both'"),
    (edit(*LINK, "between", to=["gpu*"]), "between: must be a list of 2, got"),
    (edit(*LINK, "between", to=["gpu9", "switch"]), "no processor or switch 'gpu9'; there are gpu0, gpu1, switch"),
    (edit(*LINK, "between", to=["switch", "switch"]), "connects 'switch' with itself"),
    (edit(*LINK, "between", drop=True), "must have either 'between' or 'mesh'"),
    (edit(*LINK, to={"mesh": ["gpu0"], "bytes_per_second": 1, "latency_seconds": 0}), "a mesh needs at least 2 members"),
    (edit(*NODE, "links", "+", to=GOOD["nodes"][0]["links"][0]), "two links between 'gpu0' and 'switch'"),
    (edit(*LINK, "between", to=["gpu0", "switch"]), "node 'box': no path over switches from 'gpu1' to 'network'"),
    (edit(*NODE, "links", 1, "between", to=["gpu0", "network"]), "no path over switches from 'gpu1' to 'network'"),
    (edit("layout", 0, "node", to="crate"), "node 'crate' is used but not declared; declared are 'box'"),
    (edit("layout", 0, "count", to=0), r"layout\[0\].count: must be an integer from 1 to 2..62, got 0"),
    (edit("layout", to=[]), "has 0 processors, at least 1 asked for"),
    (edit("layout", 0, "count", to=10**18), "m.json: machine small: may have 100,000 processors at most, got 2,000,0"),
    (edit("layout", 0, "count", to=10**30), r"layout\[0\].count: must be an integer from 1 to 2..62, got 10{30}"),
    (edit(*NODE, "processors", 0, "count", to=10**9), "m.json: node 'box': a machine may have 100,000 processors at most, got 1,0"),
    (edit(*DEVICE, "memory_bytes", to=10**400),
     r"memory_bytes: must be an integer from 1 to 2..62, got 10{39}\.\.\. \(401 characters"),
    (edit(*DEVICE, "memory_bytes_per_second", to=10**400),
     r"memory_bytes_per_second: must be a number from 1e-100 to 1e\+100, got 10{39}"),
    (edit(*LINK, "mesh", to=["gpu*"]), "must have either 'between' or 'mesh'"),
    (edit(*LINK, "bytes_per_second", to=1e-320), r"links\[0\].bytes_per_second: must be a number from 1e-100 .*, got 1e-320"),
    (edit(*LINK, "bytes_per_second", to=True), r"links\[0\].bytes_per_second: must be a number .*, got true"),
    (edit(*LINK, "between", 0, to=3), r"links\[0\].between\[0\]: must be a text that is not empty, got 3"),
    (edit("version", to=True), "version: must be 1, got true"),
    (edit("use_devices", to=9), "has 4 processors, 9 asked for"),
    (edit("use_devices", to=0), "use_devices: must be an integer from 1 to 2..62, got 0"),
]


@pytest.mark.parametrize(("change", "message"), WRONG, ids=[message for _, message in WRONG])
def test_errors(change: Callable[[dict[str, Any]], None], message: str, tmp_path: Path) -> None:
    content = copy.deepcopy(GOOD)
    change(content)
    with pytest.raises(ValueError, match=message) as caught:
        load(content, tmp_path)
    assert str(caught.value).startswith(f"{tmp_path / 'm.json'}: ")


@pytest.mark.parametrize("ends", [False, True, "sender", "receiver"])
def test_who_copies(ends: object, tmp_path: Path) -> None:
    content = copy.deepcopy(GOOD)
    content["nodes"][0]["links"][0]["occupies_endpoints"] = ends
    machine = load(content, tmp_path)
    first = machine.route(0, 1)[0]
    assert first.occupies_endpoints == ends
    assert (first.occupies_sender, first.occupies_receiver) == (ends in (True, "sender"), ends in (True, "receiver"))
    save(machine, tmp_path / "again.json")
    assert load_machine(tmp_path / "again.json") == machine


def test_unconnected_within_a_node(tmp_path: Path) -> None:
    content = copy.deepcopy(GOOD)
    content["layout"][0]["count"] = 1
    content["nodes"][0]["links"][0]["between"] = ["gpu0", "switch"]
    with pytest.raises(ValueError, match="machine small: node 'box': no path over switches from 'gpu0' to 'gpu1'"):
        load(content, tmp_path)


def test_mesh_and_link_between_the_same_two(tmp_path: Path) -> None:
    mesh = {"mesh": ["gpu*"], "bytes_per_second": 1, "latency_seconds": 0}
    straight = {"between": ["gpu0", "gpu1"], "bytes_per_second": 1, "latency_seconds": 0}
    for links in ([mesh, straight], [straight, mesh], [mesh, mesh]):
        content = copy.deepcopy(GOOD)
        content["nodes"][0]["links"] += links
        with pytest.raises(ValueError, match="two links between 'gpu0' and 'gpu1'"):
            load(content, tmp_path)


def test_files_that_are_not_there_or_not_json(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"no machine 'k90' \(did you mean k80\?\); use one that 'taskflow machines' lists, or a "):
        load_machine("k90")
    with pytest.raises(FileNotFoundError, match=r"none.json does not exist"):
        load_machine(tmp_path / "none.json")
    with pytest.raises(ValueError, match=r"m.json: not JSON"):
        load("{", tmp_path)
    with pytest.raises(ValueError, match="not a machine file"):
        load([1], tmp_path)
    (tmp_path / "folder.json").mkdir()
    with pytest.raises(ValueError, match=r"machine file .*folder.json: is a folder"):
        load_machine(tmp_path / "folder.json")
    (tmp_path / "deep.json").write_text("[" * 100_000)
    with pytest.raises(ValueError, match=r"deep.json: not JSON that can be read"):
        load_machine(tmp_path / "deep.json")


def test_more_devices_than_anybody_has() -> None:
    assert len(load_machine("h100", 1000).processors) == 1000
    with pytest.raises(ValueError, match=r"machine h100: may have 100,000 processors at most, got 100,000,000,000"):
        load_machine("h100", 99_999_999_999)
    with pytest.raises(ValueError, match=r"node 'host': a machine may have 100,000 processors at most, got 200,000"):
        host(200_000)


def test_a_large_host_is_a_short_file(tmp_path: Path) -> None:
    save(host(1024), tmp_path / "h.json")
    assert (tmp_path / "h.json").stat().st_size < 2000
    assert load_machine(tmp_path / "h.json").route(7, 1000) == host(1024).route(7, 1000)


def test_devices_and_nodes_of_a_third_machine(tmp_path: Path) -> None:
    """A cluster of two generations is made of the parts of two presets."""
    path = tmp_path / "mixed.json"
    content = {
        "format": "taskflow-machine", "version": 1, "name": "mixed", "like": "h100",
        "devices": [{"like": "a100/a100", "memory_bytes": 40_000_000_000}, {"like": "h100"}],
        "nodes": [{"like": "a100/dgx-a100"}, {"like": "dgx-h100"}],
        "layout": [{"node": "dgx-a100", "count": 1}, {"node": "dgx-h100", "count": 1}],
    }
    path.write_text(json.dumps(content))
    mixed, old, new = load_machine(path), load_machine("a100", 8), load_machine("h100", 8)
    assert [processor.device.kind for processor in mixed.processors] == ["a100"] * 8 + ["h100"] * 8
    assert mixed.kinds[0].flops_per_second == old.kinds[0].flops_per_second and mixed.kinds[0].memory_bytes == 40_000_000_000
    assert mixed.kinds[1] == new.kinds[0]
    for other, first in ((old, 0), (new, 8)):
        rates = [link.bytes_per_second for link in mixed.route(first, first + 1)]
        assert rates == [link.bytes_per_second for link in other.route(0, 1)]
    for wrong, said in (
        ("a100/v100", r"devices\[0\].like: must be one of 'a100' of a100, got 'v100'"), ("nowhere/a100", "got 'nowhere'"),
        ("a100", r"devices\[0\].like: must be one of 'h100', got 'a100'; of another machine: MACHINE/NAME"),
    ):  # fmt: skip
        path.write_text(json.dumps(content | {"devices": [{"like": wrong}, {"like": "h100"}]}))
        with pytest.raises(ValueError, match=said):
            load_machine(path)
    del content["like"]
    path.write_text(json.dumps(content))
    with pytest.raises(ValueError, match=r"mixed.json: devices\[0\].like: the file must say 'like' too"):
        load_machine(path)
