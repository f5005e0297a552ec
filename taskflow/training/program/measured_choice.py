"""trial: measures which of several strategies is the fastest here, by taking steps under each."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from time import perf_counter

from taskflow.graph import OperatorGraph
from taskflow.kernels import KernelSet
from taskflow.machine import Machine
from taskflow.mapper import Strategy
from taskflow.rules import UpdateRule
from taskflow.runtime import Executor
from taskflow.runtime.transport import Transport
from taskflow.training.data import random_feeds

STEPS = 3
"""Steps of each strategy that are timed, after one that is not; the fastest counts."""
NEAR = 1.03
"""Times that differ by less than this factor are taken for equal: then the plan that needs least memory wins."""


@dataclass(frozen=True, slots=True)
class MeasuredStrategy:
    """Step of one strategy: ``seconds`` of the slowest rank, and ``nbytes`` that all ranks plan for it together."""

    name: str
    seconds: float
    nbytes: int

    def __str__(self) -> str:
        return f"{self.name} {self.seconds * 1e3:.4g} ms {self.nbytes / 1e6:.0f} MB"


def trial(
    candidates: Mapping[str, Strategy], graph: OperatorGraph, machine: Machine, transport: Transport, rule: UpdateRule, *,
    clip_norm: float | None = None, kernels: KernelSet | None = None,
) -> list[MeasuredStrategy]:
    """Measure a few training steps under each of the ``candidates``, on random data and with a learning rate of 0. They run one
    after the other, each with memory and messages of its own, which are freed afterwards. Every rank calls it and gets the same
    answer. Raises what an Executor raises."""
    feeds = random_feeds(graph)
    times: dict[str, tuple[float, int]] = {}
    for name, strategy in candidates.items():
        own = transport.duplicate()
        run = Executor(graph, strategy, rule, transport=own, machine=machine, clip_norm=clip_norm, kernels=kernels)
        memory = run.program("train").plan.memory.nbytes + run.kept.nbytes
        seconds = []
        for _ in range(1 + STEPS):
            own.barrier()
            start = perf_counter()
            run.train(feeds, lr=0.0)
            run.close()
            seconds.append(perf_counter() - start)
        times[name] = min(seconds[1:]), memory
        del run
        own.close()
    found = transport.gather(times)
    tried = None
    if found is not None:
        tried = [
            MeasuredStrategy(name, max(rank[name][0] for rank in found), sum(rank[name][1] for rank in found))
            for name in candidates
        ]
    answer: list[MeasuredStrategy] = transport.broadcast(tried)
    return answer


def best(tried: Sequence[MeasuredStrategy]) -> MeasuredStrategy:
    """Return the strategy that needs least memory (the first of equals) among those about as fast as the fastest."""
    limit = NEAR * min(each.seconds for each in tried)
    return min((each for each in tried if each.seconds <= limit), key=lambda each: each.nbytes)
