"""plan: the strategy of a training run, which may have to be searched for, or tried, first."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from time import perf_counter

from taskflow.graph import OperatorGraph
from taskflow.kernels import KernelSet
from taskflow.machine import Machine
from taskflow.mapper import MAPPERS, DataParallel, Mapper, Strategy, choose, is_plan
from taskflow.optimizer import Budget, make_evaluator, search
from taskflow.optimizer.cost import ANALYTIC, choose_costs
from taskflow.rules import UpdateRule
from taskflow.runtime import Executor
from taskflow.runtime.transport import Transport
from taskflow.training.data import random_feeds
from taskflow.training.program.rank_agreement import on_all_ranks
from taskflow.wording import listed, milliseconds
from taskflow.writing import one_line

SEARCH_BUDGET = "5s"
PATIENCE_SECONDS = 3600.0
"""How long ranks wait, at least, while the first one measures the costs of tasks."""


def plan(
    name: str,
    graph: OperatorGraph,
    machine: Machine,
    transport: Transport,
    *,
    rule: UpdateRule,
    clip_norm: float | None = None,
    seed: int = 0,
    budget: Budget | str | float = SEARCH_BUDGET,
    say: Callable[[str], None] | None = None,
    kernels: KernelSet | None = None,
    costs: str = ANALYTIC,
    or_search: bool = False,
) -> tuple[Strategy, Mapper]:
    """Return the strategy for a mapper's name, the same on every rank, and the mapper that answers the runtime's other
    questions.

    ``search``: rank 0 searches for ``budget``, with the ``costs`` of this name (`choose_costs`), tells ``say`` the predicted
    times, and sends the plan to the others. ``best``: the data-parallel, the expert's and the searched plan run a few steps
    each (see `trial`). The fastest is taken, and among equally fast ones the one that needs least memory. Other names go to
    `taskflow.choose`; ``or_search``: a plan that this machine cannot have is searched for instead. ``kernels``: those of the
    trial. Every rank must call this. Raises what `choose` and `search` raise, on every rank.
    """
    if name == "search":
        return _searched(graph, machine, transport, rule, clip_norm, seed, budget, say, costs), DataParallel()
    if name != "best":
        if name not in MAPPERS and not name.endswith(".json") and ":" not in name and not is_plan(name):
            raise ValueError(
                f"no mapper {name!r}; use {', '.join(MAPPERS)}, search, best, a plan such as 't2 p2 mb1', a strategy file "
                "FILE.json, or package.module:Class"
            )
        try:
            return on_all_ranks(transport, lambda: choose(name, graph, machine, seed=seed))
        except ValueError as error:
            if not or_search:
                raise
            if say is not None:
                say(f"no plan {name} here ({one_line(error)}): searching for one ({budget})")
            return _searched(graph, machine, transport, rule, clip_norm, seed, budget, say, costs), DataParallel()
    candidates = {other: choose(other, graph, machine)[0] for other in ("data", "expert")}
    candidates["search"] = _searched(graph, machine, transport, rule, clip_norm, seed, budget, say, costs)
    different = {name: s for name, s in candidates.items() if next(k for k, v in candidates.items() if _same(v, s)) == name}
    if len(different) == 1:
        return candidates["data"], DataParallel()
    tried = trial(different, graph, machine, transport, rule, clip_norm=clip_norm, kernels=kernels)
    chosen = best(tried).name
    if say is not None:
        say(f"best: {chosen} ({', '.join(map(str, tried))})")
    return candidates[chosen], DataParallel()


def _same(one: Strategy, other: Strategy) -> bool:
    """True if they differ only in their names."""
    return replace(one, name=other.name) == other


def _searched(
    graph: OperatorGraph, machine: Machine, transport: Transport, rule: UpdateRule, clip_norm: float | None, seed: int,
    budget: Budget | str | float, say: Callable[[str], None] | None, costs: str,
) -> Strategy:
    """Rank 0's search result, on every rank. While rank 0 measures, the others leave the processor to it, however long that
    takes."""
    result: Strategy | str = ""
    if transport.rank == 0:
        try:
            model = None if costs == ANALYTIC else choose_costs(costs, graph, machine, rule, ranks=transport.size)
            evaluator = make_evaluator(graph, machine, costs=model, rule=rule, clip_norm=clip_norm)
            try:
                found = search(graph, machine, budget=budget, seed=seed, use=evaluator)
            finally:
                evaluator.costs.close()  # before anything trains beside it
            if found.stopped == "interrupted":  # the other ranks have been told by the signal too, and leave
                raise KeyboardInterrupt
            result = found.strategy
            if say is not None:
                times = listed(f"{k} {milliseconds(v)} ms" for k, v in found.starts.items())
                beside = listed((f"predicted for {times}" if times else "", f"costs: {evaluator.costs.name}"), "; ")
                say(f"search: predicted {milliseconds(found.seconds)} ms a step ({beside})\nsearch: {found}")
        except (ValueError, OSError) as error:  # the other ranks are waiting: they must end too
            result = str(error)
    with transport.patient(PATIENCE_SECONDS) if costs != ANALYTIC else nullcontext():
        result = transport.broadcast(result)
    if isinstance(result, str):
        raise ValueError(result)
    return result


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
