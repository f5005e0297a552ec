"""Lower bounds of the pairs of `found_against_grid.py`: of the work, and by degrees.

    python benchmarks/plan_bounds.py [--json] [--pairs llama-8B-64 ...]

Seconds are of the processor: without and with the tables that a search has made before. ``fits``: whether plans without an order
may fit the memory, so that the bound by degrees does not hold for all plans.
"""

from __future__ import annotations

import json
from time import process_time
from typing import Any

import click
from found_against_grid import PAIRS
from several import Several, one_of

from taskflow.machine import load_machine
from taskflow.models import build
from taskflow.optimizer import make_evaluator
from taskflow.optimizer.bounds import work_bound
from taskflow.optimizer.grid import PlanGrid
from taskflow.optimizer.grid.bound_work import LayerWorks
from taskflow.optimizer.grid.plan_bound import least_of_plans, least_unordered_bytes
from taskflow.rules import Adam

LARGE = ("llama-8B-8", "llama-8B-64", "llama-70B-64", "llama-70B-512", "gpt-175B-1024", "nmt-64")


@click.command(cls=Several)
@click.option("--pairs", multiple=True, type=one_of(PAIRS), default=LARGE)
@click.option("--json", "as_json", is_flag=True)
def main(pairs: tuple[str, ...], as_json: bool) -> None:
    """Print the bounds of each pair as they come."""
    rows: list[dict[str, Any]] = []
    if not as_json:
        click.echo(f"{'pair':14} {'work':>10} {'by degrees':>10}  plans without an order  seconds of this")
    for name in pairs:
        pair = PAIRS[name]
        graph = build(pair.network, batch=pair.batch, dtype=pair.dtype, **pair.sizes)
        machine = load_machine(pair.machine, pair.devices)
        grid = PlanGrid(graph, machine, Adam())
        took, least = [], 0.0
        for _ in range(2):
            begin = process_time()
            least = least_of_plans(LayerWorks(grid.sums), grid.memory_bytes)
            took.append(process_time() - begin)
        work = work_bound(make_evaluator(graph, machine, rule=Adam()))
        fits = least_unordered_bytes(LayerWorks(grid.sums)) <= pair.devices * grid.memory_bytes
        rows.append({"pair": name, "work": work, "by degrees": least, "fits": fits, "seconds": took})
        if not as_json:
            said = "may fit" if fits else "do not fit"
            click.echo(f"{name:14} {work:8.4g} s {least:8.4g} s  {said:22}  {took[0]:.1f}, {took[1]:.1f}")
    if as_json:
        click.echo(json.dumps({"rows": rows}))


if __name__ == "__main__":
    main()
