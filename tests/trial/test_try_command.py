"""`taskflow try` writes modules, a program and what it needs to know, or says why not."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

pytest.importorskip("torch")

from taskflow.cli.main import main

NET = """
import torch
from torch import nn

def module(width: int = 8):
    return nn.Sequential(nn.Embedding(12, width), nn.Linear(width, 16), nn.ReLU(), nn.Linear(16, 6))

def other():
    return nn.Sequential(nn.Embedding(12, 8), nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 7))

def graph(batch: int = 8, width: int = 8, loss: str = "cross_entropy"):
    import taskflow
    return taskflow.from_torch(module(width), torch.zeros(batch, dtype=torch.long), loss=loss)

def own(alone: bool = True):
    import taskflow
    loss = (lambda x: taskflow.mean(x, (0, 1))) if alone else (lambda x: taskflow.mse_loss(x, x))
    return taskflow.from_torch(module(), torch.zeros(8, dtype=torch.long), loss=loss)
"""
ON = ("--model", "net.py:graph", "-m", "p100", "-n", "2")


def run(folder: Path, *arguments: str) -> Any:
    folder.joinpath("net.py").write_text(NET)
    here = os.getcwd()
    os.chdir(folder)
    try:
        return CliRunner().invoke(main, ["try", *arguments])
    finally:
        os.chdir(here)


def written(folder: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(folder.joinpath("tries", "plans.json").read_text())
    return found


def test_the_fastest_plans_are_written_with_all_that_a_step_needs(tmp_path: Path) -> None:
    done = run(tmp_path, "data", "d2 zero3", "t2", *ON, "--set", "width=16", "--top", "2", "--steps", "7", "--out", "tries")
    assert done.exit_code == 0, done.output
    said = written(tmp_path)
    assert said["format"] == "taskflow-plans 1" and said["ranks"] == 2 and said["steps"] == 7
    seconds = [plan["predicted_seconds"] for plan in said["plans"]]
    assert len(seconds) == 2 and seconds == sorted(seconds)
    network = said["network"]
    assert network["module"]["function"] == "net.py:module" and network["module"]["values"] == {"width": 16}
    assert network["inputs"] == [{"name": "input", "shape": [8], "dtype": "int64", "below": 12}]
    assert network["target"] == {"name": "labels", "shape": [8], "dtype": "int64", "below": 6}
    assert (network["loss"], network["rule"]) == ("cross_entropy", "momentum")
    names = {path.name for path in (tmp_path / "tries").iterdir()}
    assert names == {"try.py", "plans.json", "plan_1.py", "plan_1.json", "plan_2.py", "plan_2.json"}
    plan = next(plan for plan in said["plans"] if plan["name"] == "t2")
    assert plan["plan"].startswith("t2 ") and plan["made_from"]["model"] == "net.py:graph" and plan["machine"] == "p100"
    assert plan["program"] == "fsdp" and plan["costs"] == "analytic p100 (fsdp)" and plan["batch"] == 8


def test_strategy_files_say_network_and_machine_and_old_plans_go(tmp_path: Path) -> None:
    assert run(tmp_path, "data", "d2 zero3", *ON, "--out", "tries").exit_code == 0
    (tmp_path / "mine.json").write_text((tmp_path / "tries" / "plan_1.json").read_text())
    done = run(tmp_path, "t2", "mine.json", "--out", "tries", "--top", "1", "--json")
    assert done.exit_code == 0, done.output
    found = json.loads(done.stdout)
    assert found["machine"] == "p100" and len(found["plans"]) == 1 and found["plans"] == written(tmp_path)["plans"]
    assert {path.name for path in (tmp_path / "tries").glob("plan_*")} == {"plan_1.py", "plan_1.json"}
    assert {Path(name).name for name in found["written"]} == {path.name for path in (tmp_path / "tries").iterdir()}


def test_what_pytorch_cannot_express_is_said_and_the_nearest_is_tried(tmp_path: Path) -> None:
    done = run(tmp_path, "data", "random", *ON, "--out", "tries")
    assert done.exit_code == 1 and "random: PyTorch cannot express" in done.output and not (tmp_path / "tries").exists()
    assert run(tmp_path, "data", "random", *ON, "--out", "tries", "--nearest").exit_code == 0
    assert {plan["strategy"] for plan in written(tmp_path)["plans"]} >= {"data"}


@pytest.mark.parametrize("arguments,said", [
    (("--module", "net.py:other"), "makes another module than was planned: 3.weight is (7, 16) float32, and in the plan (6, 16)"),
    (("--module", "net.py:gone"), "net.py has no 'gone'"),
    (("--module", "net.py"), "write FILE.py:FUNCTION"),
    (("--model", "net.py:own"), "plans are tried with cross_entropy or mse_loss"),
    (("--model", "net.py:own", "--set", "alone=False"), "the loss does not read its 3 from an input"),
    (("--rule", "none"), "steps that are tried have an update"),
    (("--model", "mlp", "--size", "small"), "was not made by taskflow.from_torch"),
    (("--out", "net.py"), "'net.py' is a file"), (("--out", "."), "name a folder of its own"),
    (("--out", "nowhere/tries"), "cannot write nowhere/tries"),
])
def test_mistakes_are_said_in_a_line(arguments: tuple[str, ...], said: str, tmp_path: Path) -> None:
    done = run(tmp_path, "t2", *ON, "--out", "tries", *arguments)
    assert done.exit_code == 2 and said in done.stderr and "Traceback" not in done.output, done.output
    assert not (tmp_path / "tries").exists()


def test_a_network_without_a_function_for_its_module_asks_for_one(tmp_path: Path) -> None:
    (tmp_path / "alone.py").write_text(NET.replace("def module(", "def make(").replace("module(", "make("))
    done = run(tmp_path, "t2", "--model", "alone.py:graph", "-m", "p100", "-n", "2", "--out", "tries")
    assert done.exit_code == 2 and "give --module FILE.py:FUNCTION" in done.stderr


def test_plans_for_several_numbers_of_ranks_are_refused(tmp_path: Path) -> None:
    (tmp_path / "one_device.py").write_text("""
from taskflow.mapper import Mapper

class First(Mapper):
    name = "first"

    def slice_task(self, node, machine):
        return [1] * len(node.dims)

    def map_task(self, node, piece, degrees, machine):
        return 0
""")
    done = run(tmp_path, "t2", "one_device:First", *ON, "--out", "tries")
    assert done.exit_code == 2 and "one_device:First is for 1 ranks, and t2 for 2" in done.stderr, done.output
