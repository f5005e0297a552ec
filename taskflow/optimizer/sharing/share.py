"""share: decides which devices of a cluster each of several jobs gets, and each job's plan.

Quincy (Isard et al., SOSP 2009) and Firmament (Gog et al., OSDI 2016) assign tasks to machines at the least total cost, where
costs depend on where a task runs. Here a job is assigned to a group of devices, and the cost is its predicted step there. A
group's worth is not the sum of its devices', so a flow, whose costs are sums over arcs, does not apply. Instead the divisions
themselves are ranked by the jobs' times if each were alone on its group. Jobs that share links are no faster together, so these
times are a lower bound. Divisions are simulated in this order until the next bound is no better than the best result.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import islice
from math import inf, isfinite
from typing import Any

from taskflow.graph import OperatorGraph
from taskflow.machine import Cluster, PartOfMachine
from taskflow.mapper import Strategy
from taskflow.optimizer.budget import Budget, Deadline
from taskflow.optimizer.cost import AnalyticCosts, ModelCosts
from taskflow.optimizer.evaluate import Evaluator
from taskflow.optimizer.evaluate import evaluator as new_evaluator
from taskflow.optimizer.search import search
from taskflow.optimizer.session import NothingFits
from taskflow.optimizer.sharing.concurrent_jobs import simulate_jobs
from taskflow.optimizer.sharing.divisions import (
    Division,
    Shape,
    Units,
    divisions,
    equal_division,
    inside,
    members,
    shape_of,
    units,
)
from taskflow.rules import UpdateRule

OBJECTIVES = ("slowest", "throughput")
MOST_DIVISIONS = 20_000  # of the devices among jobs that are all compared
FOR_PLANS = 0.7  # of the seconds; the rest is for simulating jobs together


@dataclass(frozen=True, slots=True)
class Job:
    """Network to train. ``weight``: of its throughput. ``starts``: plans from which its searches start, if they are for the
    right number of devices."""

    name: str
    graph: OperatorGraph
    rule: UpdateRule | None
    weight: float = 1.0
    starts: tuple[Strategy, ...] = ()


@dataclass(frozen=True, slots=True)
class JobShare:
    """Share of one job: devices, and a plan for the whole machine that uses only these. Seconds of a step: while all jobs run,
    alone on its devices, and with the whole machine to itself."""

    name: str
    weight: float
    devices: tuple[int, ...]
    strategy: Strategy
    seconds: float
    group_seconds: float
    machine_seconds: float

    @property
    def slowdown(self) -> float:
        """Step time relative to having the whole machine."""
        return self.seconds / self.machine_seconds


@dataclass(frozen=True, slots=True)
class Sharing:
    """Division of the machine. ``equal``: the result for equal shares. ``divisions``: the number of divisions; ``ranked``: of
    those whose steps were all predicted; ``simulated``: of those simulated with all jobs together. ``complete``: no division is
    better, given the plans that were found, and if jobs are no faster together than alone."""

    objective: str
    jobs: tuple[JobShare, ...]
    equal: tuple[JobShare, ...]
    divisions: int
    ranked: int
    simulated: int
    complete: bool
    seconds: float
    interrupted: bool = False

    @property
    def slowest(self) -> float:
        """The largest slowdown."""
        return max(job.slowdown for job in self.jobs)

    @property
    def throughput(self) -> float:
        """Weighted mean of the jobs' speeds, each relative to its speed with the whole machine."""
        return throughput(self.jobs)

    @property
    def turns(self) -> dict[str, float]:
        """Score of taking turns: every job has the whole machine for an equal part of the time."""
        return {"slowest": float(len(self.jobs)), "throughput": 1 / len(self.jobs)}

    def as_json(self) -> dict[str, Any]:
        """Return everything but the plans, with units in the keys."""
        return {
            "objective": self.objective, "slowest_slowdown": self.slowest, "throughput": self.throughput,
            "jobs": [_as_json(job) for job in self.jobs],
            "compared": {
                "equal parts": {
                    "slowest_slowdown": max(job.slowdown for job in self.equal) if self.equal else None,
                    "throughput": throughput(self.equal) if self.equal else None, "jobs": [_as_json(job) for job in self.equal],
                },
                "taking turns": {"slowest_slowdown": self.turns["slowest"], "throughput": self.turns["throughput"]},
            },
            "divisions": self.divisions, "divisions_ranked": self.ranked, "divisions_simulated": self.simulated,
            "complete": self.complete, "seconds": self.seconds, "interrupted": self.interrupted,
        }


def throughput(jobs: Sequence[JobShare]) -> float:
    """Return the weighted mean speed, as in `Sharing.throughput`."""
    return sum(job.weight / job.slowdown for job in jobs) / sum(job.weight for job in jobs)


