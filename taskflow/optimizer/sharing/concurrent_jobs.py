"""ConcurrentJobs: jobs that have their own devices but share links, simulated as one task graph."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from taskflow.machine import PartOfMachine
from taskflow.mapper import Strategy
from taskflow.optimizer.evaluate import Evaluator, where_time_goes
from taskflow.tasks import Collective, Task, TaskGraph, simulate
from taskflow.tasks.lower import lower

MOST_STEPS = 6  # of one job
MOST_TASKS = 150_000  # of all jobs; of larger ones fewer steps


@dataclass(frozen=True, slots=True)
class ConcurrentJobs:
    """Times of jobs that run together. ``seconds``: of a step of each job while all run. ``alone``: the same without the
    others. ``steps``: how many steps of each were simulated together; 1 for a job that shares no link."""

    seconds: tuple[float, ...]
    alone: tuple[float, ...]
    steps: tuple[int, ...]


def simulate_jobs(evaluators: Sequence[Evaluator], strategies: Sequence[Strategy]) -> ConcurrentJobs:
    """Return the seconds of a step of jobs that run at the same time, each under a strategy for its part of one machine (its
    evaluator's machine is a `PartOfMachine`). Jobs that share links, directly or through other jobs, are merged into one task
    graph and simulated by Algorithm 1. Each job repeats its step for about as long as the longest step takes; a step begins
    when the job's previous step has ended. Raises ValueError if parts are not of one machine, or a device is in two of them."""
    parts = [_part(evaluator) for evaluator in evaluators]
    everyone = [member for part in parts for member in part.members]
    if any(part.whole is not parts[0].whole for part in parts) or len(set(everyone)) < len(everyone):
        raise ValueError(f"simulate_jobs: jobs need parts of one machine without a device in two of them, got {everyone}")
    alone, links = [], []
    for evaluator, strategy in zip(evaluators, strategies):
        alone.append(evaluator.set(strategy))
        links.append(set(where_time_goes(evaluator, path=False).link_seconds))
    seconds, steps = list(alone), [1] * len(alone)
    for group in _connected(links):
        if len(group) > 1:
            found, repeats = _contending([evaluators[j] for j in group], [strategies[j] for j in group], [alone[j] for j in group])
            for j, one, many in zip(group, found, repeats):
                seconds[j], steps[j] = one, many
    return ConcurrentJobs(tuple(seconds), tuple(alone), tuple(steps))


def _part(evaluator: Evaluator) -> PartOfMachine:
    if not isinstance(evaluator.machine, PartOfMachine):
        raise ValueError(f"simulate_jobs: jobs need parts of one machine, got {evaluator.machine.name}")
    return evaluator.machine


def _connected(links: Sequence[set[int]]) -> list[list[int]]:
    """The jobs in groups that share links."""
    groups: list[tuple[list[int], set[int]]] = []
    for job, used in enumerate(links):
        own = [group for group in groups if group[1] & used]
        merged = sorted([job, *(j for group in own for j in group[0])]), used.union(*(group[1] for group in own))
        groups = [group for group in groups if group not in own] + [merged]
    return [group[0] for group in groups]


def _contending(
    evaluators: Sequence[Evaluator], strategies: Sequence[Strategy], alone: Sequence[float]
) -> tuple[list[float], list[int]]:
    graphs = [lower(e.graph, s, e.rule, clip_norm=e.clip_norm) for e, s in zip(evaluators, strategies)]
    longest, size = max(alone), sum(map(len, graphs))
    most = max(1, min(MOST_STEPS, MOST_TASKS // max(1, size)))
    repeats = [max(1, min(most, round(longest / seconds))) if seconds > 0 else 1 for seconds in alone]
    parts = [_part(evaluator) for evaluator in evaluators]
    merged, owners = merge(graphs, [part.members for part in parts], repeats)
    costs = [e.costs.pace(graph, strategy) for e, graph, strategy in zip(evaluators, graphs, strategies)]
    asked = 0

    def cost(task: Task) -> float:
        nonlocal asked
        asked += 1
        if not asked % 256:
            evaluators[0].checkpoint()
        job, original = owners[task.number]
        return costs[job](graphs[job].tasks[original])

    timeline = simulate(merged, parts[0].whole, cost)
    ends = [0.0] * len(graphs)
    for span in timeline.spans:
        job = owners[span.task][0]
        ends[job] = max(ends[job], span.end)
    return [end / many for end, many in zip(ends, repeats)], repeats


def merge(
    graphs: Sequence[TaskGraph], members: Sequence[Sequence[int]], repeats: Sequence[int]
) -> tuple[TaskGraph, list[tuple[int, int]]]:
    """Merge several task graphs into one, each repeated as often as ``repeats`` says. Also returns for each task the graph and
    the number there. ``members``: the processors of each graph. Only what the simulation reads is merged: no buffers. Tasks of
    different graphs alternate, so that of those that are ready at the same time no graph's always come first."""
    rows: list[tuple[float, int, int, int]] = []  # (place, graph, repetition, number there)
    for g, (graph, many) in enumerate(zip(graphs, repeats)):
        whole = max(1, many * len(graph))
        rows += [((r * len(graph) + i) / whole, g, r, i) for r in range(many) for i in range(len(graph))]
    rows.sort()
    number = {(g, r, i): n for n, (_, g, r, i) in enumerate(rows)}
    last = []
    for graph in graphs:
        before = {b for task in graph.tasks for b in task.after}
        last.append([task.number for task in graph.tasks if task.number not in before])
    merged = TaskGraph(1 + max(map(max, members)))
    for n, (_, g, r, i) in enumerate(rows):
        task = graphs[g].tasks[i]
        after = tuple(number[g, r, b] for b in task.after)
        if not after and r:
            after = tuple(number[g, r - 1, b] for b in last[g])
        merged.tasks.append(_moved(task, members[g], n, after))
    return merged, [(g, i) for _, g, _, i in rows]


def _moved(task: Task, members: Sequence[int], number: int, after: tuple[int, ...]) -> Task:
    work = task.work
    if isinstance(work, Collective):
        work = replace(work, group=tuple([members[p] for p in work.group]))
    return replace(
        task, number=number, after=after, processor=members[task.processor], source=members[task.source], work=work
    )
