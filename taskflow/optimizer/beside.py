"""Usual plans: what people would run without a search, on the same machine: DDP, FSDP and Megatron-LM's way."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from math import gcd

from taskflow.graph import OperatorGraph
from taskflow.machine import Machine
from taskflow.mapper import (
    HybridParallel,
    Strategy,
    block_count,
    has_attention,
    map_graph,
    multiplies,
    parse_plan,
    samples,
)
from taskflow.optimizer.budget import BudgetExhausted
from taskflow.optimizer.grid import expert_degrees, make_grid
from taskflow.optimizer.memory_check import MemoryCheck
from taskflow.optimizer.units import reads_words
from taskflow.rules import UpdateRule

MOST_TENSOR, MOST_SAMPLES = 8, 4  # that share a layer; of a micro-batch of Megatron-LM's way with stages, which need many
FULL, WHOLE = ("", " recompute=full"), ("", " recompute=whole")  # PyTorch's checkpoints stop early, Megatron-LM's do not
DOUBTFUL = 0.05  # of the memory that a plan may need too much in closed form: few of those beyond it fit after all
NO_TIME = "there was no time to try it"


@dataclass(frozen=True, slots=True)
class UsualPlan:
    """A plan by its usual ``name``, in the notation of plans (``plan``). ``strategy``: None if none could be made, which ``why``
    says. ``lacks``: what memory is missing."""

    name: str
    plan: str
    strategy: Strategy | None = None
    lacks: str = ""
    why: str = ""


def has_usual_plans(graph: OperatorGraph, machine: Machine, rule: UpdateRule | None) -> bool:
    """Return whether a network has such plans: if its samples are rows of words or it has attention, as over an image's patches, it
    has layers with matrix products, and it is trained on several devices."""
    if rule is None or len(machine.processors) < 2 or graph.carries or not multiplies(graph):
        return False
    if not reads_words(graph) and not has_attention(graph):
        return False
    return block_count(graph) > 1


def usual_plans(
    graph: OperatorGraph, machine: Machine, check: MemoryCheck, rule: UpdateRule, over: Callable[[], bool] = lambda: False
) -> Iterator[UsualPlan]:
    """Return DDP, FSDP and Megatron-LM's way, each as the first of its plans that fits the memory, or the last one.

    DDP and FSDP (``zero3``) have as many samples in a micro-batch as fit, FSDP with layers recomputed only if nothing else
    fits. Megatron-LM shares layers among as few devices of a node as fit, then has as few stages, with `MOST_SAMPLES` in a
    micro-batch, and its distributed update (``zero1``). Experts that have places are dealt within a node instead, and layers
    are not shared. What needs over 5 % too much memory in closed form is passed over. ``over``: whether to try no more. Of a
    plan at which BudgetExhausted is raised, from within ``check``, it is said that there was no time.
    """
    count, batch = len(machine.processors), samples(graph)
    sizes = _sizes(batch // count) if batch % count == 0 else []
    may_fit = _may_fit(graph, machine, rule)

    def first(name: str, plans: list[str]) -> UsualPlan:
        return _first(name, list(filter(may_fit, plans)) or plans[-1:], graph, machine, check, over)

    yield first("DDP", [f"d{count} mb{size}" for size in sizes])
    yield first("FSDP", [f"d{count} mb{size} zero3{again}" for again in FULL for size in sizes])
    yield first("Megatron-LM", [
        f"t{t} p{p} d{count // t // p}{f' e{e}' if e > 1 else ''} mb{size} zero1{again}"
        for again in WHOLE for t, p, e in _shared(graph, machine) if batch % (count // t // p) == 0
        for size in _sizes(min(MOST_SAMPLES if p > 1 else batch, batch // (count // t // p)))
    ])  # fmt: skip


def _may_fit(graph: OperatorGraph, machine: Machine, rule: UpdateRule) -> Callable[[str], bool]:
    """Return what says whether a plan may fit by the closed form, as in a grid: a plan takes a second and more to be looked at."""
    try:
        grid = make_grid(graph, machine, rule)
    except ValueError:  # the machine is not described
        return lambda words: True

    def may_fit(words: str) -> bool:
        plan = parse_plan(words)
        try:
            return grid.memory(plan, samples(graph) // plan.samples_a_pass).nbytes <= (1 + DOUBTFUL) * grid.memory_bytes
        except ValueError:  # the network cannot be cut so, which is said when the plan is made
            return True

    return may_fit


def _sizes(most: int) -> list[int]:
    """Sizes of micro-batches that divide a replica's samples, from all of them down to one."""
    found = [most >> k for k in range(most.bit_length()) if most % (most >> k) == 0]
    return found if not found or found[-1] == 1 else [*found, 1]


def _shared(graph: OperatorGraph, machine: Machine) -> list[tuple[int, int, int]]:
    """How many devices share layers, how many stages there are, and among how many replicas experts are dealt: the first and the
    last within a node."""
    count, node = len(machine.processors), machine.processors[0].node
    there = gcd(sum(processor.node == node for processor in machine.processors), count)
    layers = block_count(graph)
    within, stages = gcd(MOST_TENSOR, there), [p for p in (1 << k for k in range(1, 10)) if p <= layers]
    if (dealt := gcd(there, max(expert_degrees(graph)))) > 1:
        return [(1, p, dealt) for p in (1, *stages) if count % (p * dealt) == 0]
    shares = [1 << k for k in range(within.bit_length())]
    return [*((t, 1, 1) for t in shares), *((within, p, 1) for p in stages if count % (within * p) == 0)]


def _first(
    name: str, plans: list[str], graph: OperatorGraph, machine: Machine, check: MemoryCheck, over: Callable[[], bool]
) -> UsualPlan:
    found = UsualPlan(name, "", why="the batch is not divided evenly by the devices")
    for plan in plans:
        if over():
            return found if found.strategy is not None else UsualPlan(name, plan, why=NO_TIME)
        try:
            strategy = map_graph(HybridParallel(plan), graph, machine)
        except ValueError as error:
            if found.strategy is None:
                found = UsualPlan(name, plan, why=str(error))
            continue
        try:
            found = UsualPlan(name, plan, strategy, check(strategy))
        except BudgetExhausted:
            return UsualPlan(name, plan, why=NO_TIME)
        if not found.lacks:
            break
    return found
