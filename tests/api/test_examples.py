"""The example programs agree with numpy; they compare themselves and fail if they do not."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner
from fast_and_slow import fast_among

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "examples"))


def run(module: str, *arguments: str) -> dict[str, float]:
    result = CliRunner().invoke(__import__(module).main, [*arguments, "--json"])
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout.splitlines()[-1])


@pytest.mark.parametrize("processors", [1, 2, 6])
def test_stencil(processors):
    report = run("stencil", "--size", "40", "--steps", "20", "--processors", str(processors))
    assert report["max_difference"] == 0 and report["replays"] >= 6


@pytest.mark.parametrize("processors", [1, 3, 5])
def test_circuit(processors):
    report = run("circuit", "--pieces", "5", "--steps", "30", "--processors", str(processors))
    assert report["max_difference"] < 1e-12 and report["replays"] >= 26


def test_a_wrong_stencil_would_be_noticed(monkeypatch):
    import stencil

    monkeypatch.setattr(stencil, "plain", lambda size, steps: stencil.start(size))
    result = CliRunner().invoke(stencil.main, ["--size", "16", "--steps", "4", "--processors", "2"])
    assert result.exit_code == 1


@pytest.mark.mpi
@pytest.mark.parametrize("script,limit", fast_among([("stencil", 0.0), ("circuit", 1e-12)], [("circuit", 1e-12)]))
def test_examples_on_ranks(ranks, script, limit):
    report = json.loads(ranks(3, f"examples/{script}.py", "--json").splitlines()[-1])
    assert report["ranks"] == report["processors"] == 3
    assert report["max_difference"] <= limit