def _as_json(job: JobShare) -> dict[str, Any]:
    return {
        "name": job.name, "weight": job.weight, "devices": list(job.devices), "plan": job.strategy.name,
        "iteration_seconds": job.seconds, "iteration_seconds_without_the_others": job.group_seconds,
        "iteration_seconds_with_all_devices": job.machine_seconds, "slowdown": job.slowdown,
    }


def score(objective: str, slowdowns: Sequence[float], weights: Sequence[float]) -> float:
    """Return what is minimised: the largest slowdown, or minus the weighted throughput."""
    if objective == "slowest":
        return max(slowdowns)
    return -sum(weight / slowdown for weight, slowdown in zip(weights, slowdowns))


def share(
    jobs: Sequence[Job], machine: Cluster, *, budget: Budget | str | float = 30.0, seed: int = 0, objective: str = "slowest",
    say: Callable[[str], None] | None = None,
) -> Sharing:
    """Divide ``machine`` among ``jobs``. ``budget``: of all searches for plans together, and of the simulations; plans for the
    whole machine and for equal shares are always searched. ``objective``: one of OBJECTIVES. Ctrl-C ends with the best division
    so far, as soon as there is one.

    Raises ValueError for fewer than two jobs, fewer devices than jobs, a weight that is not positive, and if no division was
    found in which every job fits its devices' memory."""
    if len(jobs) < 2:
        raise ValueError(f"share: needs two jobs or more, got {len(jobs)}; for one use search")
    if objective not in OBJECTIVES:
        raise ValueError(f"share: objective must be one of {', '.join(OBJECTIVES)}, got {objective!r}")
    for job in jobs:
        if not (isfinite(job.weight) and job.weight > 0):
            raise ValueError(f"share: the weight of {job.name} must be more than 0, got {job.weight:g}")
    return _Share(jobs, machine, Budget.parse(budget), seed, objective, say or (lambda text: None)).found()


