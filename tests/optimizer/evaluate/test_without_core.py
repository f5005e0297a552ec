"""Where the compiled evaluator was not built."""

from __future__ import annotations

import sys

import pytest

from taskflow import load_machine, search
from taskflow.models import build

pytest.importorskip("taskflow.optimizer.evaluate.compiled", reason="the compiled core is not built")


def test_a_search_says_that_it_is_slow_and_finds_the_same_plan(monkeypatch: pytest.MonkeyPatch) -> None:
    graph, machine = build("mlp", 64), load_machine("p100", 4)
    fast = search(graph, machine, budget="40p")
    monkeypatch.setitem(sys.modules, "taskflow.optimizer.evaluate.compiled", None)
    with pytest.warns(RuntimeWarning, match="compiled evaluator is missing .* install a C compiler"):
        slow = search(graph, machine, budget="40p")
    assert slow.seconds == fast.seconds and slow.strategy == fast.strategy
