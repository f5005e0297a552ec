"""Sentences from parts: whichever parts are empty, no bracket, comma or semicolon is left over."""

from __future__ import annotations

import re
from itertools import product
from typing import Any

import pytest

import taskflow
from taskflow.mapper import Strategy
from taskflow.optimizer import MemoryCheck, SearchResult, make_evaluator, search
from taskflow.saying import listed, sentence

LEFT_OVER = re.compile(r"\(\s*[,;)]|[,;(]\s*[,;)]|\s[,;]|[,;(]\s*$|^\s*[,;)]|  ")


@pytest.mark.parametrize("kept", list(product((True, False), repeat=6)), ids=str)
def test_any_subset_of_parts_is_a_sentence(kept: tuple[bool, ...]) -> None:
    head, a, b, c, d, e = (word if keep else "" for word, keep in zip(("head", "a", "b", "c", "d", "e"), kept))
    said = sentence(head, (a, b, c), (d, e))
    assert not LEFT_OVER.search(said), said
    assert re.findall(r"\w+", said) == [word for word in (head, a, b, c, d, e) if word]
    assert ("(" in said) is bool(a or b or c) and listed(("", a, "", b)) == ", ".join(word for word in (a, b) if word)


def result(
    data: float | None, expert: float | None, lacking: bool, bound: float, optimal: bool, left_out: tuple[str, ...]
) -> SearchResult:
    """A result of 2 s, with or without known strategies, a bound, and things that were left out."""
    starts = {name: seconds for name, seconds in (("data", data), ("expert", expert)) if seconds}
    return SearchResult(
        Strategy(1, {}), 2.0, starts, (), 7, 0, 1.0, 0, "guided", "budget", lower_bound=bound, optimal=optimal, left_out=left_out,
        lacking=tuple(name for name in starts if lacking),
    )  # fmt: skip


CASES = list(product((None, 1.58, 3.0), (None, 4.0), (False, True), (0.0, 1.8), (False, True), ((), ("a bound",))))


@pytest.mark.parametrize("case", CASES, ids=str)
def test_what_a_search_says_is_complete_and_true(case: tuple[Any, ...]) -> None:
    data, expert, lacking, bound, optimal, left_out = case
    said = str(result(*case))
    assert not LEFT_OVER.search(said) and said.startswith("2000 ms a step"), said
    for name, seconds in (("data", data), ("expert", expert)):
        there = seconds is not None
        assert (f"x {name}" in said) is (there and not lacking), said
        assert (f"{name} does not fit the memory" in said) is (there and lacking), said
    assert ("optimal" in said) is optimal
    assert ("at most 10% to gain" in said) is (bound > 0 and not optimal)
    assert ("left out: a bound" in said) is bool(left_out)
    if data is expert is None and not bound and not optimal:
        assert "(" not in said


def test_a_search_says_that_data_parallelism_does_not_fit_instead_of_how_much_faster_it_is() -> None:
    """Weights, gradients and state of wide layers fit two devices in halves, but not whole."""
    graph = taskflow.OperatorGraph("float32")
    x = taskflow.input(graph, (4096, 64), name="x")
    wide = taskflow.linear(taskflow.relu(taskflow.linear(x, 1024, name="up"), name="relu"), 64, name="down")
    graph.minimize(taskflow.mse_loss(wide, taskflow.input(graph, (4096, 64), name="y")))
    machine, lacking = taskflow.load_machine("p100", 2), []
    evaluator = make_evaluator(graph, machine, rule=taskflow.Adam())

    def fits(strategy: Strategy) -> str:
        return "lacks" if strategy.name == "data" or strategy["up"].degrees[0] > 1 else ""

    class Room(MemoryCheck):
        def __call__(self, strategy: Strategy) -> str:
            lacking.append(strategy.name)
            return fits(strategy)

    found = search(graph, machine, budget="20p", use=evaluator, memory=Room(evaluator))
    assert "data" in lacking and found.lacking == ("data",) and found.starts["data"] < found.seconds
    said = str(found)
    assert "data does not fit the memory" in said and "x data" not in said and "x model" in said
    assert found.as_json()["starts_lacking_memory"] == ["data"]
