"""What `taskflow try` writes runs by itself, under torchrun too; a plan that fails is said, and the others are measured."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from click.testing import CliRunner  # noqa: E402

from taskflow.cli.main import main  # noqa: E402
from taskflow.trial.script.found import row_of, table  # noqa: E402
from taskflow.trial.script.ranks import _without  # noqa: E402

NET = """
import torch
from torch import nn

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.table, self.up, self.down = nn.Embedding(12, 8), nn.Linear(8, 16), nn.Linear(16, 12, bias=False)

    def forward(self, mask=None, tokens=None):
        return {"logits": self.down(torch.relu(self.up(self.table(tokens))))}

def module():
    return Net()

def graph():
    import taskflow
    return taskflow.from_torch(module(), keywords={"tokens": torch.zeros(8, 4, dtype=torch.long)})
"""
FAILS = {
    "memory": "torch.empty(1 << 60)",
    "killed": "os.kill(os.getpid(), 9)",
    "late": "time.sleep(1000)",
}


def prepare(folder: Path, ranks: int, *plans: str) -> None:
    """A folder with the network and what is written for some plans of it."""
    folder.joinpath("net.py").write_text(NET)
    here = os.getcwd()
    os.chdir(folder)
    try:
        words = ["try", *plans, "--model", "net.py:graph", "-m", "this", "-n", str(ranks), "--steps", "4", "--out", "tries"]
        done = CliRunner().invoke(main, words)
    finally:
        os.chdir(here)
    assert done.exit_code == 0, done.output


def run(folder: Path, ranks: int, *words: str) -> tuple[int, str, dict[str, Any]]:
    """The exit code, what is printed and what is written."""
    start = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(ranks)] if ranks > 1 else []
    environment = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"} | {"OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, *start, "tries/try.py", "--device", "cpu", *words], cwd=folder, env=environment, capture_output=True,
        text=True, timeout=240,
    )
    out = folder / "try.json"
    assert out.is_file(), done.stdout[-3000:] + done.stderr[-3000:]
    return done.returncode, done.stdout, json.loads(out.read_text())


def broken(folder: Path, name: str, code: str) -> None:
    """Let a plan do something else on rank 1 than to make the module."""
    for plan in json.loads(folder.joinpath("tries", "plans.json").read_text())["plans"]:
        if plan["name"] == name:
            path, made = folder / "tries" / plan["file"], "Parallel(module, plan(), device)"
            lines = ["import os, time", f"made = {made}", f"if os.environ['RANK'] == '1': {code}", "return made"]
            before = path.read_text()
            path.write_text(before.replace(f"    return {made}", "".join(f"    {line}\n" for line in lines)))
            assert path.read_text() != before
            return
    raise AssertionError(name)


def test_it_runs_alone_on_one_rank(tmp_path: Path) -> None:
    prepare(tmp_path, 1, "data")
    code, printed, found = run(tmp_path, 1, "--rounds", "1", "--steps", "2")
    (row,) = found["plans"]
    assert code == 0 and found["format"] == "taskflow-try 1" and found["about"]["ranks"] == 1
    assert len(row["step_seconds"]) == 2 and row["error"] is None and row["memory_bytes"] is None and row["resident_bytes"] > 0
    assert "measured/predicted" in printed and "wrote try.json" in printed


@pytest.mark.slow
@pytest.mark.timeout(280)
@pytest.mark.parametrize("plans,empty", [(["data", "d2 zero1", "t2"], False), (["d2 zero3", "t2"], True)])
def test_plans_take_turns_on_two_ranks(plans: list[str], empty: bool, tmp_path: Path) -> None:
    """``empty``: modules are made without numbers, as large ones are."""
    prepare(tmp_path, 2, *plans)
    if empty:
        script = tmp_path / "tries" / "try.py"
        script.write_text(script.read_text().replace("\nLARGE = 4e9 ", "\nLARGE = 0.0 "))
        assert "LARGE = 0.0" in script.read_text()
    code, printed, found = run(tmp_path, 2)
    assert code == 0 and {row["name"] for row in found["plans"]} == set(plans)
    for row in found["plans"]:
        assert len(row["step_seconds"]) == 4 and min(row["step_seconds"]) > 0 and row["error"] is None
        low, high = row["quartile_seconds"]
        assert low <= row["median_seconds"] <= high and row["predicted_seconds"] > 0
        assert row["made_from"]["model"] == "net.py:graph" and row["batch"] == 8
    order = [line.split(":")[0] for line in printed.splitlines() if " steps, " in line]
    assert order[: len(plans)] == order[: len(plans) - 1 : -1] and set(order) == set(plans)
    assert "pairs are in the predicted order" in printed


@pytest.mark.slow
@pytest.mark.timeout(280)
def test_plans_that_fail_on_one_rank_are_said_and_the_others_measured(tmp_path: Path) -> None:
    prepare(tmp_path, 2, "data", "d2 zero1", "d2 zero3", "t2")
    for name, failure in (("data", "memory"), ("d2 zero1", "killed"), ("d2 zero3", "late")):
        broken(tmp_path, name, FAILS[failure])
    code, printed, found = run(tmp_path, 2, "--limit", "60")
    rows = {row["name"]: row for row in found["plans"]}
    assert code == 0 and rows["t2"]["error"] is None and len(rows["t2"]["step_seconds"]) == 4
    assert rows["data"]["error"].startswith("rank 1: RuntimeError: ") and "allocate" in rows["data"]["error"]
    assert rows["d2 zero1"]["error"].startswith("rank 1: its process was ended by SIGKILL")
    assert "not done after 60 s (--limit)" in rows["d2 zero3"]["error"]
    assert all(f"{name}: failed: {rows[name]['error']}" in printed for name in ("data", "d2 zero1", "d2 zero3"))


def test_the_table_has_places_and_failures() -> None:
    def row(name: str, predicted: float, *seconds: float, error: str = "") -> dict[str, Any]:
        ranks = [{"allocated": 2e9, "reserved": 3e9, "resident": 4e9}, {"allocated": 1e9, "reserved": 1e9, "resident": 5e9}]
        visits = [{"seconds": list(seconds), "ranks": ranks}, *([{"error": error}] if error else [])]
        return row_of({"name": name, "predicted_seconds": predicted, "predicted_memory_bytes": 1e9}, visits)

    rows = [row("a", 1.0, 3.0, 4.0, 5.0), row("b", 2.0, 2.5, 2.5, 2.5), row("c", 3.0, 9.0), row("d", 0.1, 1.0, error="rank 0: no")]
    assert rows[0]["median_seconds"] == 4.0 and rows[0]["quartile_seconds"] == [3.0, 5.0]
    assert (rows[0]["memory_bytes"], rows[0]["reserved_bytes"], rows[0]["resident_bytes"]) == (2e9, 3e9, 5e9)
    text = table(rows, gpu=True).splitlines()
    assert [line.split()[0] for line in text[1:4]] == ["b", "a", "c"] and "1 (predicted 2)" in text[1] and "1.25" in text[1]
    assert text[4:] == ["2 of 3 pairs are in the predicted order", "d: failed: rank 0: no"]
    assert "which nothing predicts" in table(rows, gpu=False)
    assert table([row("d", 0.1, error="no")], gpu=True) == "d: failed: no"


def test_a_process_that_wrote_nothing_says_why() -> None:
    assert _without(-9, "", 5)["error"] == "its process was ended by SIGKILL (by the system, for want of memory?)"
    assert _without(3, "", 5)["error"] == "its process ended with 3"
    assert _without(-9, "late", 5)["error"] == "not done after 5 s (--limit)"
