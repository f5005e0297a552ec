"""The probe's file runs by itself, on one rank and on two, without taskflow, and says what it measured."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from taskflow.probe import probe_text  # noqa: E402
from taskflow.probe.cases import MAKERS, cases_of, groups_of, usual  # noqa: E402
from taskflow.probe.script.main import operators  # noqa: E402
from taskflow.probe.script.work import arrays_of, call_of, phases_of  # noqa: E402

SMALL = [("linear", (16, 8, 24)), ("cross_entropy", (16, 10)), ("embedding", (16, 10, 8)), ("add", (128,))]


def run(folder: Path, ranks: int) -> dict[str, Any]:
    """What the probe measures of a few operators, started in a folder of its own."""
    folder.joinpath("probe.py").write_text(probe_text("probe.py", SMALL))
    words = ["probe.py", "--seconds", "0.3", "--only-plan", "--no-compile", "--out", "found.json"]
    start = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(ranks)] if ranks > 1 else []
    environment = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"} | {"OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, *start, *words], cwd=folder, env=environment, capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr[-3000:]
    found: dict[str, Any] = json.loads(folder.joinpath("found.json").read_text())
    return found


@pytest.mark.slow
@pytest.mark.parametrize("ranks", [1, 2])
def test_the_file_runs_alone(ranks: int, tmp_path: Path) -> None:
    found = run(tmp_path, ranks)
    assert found["format"] == "taskflow-probe" and found["about"]["ranks"] == ranks and found["about"]["nodes"] == [ranks]
    assert found["about"]["torch"] == torch.__version__ and not found["missing"]
    assert {(row["name"], row["backward"]) for row in found["work"]} == {(name, way) for name, _ in SMALL for way in (False, True)}
    assert all(row["seconds"] > 0 and row["slowest_seconds"] >= row["seconds"] for row in found["work"])
    what = {row["what"] for row in found["messages"]}
    wanted = {"all_reduce", "all_gather", "reduce_scatter", "all_to_all", "broadcast", "one_way", "both_ways"}
    assert what == (wanted if ranks > 1 else set())
    units = {row["what"] for row in found["parts"]}
    assert {"cut_block", "cut_layers"} <= units
    assert ({"replicate", "gathered", "gathered_twice"} <= units) is (ranks > 1)
    assert ({"change_gathered", "change_scattered", "change_summed"} <= units) is (ranks > 1)


def test_operators_are_timed_forward_and_backward() -> None:
    missing: list[str] = []
    rows = operators(cases_of(SMALL), torch.device("cpu"), 0.01, missing)
    assert len(rows) == 2 * len(SMALL) and not missing
    product = rows[0]
    assert product["flops"] == 2 * 16 * 8 * 24 and product["bytes"] == 4 * (16 * 8 + 8 * 24 + 24 + 16 * 24)


OTHERS = [("depthwise", (2, 6, 5, 4, 3)), ("lstm", (2, 3, 4, 5)), ("gru", (2, 3, 4, 5)), ("rotary", (2, 3, 2, 4)),
          ("swiglu", (128,)), ("rms_norm_parts", (3, 8))]  # fmt: skip
SEEN = [*usual(False)[::7], ("conv2d", (2, 3, 4, 6, 5, 3, 2)), ("pool", (2, 3, 4, 4)), *OTHERS]


@pytest.mark.parametrize("name,sizes", SEEN)
def test_cases_have_the_results_that_they_say(name: str, sizes: tuple[int, ...]) -> None:
    (case,) = cases_of([(name, sizes)])
    ((*given,),) = arrays_of(case, torch.float32, torch.device("cpu"), 1)
    assert call_of(case)(*given).numel() == case.results
    forward, backward = phases_of(case, [given])
    forward()
    assert all(grad is not None for grad in backward())


def test_a_case_that_cannot_be_run_is_said() -> None:
    missing: list[str] = []
    cases = [MAKERS["matmul"](2, 3, 4, 5), MAKERS["matmul"](1 << 40, 64, 64, 64)]
    assert len(operators(cases, torch.device("cpu"), 0.0, missing)) == 2
    assert len(missing) == 1 and missing[0].startswith("matmul torch.float32: ")


def test_groups_within_between_and_across_nodes() -> None:
    assert groups_of([2]) == [("within", [0, 1])]
    assert groups_of([4]) == [("within", [0, 1]), ("within", [0, 1, 2, 3])]
    assert groups_of([2, 2]) == [("within", [0, 1]), ("between", [0, 2]), ("across", [0, 1, 2, 3])]
    assert groups_of([1, 1]) == [("across", [0, 1])]
