"""The errors of groups of measured steps, and how often steps lie in the range that other groups give them.

    python benchmarks/error_ranges.py --data FOLDER [--json]

FOLDER has the files of benchmarks/measured_elsewhere.py. The groups are those of `taskflow.optimizer.trust.groups`, which this
prints as they are today. ``within``: of a group's steps the share that lies in the range of `expected` from the groups of
other sources; ``width``: the median of the logarithm of its upper by its lower end; ``errors``: the same from the 5th to the 95th
percentile of the group's own errors.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, replace
from math import inf, log
from pathlib import Path
from statistics import mean, median
from typing import Any

import click
from measured_elsewhere import priced, rows_of
from measured_steps import MOST_NODES, Predicted, predicted_groups
from own_runs import as_run, errors_width
from rich.console import Console
from rich.table import Column, Table
from several import Several

from taskflow.mapper import parse_plan
from taskflow.optimizer.trust import MEASURED, Features
from taskflow.optimizer.trust.expected_error import expected
from taskflow.optimizer.trust.features import reach_of
from taskflow.optimizer.trust.groups import (
    FMS,
    GROUPS,
    LAYOUTS,
    LLM_FOUNDRY,
    SIMUMAX,
    ULTRASCALE,
    MeasuredGroup,
    group_of,
)
from taskflow.optimizer.trust.measured import NODE, VTRAIN

SOURCES = {
    "fsdp": LLM_FOUNDRY, "fsdp-compiled": FMS, "nanotron": ULTRASCALE, "aleph-alpha": LAYOUTS, "megatron": SIMUMAX,
}
"""By program, whose files they are."""
DEVICES = {"p5": "h100"}


@dataclass(frozen=True, slots=True)
class Step:
    """A step of a file or of `MEASURED`."""

    source: str
    device: str
    program: str
    features: Features
    seconds: float
    predicted: float


def steps_of(data: Path) -> Iterator[Step]:
    """The steps of all files that did not stall, and the package's own of other sources."""
    for name, rows in predicted_groups(data, sample=1).items():
        if name not in ("ultrascale, one stage or node, t to 8", "ultrascale, to 32 nodes, no stalls"):
            most = MOST_NODES if name.startswith("ultrascale") else inf
            yield from (_of_row(one) for one in rows if one.row.seconds and one.row.gpus <= most and not one.row.stalls)
    for row in rows_of(data, "several-nodes"):
        one = next(one for one in MEASURED if one.source == VTRAIN)
        of = replace(
            one, devices=row.gpus, hidden=row.hidden, heads=row.heads, layers=row.layers, sequence=row.sequence, batch=row.batch,
            plan=row.plan, seconds=row.seconds, predicted=priced(row),
        )
        yield Step(VTRAIN, "a100", "deepspeed", of.features, of.seconds, of.predicted)
    for one in MEASURED:
        if one.source != VTRAIN:
            yield Step(one.source, one.device, one.program, one.features, one.seconds, one.predicted)


def _of_row(one: Predicted) -> Step:
    row, plan = one.row, parse_plan(one.row.plan)
    program = row.program.split(":")[0]
    features = replace(as_run(one).features, reach=reach_of(plan.tensor, plan.pipeline, row.gpus, NODE))
    return Step(SOURCES[program], DEVICES.get(row.machine, row.machine), program, features, row.seconds or 0.0, one.seconds)


def grouped(steps: Iterator[Step]) -> dict[MeasuredGroup, list[Step]]:
    """The steps of each group."""
    found: dict[tuple[Any, ...], list[Step]] = {}
    for step in steps:
        found.setdefault((step.source, step.device, step.program, step.features.reach), []).append(step)
    return {
        group_of(*key, [(step.features, step.seconds, step.predicted) for step in some]): some for key, some in found.items()
    }


def written(group: MeasuredGroup) -> str:
    """A group as a line of `OF_FILES`."""
    least, most = (
        f"({of.parameters:.2e}, {of.tensor}, {of.pipeline}, {of.data}, {of.tokens:.0f})".replace("e+0", "e").replace("e+", "e")
        for of in (group.least, group.most)
    )
    return (
        f'_group("{group.source}", "{group.device}", "{group.program}", "{group.reach}", {group.steps}, ({least}, {most}), '
        f"{group.low:.3f}, {group.high:.3f}),"
    )


def judged(groups: dict[MeasuredGroup, list[Step]], own: MeasuredGroup) -> dict[str, Any]:
    """What a group's steps get from all others."""
    others = [group for group in groups if group.device == own.device and group.source != own.source]
    ranges = [
        (expected(step.features, step.predicted, others, programs=[own.program]), step) for step in groups[own]
    ]
    known = [(found.low, found.high, step.seconds) for found, step in ranges if found.low is not None and found.high is not None]
    return {
        "source": own.source, "device": own.device, "program": own.program, "reach": own.reach, "steps": own.steps,
        "low": own.low, "high": own.high, "ranged": len(known),
        "within": mean(low <= seconds <= high for low, high, seconds in known) if known else None,
        "width": median(log(high / low) for low, high, _ in known) if known else None,
        "errors": errors_width(groups[own]),
    }  # fmt: skip


@click.command(cls=Several, help=__doc__.split("\n\n")[0])
@click.option("--data", required=True, type=click.Path(exists=True, file_okay=False, path_type=Path), help="The files' folder.")
@click.option("--json", "as_json", is_flag=True)
def main(data: Path, as_json: bool) -> None:
    groups = grouped(steps_of(data))
    rows = [judged(groups, group) for group in groups]
    if as_json:
        click.echo(json.dumps({"benchmark": "error_ranges", "rows": rows}))
        return
    table = Table("group", *(Column(title, justify="right") for title in ("steps", "low", "high", "within", "width", "errors")))
    for row in rows:
        within, width = ("", "") if row["within"] is None else (f"{row['within']:.0%}", f"{row['width']:.2f}")
        table.add_row(
            f"{row['source'].partition(' (')[0]}, {row['device']}, {row['reach']}", str(row["steps"]), f"{row['low']:+.3f}",
            f"{row['high']:+.3f}", within, width, f"{row['errors']:.2f}",
        )  # fmt: skip
    Console().print(table)
    known = {written(group) for group in GROUPS}
    for text in filter(lambda text: text not in known, map(written, groups)):
        click.echo(f"not as in taskflow/optimizer/trust/groups.py: {text}")


if __name__ == "__main__":
    main()
