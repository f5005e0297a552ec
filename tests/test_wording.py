"""Sentences from parts: whichever parts are empty, no bracket, comma or semicolon is left over."""

from __future__ import annotations

import re
from dataclasses import replace
from itertools import product
from typing import Any

import pytest

import taskflow
from taskflow.mapper import Strategy
from taskflow.optimizer import SearchResult, search
from taskflow.wording import listed, milliseconds, sentence, some

LEFT_OVER = re.compile(r"\(\s*[,;)]|[,;(]\s*[,;)]|\s[,;]|[,;(]\s*$|^\s*[,;)]|  ")


@pytest.mark.parametrize("kept", list(product((True, False), repeat=6)), ids=str)
def test_any_subset_of_parts_is_a_sentence(kept: tuple[bool, ...]) -> None:
    head, a, b, c, d, e = (word if keep else "" for word, keep in zip(("head", "a", "b", "c", "d", "e"), kept))
    said = sentence(head, (a, b, c), (d, e))
    assert not LEFT_OVER.search(said), said
    assert re.findall(r"\w+", said) == [word for word in (head, a, b, c, d, e) if word]
    assert ("(" in said) is bool(a or b or c) and listed(("", a, "", b)) == ", ".join(word for word in (a, b) if word)


def test_the_first_names_and_how_many_more() -> None:
    names = list("abcd")
    assert [some(names[:n], 2) for n in range(5)] == ["", "a", "a, b", "a, b and 1 more", "a, b and 2 more"]
    assert some(names, 3, "; ") == "a; b; c; and 1 more" and some(names, 1, of="kinds") == "a and 3 more kinds"


@pytest.mark.parametrize(
    "seconds, said", [(0.00239, "2.39"), (6.317, "6317"), (12.7638, "12,760"), (9.9999, "10,000"), (0.0, "0")]
)
def test_milliseconds_are_written_without_exponents(seconds: float, said: str) -> None:
    assert milliseconds(seconds) == said


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
    x = taskflow.input(graph, (8, 256), name="x")
    wide = taskflow.linear(taskflow.relu(taskflow.linear(x, 2048, name="up"), name="relu"), 256, name="down")
    graph.minimize(taskflow.mse_loss(wide, taskflow.input(graph, (8, 256), name="y")))
    machine = taskflow.load_machine("p100", 2)
    nbytes = 3 * sum(parameter.spec.nbytes for parameter in graph.parameters)
    small = replace(machine, kinds=tuple(replace(kind, memory_bytes=nbytes) for kind in machine.kinds))
    found = search(graph, small, budget="50p", rule=taskflow.Adam())
    said = str(found)
    assert "data" in found.starts and "data" in found.lacking, found.starts
    assert "data does not fit the memory" in said and "x data" not in said and "x model" in said
    assert "data" in found.as_json()["starts_lacking_memory"]
