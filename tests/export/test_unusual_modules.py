"""Exported modules of unusual shape train as PyTorch alone, with gradients clipped by the norm of all of them."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest
import starting

torch = pytest.importorskip("torch", reason="PyTorch is not installed: make test TORCH=1")

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE))
import unusual  # noqa: E402

import taskflow  # noqa: E402
from taskflow.export import exported  # noqa: E402

TOLERANCE = 1e-5  # relative: sums of float32 in another order
ON_TWO = [
    ("again", "p2 mb4"), ("returning", "p2 v2 mb2"), ("table", "p2 mb2"), ("table", "d2 zero3 mb2"), ("skipped", "d2"),
    ("skipped", "t2"), ("skipped", "p2 mb2"), ("by_name", "d2 mb2"), ("by_name", "t2"), ("number", "p2 mb2"), ("masked", "d2"),
    ("head", "d2"), ("head", "d2 zero3 mb2"), ("head", "t2"), ("head", "p2 mb2"),
    ("joined", "p2 mb2"), ("asking", "p2 mb2"), ("mapping", "d2"), ("mapping", "p2 mb2"),
]
ON_FOUR = [
    ("again", "p2 d2 mb2"), ("table", "p2 d2 mb2"), ("skipped", "t2 p2 mb2"), ("by_name", "t2 d2 zero1"),
    ("number", "p2 d2 mb2 zero1"),
]


def text_of(name: str, plan: str, ranks: int) -> str:
    graph = unusual.graph(name)
    strategy = taskflow.choose(plan, graph, taskflow.load_machine("p100", ranks))[0]
    return exported(graph, strategy, "torch", "parallel.py").files["parallel.py"]


def trained(folder: Path, cases: list[tuple[str, str]], ranks: int) -> list[dict[str, Any]]:
    """What each rank found, by case."""
    for number, (name, plan) in enumerate(cases):
        folder.joinpath(f"plan{number}.py").write_text(text_of(name, plan, ranks))
    words = (f"{name}:plan{number}" for number, (name, _) in enumerate(cases))
    done = starting.run_torch(ranks, str(HERE / "train_unusual.py"), *words, folder=folder)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-6000:]
    found = [json.loads((folder / f"rank{rank}.json").read_text()) for rank in range(ranks)]
    return [{f"{name} {plan}": row[f"plan{number}"] for number, (name, plan) in enumerate(cases)} for row in found]


def check(folder: Path, cases: list[tuple[str, str]], ranks: int) -> None:
    for row in trained(folder, cases, ranks):
        for case, (found, *wanted) in row.items():
            if wanted and not case.startswith("masked"):
                assert min(wanted[0][1::2]) > 0.1, f"{case}: the norms must be above the limit"
                assert found == pytest.approx(wanted[0], rel=TOLERANCE), case
        if (masked := row.get("masked d2")) is not None:
            assert masked == [False, True, False], "dropout in training alone"


@pytest.mark.timeout(280)
def test_they_train_as_pytorch_alone_with_clipped_gradients(tmp_path: Path) -> None:
    check(tmp_path, ON_TWO, 2)


@pytest.mark.slow
@pytest.mark.timeout(280)
def test_they_train_on_four_ranks_as_pytorch_alone_with_clipped_gradients(tmp_path: Path) -> None:
    check(tmp_path, ON_FOUR, 4)


def test_a_stage_without_parameters_is_refused() -> None:
    """Its rank could not make an optimizer, and the other would do all the work."""
    with pytest.raises(ValueError, match="stage 0 of 2 has no parameters in the code of Twin: a layer that several stages use"):
        text_of("twin", "p2 mb2", 2)


def test_only_modules_that_need_it_are_called_by_names() -> None:
    assert "inputs=('x', 'more')" in text_of("skipped", "d2", 2)
    assert "inputs=('x', 'side')" in text_of("by_name", "d2", 2)
    assert "inputs=" not in text_of("number", "d2", 2).split("# ---- The same")[0]
