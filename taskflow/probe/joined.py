"""Measured steps beside the predicted one: the same parts of both, and what explains the difference, in order of size."""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median

from taskflow.machine import Cluster
from taskflow.mapper import Strategy
from taskflow.optimizer.cost import unit_message
from taskflow.optimizer.evaluate import Evaluator
from taskflow.probe.kineto import LOSS, RankTrace
from taskflow.probe.kineto_gpu import Slice, TimeOf, first_of
from taskflow.tasks import Compute, Kind, Purpose, Task

NUMBER = re.compile(r"(?<![^.])\d+(?=\.)")
OF_PURPOSE = {Purpose.WEIGHT_GRADIENTS: "gradients", Purpose.UNSHARDED: "weights", Purpose.NEW_WEIGHTS: "weights"}
SLOWER = 1.15
"""A rank whose common modules take this much longer than another's is slow."""
COMPUTE = ("forward", "backward", "loss")
SAID = {
    "gradients": "messages: sums of gradients", "weights": "messages: gathers of weights", "activations": "messages: activations",
    "stage": "waiting for another stage", "loss sum": "the sum of the loss", "unit": "units of FSDP2 (hooks, copies)",
    "update": "the update", "host": "host: nothing runs", "loss": "the loss",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class PartRowOfStep:
    """A part of a step on the rank that is explained: predicted and measured seconds."""

    kind: str
    owner: str
    predicted_seconds: float
    measured_seconds: float

    @property
    def difference_seconds(self) -> float:
        """Measured minus predicted seconds."""
        return self.measured_seconds - self.predicted_seconds


@dataclass(frozen=True, slots=True)
class Cause:
    """What explains so many seconds of the difference between measured and predicted."""

    what: str
    seconds: float


@dataclass(frozen=True, slots=True)
class Joined:
    """A measured step beside the predicted one. ``rank``: that is explained, which waits least. ``rows``: its parts, by module
    (numbers as #). ``causes``: of the difference, the largest first; they add up to it. ``named``: the part of the measured step
    that has a name. ``ranks``: of each rank, seconds by kind."""

    measured_seconds: float
    predicted_seconds: float
    rank: int
    rows: tuple[PartRowOfStep, ...]
    causes: tuple[Cause, ...]
    named: float
    ranks: Mapping[int, Mapping[str, float]]


def joined(evaluator: Evaluator, strategy: Strategy, traces: Sequence[RankTrace]) -> Joined:
    """Join the traces of ranks to the step that is predicted for a strategy. Raises ValueError for traces of another run: of ranks
    that the plan has not, of one rank twice, of other modules, or of another number of ranks."""
    paths = frozenset[str]().union(*(trace.paths for trace in traces))
    _require_same_run(evaluator, traces, paths)
    known = {trace.rank: trace.known for trace in traces}
    waits = {rank: sum(s for part, s in parts.items() if part.message) for rank, parts in known.items()}
    chosen = min(waits, key=lambda rank: waits[rank])
    seconds = median(max(steps) for steps in zip(*(trace.seconds for trace in traces)))
    predicted = predicted_parts(evaluator, strategy, chosen, paths)
    rows = _rows(predicted, known[chosen], paths)
    slow = _excess(known, chosen, paths)
    host = known[chosen].get(TimeOf("host"), 0.0)
    whole = sum(known[chosen].values())
    return Joined(
        seconds, evaluator.seconds_of(strategy) if not evaluator.at(strategy) else evaluator.seconds, chosen, rows,
        _causes(rows, slow, chosen), 1 - host / whole if whole else 0.0,
        {rank: by_kind(parts) for rank, parts in known.items()},
    )  # fmt: skip


def _require_same_run(evaluator: Evaluator, traces: Sequence[RankTrace], paths: frozenset[str]) -> None:
    count, ranks = len(evaluator.machine.processors), [trace.rank for trace in traces]
    for trace in traces:
        if trace.ranks not in (None, count):
            raise ValueError(
                f"the trace of rank {trace.rank} is of a run on {trace.ranks} ranks, and the plan is for {count}; "
                "give the plan that ran"
            )
    if not traces or len(set(ranks)) < len(ranks) or max(ranks) >= count:
        raise ValueError(
            f"needs traces of different ranks of the {count} that the plan has, got ranks {', '.join(map(str, ranks)) or 'none'}"
        )
    if paths and not any(owner_of(node.name, paths) for node in evaluator.graph):
        few, graph = ", ".join(sorted(paths)[:3]), evaluator.graph
        own = ", ".join([node.name for node in graph if node.parameters][:3])
        raise ValueError(
            f"the traces are of another network: their modules ({few}, ...) have no operator of {graph.name} ({own}, ...); "
            "give the network that ran"
        )


# ---- what is predicted -----------------------------------------------------------------------------------------------
def predicted_parts(evaluator: Evaluator, strategy: Strategy, processor: int, paths: frozenset[str]) -> dict[TimeOf, float]:
    """Return the seconds of a processor's predicted step by part, as a trace has them. Messages beside computing count where
    nothing else runs, and so does the waiting for any message. A rank waits in the end for another stage, if there are some."""
    tasks, timeline = evaluator.evaluated(strategy)
    machine = evaluator.machine
    library, program = machine.collectives if isinstance(machine, Cluster) else None, machine.processors[processor].device.program
    blocks = library is not None and library.blocks
    computing, messages = list[Slice](), list[Slice]()
    for task in tasks.tasks:
        if processor not in task.processors:
            continue
        span, part = timeline.spans[task.number], _part_of(task, paths, strategy)
        begin = span.starts[-1] if span.starts else span.start
        if task.kind.travels:
            messages.append((begin, span.end, part))
        if task.kind.travels and not (blocks and task.kind is Kind.COLLECTIVE):
            continue
        if task.kind is Kind.COLLECTIVE and program is not None and part.kind in ("gradients", "weights"):
            unit = min(span.end - begin, program.of_unit(unit_message(task), _array(task)))
            computing.append((begin, begin + unit, TimeOf("unit", part.owner)))
            begin += unit
        computing.append((begin, span.end, part))
    messages.sort(key=lambda message: message[0])
    starts = [begin for begin, _, _ in messages]
    pipelined = strategy.pipeline is not None and strategy.pipeline.ranks > 1
    found = dict[TimeOf, float]()
    ends: list[Slice] = [(time, time, TimeOf("host")) for time in (0.0, timeline.makespan)]
    for begin, end, part in first_of([*computing, *messages, *ends]):
        if part.kind == "host":
            following = bisect_left(starts, begin)
            part = messages[following][2] if following < len(messages) else TimeOf("stage") if pipelined else part
        _add(found, part, end - begin)
    return found


def _array(task: Task) -> float:
    halves = getattr(task.work, "halves", 2) or 1
    return task.nbytes / halves / max(1, len(task.processors) - 1)


def _part_of(task: Task, paths: frozenset[str], strategy: Strategy) -> TimeOf:
    work = task.work
    if isinstance(work, Compute):
        name = work.node.name
        if work.node.operator.kind in ("cross_entropy", "mse_loss", "class_blocks", "cross_entropy_of_blocks"):
            return TimeOf(LOSS)
        return TimeOf("backward" if work.backward else "forward", owner_of(name, paths))
    if task.kind is Kind.UPDATE:
        return TimeOf("update")
    if task.kind.travels:
        kind = OF_PURPOSE.get(task.topic.purpose)
        if kind is not None:
            return TimeOf(kind, owner_of(str(task.topic.name or ""), paths))
        return TimeOf("stage" if task.kind is Kind.COPY and strategy.pipeline is not None else "activations")
    return TimeOf("unit" if task.topic.purpose in OF_PURPOSE else "forward", "")


def owner_of(name: str, paths: frozenset[str]) -> str:
    """Return the innermost module that has an operator, by its name."""
    words = name.split(".")
    return next((path for n in range(len(words), 0, -1) if (path := ".".join(words[:n])) in paths), "")


def _add(found: dict[TimeOf, float], part: TimeOf, seconds: float) -> None:
    found[part] = found.get(part, 0.0) + seconds


# ---- the difference --------------------------------------------------------------------------------------------------
def _alike(owner: str, paths: frozenset[str]) -> str:
    """The name of a module and of those that are alike: a layer's number is left out, that of a function within a layer is not."""
    layer = any(path.startswith(f"{owner}.") for path in paths)
    return NUMBER.sub("#", f"{owner}.")[:-1] if layer and "." in owner else NUMBER.sub("#", owner)


def _rows(
    predicted: Mapping[TimeOf, float], measured: Mapping[TimeOf, float], paths: frozenset[str]
) -> tuple[PartRowOfStep, ...]:
    both: dict[tuple[str, str], list[float]] = {}
    for place, parts in enumerate((predicted, measured)):
        for part, seconds in parts.items():
            key = part.kind, "" if part.message or part.kind == "unit" else _alike(part.owner, paths)
            both.setdefault(key, [0.0, 0.0])[place] += seconds
    rows = [PartRowOfStep(*key, *seconds) for key, seconds in both.items()]
    return tuple(sorted(rows, key=lambda row: -row.measured_seconds))


def _excess(
    known: Mapping[int, Mapping[TimeOf, float]], chosen: int, paths: frozenset[str]
) -> dict[tuple[str, str], float]:
    """By how much modules take longer on a rank than on the fastest other that has them; none if that is not much of all."""
    more: dict[tuple[str, str], float] = {}
    own = least = 0.0
    for part, seconds in known[chosen].items():
        others = [parts[part] for rank, parts in known.items() if rank != chosen and part in parts]
        if part.kind in (*COMPUTE, "host") and others:
            own, least = own + seconds, least + min(seconds, *others)
            key = part.kind, _alike(part.owner, paths)
            more[key] = more.get(key, 0.0) + max(0.0, seconds - min(others))
    return more if least > 0 and own > SLOWER * least else {}


def _causes(rows: Iterable[PartRowOfStep], slow: Mapping[tuple[str, str], float], rank: int) -> tuple[Cause, ...]:
    found = []
    if (together := sum(slow.values())) > 0:
        found.append(Cause(f"rank {rank} computes more slowly than others", together))
    for row in rows:
        left = row.difference_seconds - slow.get((row.kind, row.owner), 0.0)
        if left:
            where = SAID.get(row.kind) or f"{row.owner or 'functions outside of modules'}, {row.kind}"
            found.append(Cause(where, left))
    return tuple(sorted(found, key=lambda cause: -abs(cause.seconds)))


def by_kind(parts: Mapping[TimeOf, float]) -> dict[str, float]:
    """Return the seconds of each kind of part."""
    found: dict[str, float] = {}
    for part, seconds in parts.items():
        found[part.kind] = found.get(part.kind, 0.0) + seconds
    return found