class _Share:
    def __init__(
        self, jobs: Sequence[Job], machine: Cluster, budget: Budget, seed: int, objective: str, say: Callable[[str], None]
    ) -> None:
        self.jobs, self.machine, self.budget, self.seed, self.objective, self.say = jobs, machine, budget, seed, objective, say
        self.deadline = Deadline(budget.seconds)
        self.units: Units = units(machine, len(jobs))
        self.plans: dict[tuple[int, Shape], tuple[float, Strategy | None]] = {}
        self.interrupted = False

    def found(self) -> Sharing:
        count = len(self.jobs)
        every = list(islice(divisions(self.units, count), MOST_DIVISIONS + 1))
        listed, every = len(every) <= MOST_DIVISIONS, every[:MOST_DIVISIONS]
        equal, everything = equal_division(self.units, count), tuple(len(place) for place in self.units.places)
        whole = shape_of(self.units, everything)
        pairs = [(j, whole) for j in range(count)] + [(j, shape_of(self.units, row)) for j, row in enumerate(equal)]
        first = len(dict.fromkeys(pairs))
        pairs += [(j, shape_of(self.units, division[j])) for division in every for j in range(count)]
        self._find_plans(list(dict.fromkeys(pairs)), first, everything)
        self._with_fewer()
        alone = [self.plans[j, whole][0] if (j, whole) in self.plans else None for j in range(count)]
        if None in alone:
            raise KeyboardInterrupt  # before there was anything
        if unfit := [job.name for job, seconds in zip(self.jobs, alone) if not isfinite(seconds or inf)]:
            raise ValueError(f"share: {unfit[0]} does not fit the memory of all devices of {self.machine.name}; leave it out")
        times = [seconds for seconds in alone if seconds is not None]
        best, ranked, simulated, complete = self._ranked(every, times)
        halves = self._jobs_of(equal, times) if self._score(equal, times) < inf else ()
        return Sharing(
            self.objective, best, halves, len(every), ranked, simulated, complete and listed, self.deadline.elapsed,
            self.interrupted,
        )

    # ---- plans ---------------------------------------------------------------------------------------------------
    def evaluator(self, job: Job, group: Sequence[int]) -> Evaluator:
        """Return an evaluator of a job on some of the devices."""
        part = PartOfMachine(self.machine, tuple(group))
        costs = ModelCosts(AnalyticCosts(part), job.graph, part, job.rule)
        return new_evaluator(job.graph, part, costs, job.rule, None, "auto")

    def _find_plans(self, pairs: Sequence[tuple[int, Shape]], needed: int, everything: Sequence[int]) -> None:
        """The best plan of each job on a group of each shape, while the time lasts; the ``needed`` first in any case."""
        whole = shape_of(self.units, everything)
        for number, (j, shape) in enumerate(pairs):
            left = self.deadline.left - (1 - FOR_PLANS) * self.budget.seconds if isfinite(self.budget.seconds) else inf
            if self.interrupted or (number >= needed and left <= 0):
                return
            self.say(f"plans for {self.jobs[j].name} ({number + 1} of {len(pairs)})")
            seconds = max(left, 0.0) / (len(pairs) - number) if isfinite(left) else inf
            proposals = max(1, self.budget.proposals // len(pairs)) if isfinite(self.budget.proposals) else inf
            row = everything if shape == whole else self._row(shape)
            self.plans[j, shape] = self._plan(self.jobs[j], members(self.units, (tuple(row),))[0], max(seconds, 1e-3), proposals)

    def _with_fewer(self) -> None:
        """Use a plan for fewer devices where it is faster than the one found for more; the other devices are idle."""
        def size(shape: Shape) -> int:
            return len(inside(self.units, shape, shape) or ())

        for j, large in sorted(self.plans, key=lambda pair: size(pair[1])):
            for other, small in list(self.plans):
                seconds, plan = self.plans[other, small]
                if other == j and plan is not None and seconds < self.plans[j, large][0]:
                    where = inside(self.units, small, large)
                    if where is not None:
                        self.plans[j, large] = seconds, plan.on_members(where, size(large))

    def _row(self, shape: Shape) -> tuple[int, ...]:
        """Units on each place of a group of this shape."""
        left = list(shape)
        row = []
        for kind, place in zip(self.units.kinds, self.units.places):
            entry = next((e for e in left if e[0] == kind and e[1] <= len(place)), None)
            row.append(entry[1] if entry else 0)
            if entry:
                left.remove(entry)
        return tuple(row)

    def _plan(self, job: Job, group: tuple[int, ...], seconds: float, proposals: float) -> tuple[float, Strategy | None]:
        evaluator = self.evaluator(job, group)
        starts = tuple(start for start in job.starts if start.processors == len(group) and not start.ordered)
        try:
            found = search(
                job.graph, evaluator.machine, budget=Budget(seconds, proposals), seed=self.seed, use=evaluator, workers=1,
                starts=starts,
            )
        except NothingFits:
            return inf, None
        except KeyboardInterrupt:
            self.interrupted = True
            return inf, None
        self.interrupted |= found.stopped == "interrupted"
        return found.seconds, found.strategy

    # ---- divisions -----------------------------------------------------------------------------------------------
    def _score(self, division: Division, alone: Sequence[float]) -> float:
        """Score of a division if jobs did not slow each other down; infinite if a job has no plan there."""
        slowdowns = []
        for j, row in enumerate(division):
            seconds, plan = self.plans.get((j, shape_of(self.units, row)), (inf, None))
            if plan is None:
                return inf
            slowdowns.append(seconds / alone[j])
        return score(self.objective, slowdowns, [job.weight for job in self.jobs])

    def _ranked(self, every: Sequence[Division], alone: Sequence[float]) -> tuple[tuple[JobShare, ...], int, int, bool]:
        """The jobs of the best division, how many were ranked and simulated, and whether none can be better."""
        bounds = sorted((self._score(division, alone), i) for i, division in enumerate(every))
        possible = [(bound, i) for bound, i in bounds if bound < inf]
        if not possible:
            if self.interrupted:
                raise KeyboardInterrupt
            raise ValueError(
                f"share: found no division of {self.machine.name} in which every job fits its devices' memory; use more devices, "
                "smaller batches, fewer jobs or a larger budget"
            )
        best: tuple[JobShare, ...] = ()
        least, simulated = inf, 0
        weights = [job.weight for job in self.jobs]
        for bound, i in possible:
            if bound >= least:
                break
            if simulated and (self.deadline.expired or self.interrupted):
                return best, len(possible), simulated, False
            self.say(f"division {simulated + 1}: jobs together")
            try:
                jobs = self._jobs_of(every[i], alone)
            except KeyboardInterrupt:
                if not simulated:
                    raise
                self.interrupted = True
                continue
            simulated += 1
            if (worth := score(self.objective, [job.slowdown for job in jobs], weights)) < least:
                best, least = jobs, worth
        return best, len(possible), simulated, len(possible) == len(every)

    def _jobs_of(self, division: Division, alone: Sequence[float]) -> tuple[JobShare, ...]:
        """The jobs of a division, simulated together."""
        groups = members(self.units, division)
        plans: list[Strategy] = []
        for j, row in enumerate(division):
            plan = self.plans[j, shape_of(self.units, row)][1]
            assert plan is not None
            plans.append(plan)
        found = simulate_jobs([self.evaluator(job, group) for job, group in zip(self.jobs, groups)], plans)
        strategies = [plan.on_members(group, len(self.machine.processors)) for plan, group in zip(plans, groups)]
        return tuple(
            JobShare(job.name, job.weight, tuple(sorted(group)), strategy, seconds, own, whole)
            for job, group, strategy, seconds, own, whole in zip(
                self.jobs, groups, strategies, found.seconds, found.alone, alone
            )
        )
