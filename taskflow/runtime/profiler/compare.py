"""Differences between predicted and measured times in a trace, by operator and part of the step, and task by task."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from statistics import median
from typing import Any

from taskflow.runtime.profiler.events import COVERING
from taskflow.runtime.profiler.predicted import PREDICTED

_LOOK_SECONDS = 10e-6
"""A wait that is shorter found the message there: looking takes some microseconds."""
_PHASES = ("forward", "backward", "synchronisation", "transfer", "other")


@dataclass(frozen=True, slots=True)
class Row:
    """All tasks of an operator (for synchronisation, of a layer) in one part of a step, on all processors together. A message's
    time lasts from when both sides had begun it until the receiver saw its end. If the receiver was busy with something else
    meanwhile, so that nobody waited, that is only an upper bound, and counts as ``at_most``. ``waited_seconds``: how long ranks
    stood still for messages."""

    operator: str
    phase: str
    tasks: int
    predicted_seconds: float
    measured_seconds: float
    waited_seconds: float
    nbytes: int
    at_most: bool = False

    @property
    def difference_seconds(self) -> float:
        """Measured minus predicted seconds."""
        return self.measured_seconds - self.predicted_seconds

    @property
    def ratio(self) -> float | None:
        """Measured over predicted; None if nothing was predicted, or if the measured time is only an upper bound above the
        prediction."""
        if self.predicted_seconds <= 0 or self.unknown:
            return None
        return self.measured_seconds / self.predicted_seconds

    @property
    def unknown(self) -> bool:
        """True if the prediction is consistent with everything that was measured, because times are only upper bounds."""
        return self.at_most and self.measured_seconds > self.predicted_seconds


@dataclass(frozen=True, slots=True)
class Differences:
    """Comparison of a trace in numbers; times are medians over its steps. ``by_task``: a row for each task (its name instead of
    the operator's). ``rank_seconds``: of each rank's step, seconds by activity (compute, send, receive, wait, other).
    ``predicted_in_turn_seconds``: sum of the predicted times of all tasks that are no messages."""

    about: Mapping[str, Any]
    step_seconds: float
    predicted_step_seconds: float
    predicted_in_turn_seconds: float
    rows: tuple[Row, ...]
    by_task: tuple[Row, ...]
    rank_seconds: tuple[Mapping[str, float], ...]

    def largest(self, count: int) -> list[Row]:
        """Return the tasks whose times differ most from the prediction."""
        known = [row for row in self.by_task if not row.unknown]
        return sorted(known, key=lambda row: -abs(row.difference_seconds))[:count]

    def as_json(self, count: int) -> dict[str, Any]:
        """Return it as JSON, with the ``count`` largest differences of tasks."""

        def entry(row: Row, name: str) -> dict[str, Any]:
            value = {**asdict(row), "ratio": row.ratio, "difference_seconds": row.difference_seconds}
            return {name: value.pop("operator"), **value, "bytes": value.pop("nbytes")}

        about = {key: value for key, value in self.about.items() if key not in ("plan", "step_seconds", "predicted_step_seconds")}
        return {
            **about, "step_seconds": self.step_seconds, "predicted_step_seconds": self.predicted_step_seconds,
            "predicted_in_turn_seconds": self.predicted_in_turn_seconds,
            "ratio": self.step_seconds / self.predicted_step_seconds if self.predicted_step_seconds > 0 else None,
            "ranks_seconds": [dict(each) for each in self.rank_seconds],
            "operators": [entry(row, "operator") for row in self.rows],
            "mispredictions": [entry(row, "task") for row in self.largest(count)],
        }


def differences(content: Mapping[str, Any]) -> Differences:
    """Compare a trace that `read_trace` returned. Raises ValueError if it has no step."""
    about = content["otherData"]
    steps = about["steps"]
    if not steps:
        raise ValueError("trace: has no step")
    spans = [event for event in content["traceEvents"] if event["ph"] == "X"]
    by_task = _tasks(spans, len(steps))
    rows: dict[tuple[str, str], Row] = {}
    for known, row, _ in by_task:
        key = known["operator"], row.phase
        before = rows.get(key, Row(*key, 0, 0.0, 0.0, 0.0, 0))
        rows[key] = Row(
            *key, before.tasks + 1, before.predicted_seconds + row.predicted_seconds,
            before.measured_seconds + row.measured_seconds, before.waited_seconds + row.waited_seconds, before.nbytes + row.nbytes,
            before.at_most or row.at_most,
        )
    ordered = sorted(rows.values(), key=lambda row: _PHASES.index(row.phase))  # else as the step has them
    order = {name: place for place, name in reversed(list(enumerate(row.operator for row in ordered)))}
    in_turn = sum(row.predicted_seconds for _, row, message in by_task if not message)
    return Differences(
        about, median(about["step_seconds"]), about["predicted_step_seconds"], in_turn,
        tuple(sorted(ordered, key=lambda row: order[row.operator])), tuple(row for _, row, _ in by_task), _ranks(spans),
    )


def _tasks(spans: list[Any], steps: int) -> list[tuple[Mapping[str, Any], Row, bool]]:
    """Return what is said of each task, its row, and whether it is a message, by task number."""
    known: dict[int, Mapping[str, Any]] = {}
    names: dict[int, str] = {}
    measured: dict[int, list[float]] = {}
    waited: dict[int, list[float]] = {}
    predicted: dict[int, float] = {}
    for event in spans:
        arguments, seconds = event["args"], event["dur"] * 1e-6
        number = arguments.get("task")
        if number is None:
            continue
        if event["cat"] == PREDICTED:
            known[number], names[number], predicted[number] = arguments, event["name"], seconds
        elif event["cat"] == "compute":
            measured.setdefault(number, []).append(seconds)
        elif event["cat"] == "wait":
            waited.setdefault(number, []).append(seconds)
            if (flight := arguments.get("flight_microseconds")) is not None:
                measured.setdefault(number, []).append(flight * 1e-6)
    found = []
    for number in sorted(known):
        about = known[number]
        row = Row(
            names[number] + (f" {about['route']}" if "route" in about else ""), about["phase"], 1, predicted[number],
            median(measured[number]) if number in measured else 0.0, sum(waited.get(number, ())) / steps, about["bytes"],
            number in waited and median(waited[number]) < _LOOK_SECONDS,
        )
        found.append((about, row, number in waited))
    return found


def _ranks(spans: list[Any]) -> tuple[Mapping[str, float], ...]:
    """Seconds a step of each rank by what it did, medians over the steps; what lies between steps is left out."""
    table: dict[int, dict[int, dict[str, float]]] = {}
    for event in spans:
        if event["cat"] in COVERING and event["name"] != "between steps":
            step = table.setdefault(event["pid"], {}).setdefault(event["args"]["step"], dict.fromkeys(COVERING, 0.0))
            step[event["cat"]] += event["dur"] * 1e-6
    return tuple(
        {category: median(step[category] for step in table[pid].values()) for category in COVERING[:-1]} for pid in sorted(table)
    )
