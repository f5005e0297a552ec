"""Inputs that are brought again for the backward pass (`HadAgain.regather`; Megatron-LM with --sequence-parallel): the numbers are
those of one processor, and what is sent and kept is Megatron-LM's."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from random import Random

import pytest
from beside_one_processor import STEPS, compare, compare_network
from language_model import random_strategy
from pipelines import GPT, random_pipeline, random_shares, tokens

from taskflow.graph import OperatorGraph
from taskflow.machine import host
from taskflow.mapper import Exchange, HadAgain, HybridParallel, Strategy, map_graph
from taskflow.models.gpt import gpt
from taskflow.optimizer.memory import memory_use
from taskflow.rules import SGD, AdamW
from taskflow.tasks.lower import lower
from taskflow.tasks.task import AllGather, Kind, TaskGraph
from taskflow.tasks.topic import Purpose


def plan(graph: OperatorGraph, random: Random, number: int) -> Strategy:
    """Every second with micro-batches, of these every second with shares; some operators bring their inputs again, others are
    computed again, and some do both."""
    processors = random.randint(2, 5)
    strategy = (random_pipeline if number % 2 else random_strategy)(graph, processors, random)
    if number % 4 == 1:
        strategy = random_shares(graph, strategy, random)
    names = frozenset(node.name for node in graph if random.random() < 0.7)
    recompute = strategy.again.recompute if number % 3 else frozenset()
    again = HadAgain(recompute=recompute, rerun=strategy.again.rerun, regather=names)
    return replace(strategy, exchange=random.choice(list(Exchange)), again=again)


@pytest.mark.parametrize(("seed", "count"), [(0, 2), *(pytest.param(s, 20, marks=pytest.mark.slow) for s in range(4))])
def test_a_decoder_whose_operators_bring_inputs_again(seed: int, count: int) -> None:
    dtype, rule = ("float64", "float32")[seed % 2], (SGD(0.1, momentum=0.9), AdamW(0.003, eps=1e-3))[seed % 2]
    batches = [tokens(s) for s in range(STEPS)]
    assert compare(lambda: gpt(GPT, dtype), batches, plan, f"regather gpt {seed}", count, dtype, rule, 1.0) == count


def test_random_networks_that_bring_inputs_again() -> None:
    assert sum(compare_network(seed, plan, "regather", 3) for seed in range(4)) >= 6


@pytest.mark.slow
@pytest.mark.parametrize("first", range(0, 40, 10))
def test_more_random_networks_that_bring_inputs_again(first: int) -> None:
    assert sum(compare_network(seed, plan, "regather", 6) for seed in range(first, first + 10)) >= 30


# ---- what moves, and what is kept ------------------------------------------------------------------------------------
def step(text: str, layers: int) -> TaskGraph:
    graph = gpt(replace(GPT, layers=layers, heads=4, hidden=16, steps=64), "float32")
    return lower(graph, map_graph(HybridParallel(text), graph, host(4)), SGD(0.1))


def gathers(tasks: TaskGraph) -> Counter[Purpose]:
    """All-gathers of activations and of their gradients."""
    purposes = (Purpose.OUTPUT, Purpose.GRADIENT)
    return Counter(t.topic.purpose for t in tasks if isinstance(t.work, AllGather) and t.topic.purpose in purposes)


def test_a_layer_gathers_twice_more() -> None:
    """Korthikanti et al., arXiv 2205.05198, section 4.2.2: what the two pairs of products gather is not kept."""
    once, again = ([gathers(step(f"t4{word}", layers)) for layers in (2, 3)] for word in ("", " regather"))
    assert once[1] - once[0] == {Purpose.OUTPUT: 2, Purpose.GRADIENT: 2}
    assert again[1] - again[0] == {Purpose.OUTPUT: 4, Purpose.GRADIENT: 2}


def test_a_layer_keeps_its_share_of_what_it_gathers() -> None:
    def peak(word: str, layers: int) -> int:
        tasks = step(f"t4 mb6{word}", layers)
        return max(use.buffers for use in memory_use(tasks, range(len(tasks))))

    graph = gpt(replace(GPT, layers=2, heads=4, hidden=16, steps=64), "float32")
    gathered = 2 * graph.node("h.0.ln_1").outputs[0].spec.nbytes
    kept, again = (peak(word, 6) - peak(word, 4) for word in ("", " regather"))
    assert kept - again == pytest.approx(2 * gathered * 3 / 4, rel=0.01)  # two more layers; each of four keeps its quarter


def test_what_is_brought_again_waits_for_the_backward_pass() -> None:
    tasks = step("t4 regather", 3)
    last_forward = max(t.number for t in tasks if t.kind is Kind.FORWARD)
    late = [t for t in tasks if isinstance(t.work, AllGather) and t.topic.purpose is Purpose.OUTPUT and t.number > last_forward]
    assert late
    assert all(any(tasks.tasks[n].kind is Kind.BACKWARD for n in t.after) for t in late)
