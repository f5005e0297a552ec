"""How often a step lies within the range that a user's own runs give: measured steps of others, some of them taken as runs.

    python benchmarks/own_runs.py --data FOLDER [--runs 1 3 10] [--draws 12] [--json]

FOLDER has the files of benchmarks/measured_elsewhere.py. Of each group some steps are drawn as runs, and the others get a range
from these (`taskflow.optimizer.trust`), as far as one is near enough. ``within``: the share of these in their range; ``width``: the
median of the logarithm of its upper by its lower end; ``errors``: the same from the 5th to the 95th percentile of all errors.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import log
from pathlib import Path
from random import Random
from statistics import mean, median

import click
from measured_steps import Predicted, predicted_groups
from rich.console import Console
from rich.table import Column, Table
from several import Several

from taskflow.mapper import parse_plan
from taskflow.optimizer.trust import Features
from taskflow.optimizer.trust.expected_error import FAR, expected_by_runs

LEAST = 30  # steps of a group
JUDGED = 100  # steps of a draw


@dataclass(frozen=True, slots=True)
class StepAsRun:
    """A measured step as trust takes it."""

    predicted: float
    seconds: float
    features: Features
    source: str = ""
    device: str = ""
    program: str = ""


def as_run(one: Predicted) -> StepAsRun:
    """A step of another as a run."""
    row, plan = one.row, parse_plan(one.row.plan)
    tokens = float((plan.micro_batch or 1) * row.decoder.sequence)
    features = Features(row.decoder.weights, plan.tensor, plan.pipeline, plan.data or 1, tokens)
    return StepAsRun(one.seconds, row.seconds or 0.0, features)


def ranges(steps: Sequence[StepAsRun], count: int, draws: int) -> Iterator[tuple[bool, float]]:
    """Whether steps lie in the range that ``count`` others give, and how wide it is."""
    random = Random(count)
    for _ in range(draws):
        order = random.sample(steps, len(steps))
        runs, others = order[:count], order[count : count + JUDGED]
        for step in others:
            if min(step.features.distance(run.features) for run in runs) <= FAR:
                found = expected_by_runs(step.features, step.predicted, runs)
                assert found.low is not None and found.high is not None
                yield found.low <= step.seconds <= found.high, log(found.high / found.low)


def errors_width(steps: Sequence[StepAsRun]) -> float:
    """How far errors reach, from the 5th to the 95th percentile."""
    errors = sorted(log(step.seconds / step.predicted) for step in steps)
    few = max(0, round(0.05 * len(errors)) - 1)
    return errors[-1 - few] - errors[few]


@click.command(cls=Several, help=__doc__.split("\n\n")[0])
@click.option("--data", required=True, type=click.Path(exists=True, file_okay=False, path_type=Path), help="The files' folder.")
@click.option("--runs", "counts", multiple=True, type=click.IntRange(1), default=(1, 2, 3, 5, 10, 20), help="How many are runs.")
@click.option("--draws", default=12, show_default=True, type=click.IntRange(1))
@click.option("--json", "as_json", is_flag=True)
def main(data: Path, counts: tuple[int, ...], draws: int, as_json: bool) -> None:
    rows = []
    for group, predicted in predicted_groups(data, sample=1).items():
        steps = [as_run(one) for one in predicted if one.row.seconds]
        if len(steps) < LEAST:
            continue
        for count in counts:
            found = list(ranges(steps, count, draws))
            rows.append({
                "group": group, "steps": len(steps), "runs": count, "within": mean(inside for inside, _ in found),
                "width": median(width for _, width in found), "errors": errors_width(steps),
            })  # fmt: skip
    if as_json:
        click.echo(json.dumps({"benchmark": "own_runs", "draws": draws, "rows": rows}))
        return
    table = Table("group", *(Column(title, justify="right") for title in ("steps", "runs", "within", "width", "errors")))
    for row in rows:
        table.add_row(
            row["group"], str(row["steps"]), str(row["runs"]), f"{row['within']:.0%}", f"{row['width']:.2f}", f"{row['errors']:.2f}"
        )
    Console().print(table)


if __name__ == "__main__":
    main()
