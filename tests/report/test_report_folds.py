"""What the operator graph of a large plan folds: layers that are alike, of each stage, as one."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

import taskflow.report

LAYOUT = Path(taskflow.report.__file__).parent / "static" / "layout.js"
RUN = """
const operators = JSON.parse(require("fs").readFileSync(0, "utf8"));
const folds = findFolds(operators);
const named = (item) => [item.block || operators[item.members[0]].name, item.members.length];
const seen = (open) => visibleItems(operators, folds, new Set(open), true).items.map(named);
console.log(JSON.stringify({ folds, closed: seen([]), opened: seen([folds[3][0]]), one: seen(folds[3]) }));
"""


def operators(layers: int, stages: int, odd: int = -1) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []

    def add(name: str, stage: int, degree: int = 1) -> None:
        found.append({
            "name": name, "kind": "linear", "dims": [["sample", 8, "S", degree]], "processors": [stage],
            "inputs": [len(found) - 1] if found else [],
        })  # fmt: skip

    add("embed", 0)
    for layer in range(layers):
        for part in ("norm", "attn", "fc1", "fc2"):
            add(f"h.{layer}.{part}", layer * stages // layers, 2 if layer == odd else 1)
    add("head", stages - 1)
    return found


def folded(content: list[dict[str, Any]]) -> Any:
    if (node := shutil.which("node")) is None:
        pytest.skip("there is no node")
    script = LAYOUT.read_text() + RUN
    done = subprocess.run([node, "-e", script], input=json.dumps(content), capture_output=True, text=True, timeout=60, check=True)
    return json.loads(done.stdout)


def test_layers_of_a_stage_are_one() -> None:
    found = folded(operators(32, 4))
    assert found["closed"] == [
        ["embed", 1], ["h.0-7", 32], ["h.8-15", 32], ["h.16-23", 32], ["h.24-31", 32], ["head", 1],
    ]  # fmt: skip
    assert found["opened"][:3] == [["embed", 1], ["h.0", 4], ["h.1", 4]] and ["h.8-15", 32] in found["opened"]
    assert found["one"][1:6] == [["h.0.norm", 1], ["h.0.attn", 1], ["h.0.fc1", 1], ["h.0.fc2", 1], ["h.1", 4]]


def test_a_layer_that_is_cut_otherwise_stands_alone() -> None:
    found = folded(operators(24, 1, odd=5))
    assert [name for name, _ in found["closed"]] == ["embed", "h.0-4", "h.5", "h.6-23", "head"]


def test_blocks_that_feed_each_other_are_not_folded() -> None:
    content = operators(24, 1)
    content[1]["inputs"].append(len(content) - 2)  # the first layer reads the last: no run of these can be one step
    content[-2]["inputs"] = [0]
    found = folded(content)
    assert sum(count for _, count in found["closed"]) == len(content)
