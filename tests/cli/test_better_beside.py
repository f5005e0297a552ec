"""A usual plan beside the found one that is faster: it is the answer, if the framework that was named can express it."""

from __future__ import annotations

from dataclasses import replace

from taskflow.cli.beside import better
from taskflow.cli.problem import make_problem
from taskflow.optimizer import search


def test_the_fastest_plan_that_the_framework_can_express_is_the_answer() -> None:
    problem = make_problem("llama", "h100", 2, 4, "small", "adam", settings={})
    found = search(problem.graph, problem.machine, rule=problem.evaluator.rule, budget="2p", target="megatron")
    slow = replace(found, seconds=1.0)
    rows = [
        {"name": "other", "plan": "d2 mb1 zero1", "iteration_seconds": 0.5, "fits_memory": True},
        {"name": "sharded", "plan": "d2 mb1 zero3", "iteration_seconds": 0.25, "fits_memory": True},  # not Megatron-LM's
        {"name": "large", "plan": "d2 mb2", "iteration_seconds": 0.1, "fits_memory": False},
        {"name": "late", "plan": "d2 mb2", "why": "there was no time to try it"},
    ]
    every, theirs = better(problem, slow, rows), better(problem, slow, rows, "megatron")
    assert (every.seconds, every.starts["sharded"]) == (0.25, 0.25)
    assert (theirs.seconds, str(theirs.strategy.plan)) == (0.5, "t1 p1 d2 mb1 zero1")
    quick = replace(found, seconds=0.05)
    assert better(problem, quick, rows, "megatron") is quick
    assert better(problem, slow, rows[1:], "megatron") is slow
