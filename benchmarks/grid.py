"""What the default search finds against the best plan of the grid, predicted.

    python benchmarks/grid.py [--cases gpt2-8 ...] [--budget 60s] [--seed 0] [--json]

A case is a network with its sizes, its batch and a machine. The grid is every plan of t, c, p, d, e, micro-batch, v, recomputation
and ZeRO's stage that divides. The best of it are simulated: once in half of the budget, and once in the search, which goes on
from there. ``gain``: how much longer a step takes under the grid's best plan than under the found one. Numbers of 16 bits, Adam.
Times are those of the cost model; each found plan is written out, to be looked at with suspicion.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import click
from several import Several, one_of

from taskflow.machine import load_machine
from taskflow.mapper import node_size
from taskflow.models import build
from taskflow.optimizer import MemoryCheck, make_evaluator, search
from taskflow.optimizer.budget import Budget, Deadline
from taskflow.optimizer.grid import PlanGrid, best_of_grid
from taskflow.rules import Adam


@dataclass(frozen=True, slots=True)
class Case:
    """A network on a machine."""

    network: str
    batch: int
    machine: str
    devices: int
    sizes: Mapping[str, Any] = field(default_factory=dict)


CASES = {
    "gpt2-8": Case("GPT-2", 32, "h100", 8, {"dropout": 0.0}),
    "gpt2-medium-8": Case("GPT-2-medium", 32, "a100", 8, {"dropout": 0.0}),
    "gpt-1.7B-8": Case("GPT-3-1.7B", 32, "a100", 8, {"dropout": 0.0}),
    "llama-8B-8": Case("Llama-8B", 16, "h100", 8, {"steps": 4096}),
    "llama-8B-64": Case("Llama-8B", 128, "h100", 64, {"steps": 4096}),
    "gpt-18.4B-64": Case("GPT-3-18.4B", 128, "a100", 64, {"dropout": 0.0}),
}


def measure(name: str, case: Case, budget: Budget, seed: int) -> dict[str, Any]:
    """A case's row."""
    graph = build(case.network, batch=case.batch, dtype="bfloat16", **case.sizes)
    machine, rule = load_machine(case.machine, case.devices), Adam()
    evaluator = make_evaluator(graph, machine, rule=rule)
    room = MemoryCheck(evaluator)
    deadline = Deadline(budget.seconds)
    grid = best_of_grid(evaluator, room, deadline=deadline, grid=PlanGrid(graph, machine, rule), share=0.5)
    found = search(graph, machine, budget=budget, seed=seed, use=evaluator, memory=room)
    best = min(grid.seconds, found.starts.get("grid", grid.seconds))
    return {
        "case": name, "model": graph.name, "batch": case.batch, "machine": machine.name, "devices": case.devices,
        "devices_a_node": node_size(machine), "grid": grid.as_json(), "grid_seconds": best, "found_seconds": found.seconds,
        "gain": best / found.seconds - 1, "plan": found.strategy.name, "ordered": found.strategy.ordered,
        "peak_memory_bytes": max(room.peaks(found.strategy)[0]), "search_seconds": found.search_seconds,
        "proposals": found.proposals, "starts_iteration_seconds": dict(found.starts), "left_out": list(found.left_out),
    }  # fmt: skip


def said(row: dict[str, Any]) -> str:
    """A row for people."""
    grid = row["grid"]
    tau = "-" if grid["tau"] is None else f"{grid['tau']:.2f}"
    return (
        f"{row['case']}: {grid['plans']:,} plans, {grid['fitting']:,} fit, {grid['simulated']} simulated, tau {tau}\n"
        f"  grid   {row['grid_seconds'] * 1e3:>10.4g} ms  {grid['plan']}\n"
        f"  found  {row['found_seconds'] * 1e3:>10.4g} ms  {row['plan']}  ({row['gain']:+.1%}, {row['search_seconds']:.0f} s)"
    )


@click.command(cls=Several, help=__doc__.split("\n\n")[0])
@click.option("--cases", multiple=True, type=one_of(CASES), default=("gpt2-8", "gpt-1.7B-8", "llama-8B-8"), help="One or several.")
@click.option("--budget", default="60s", show_default=True, help="Of each search; the grid alone gets half of it besides.")
@click.option("--seed", default=0, show_default=True, type=click.IntRange(0))
@click.option("--json", "as_json", is_flag=True)
def main(cases: tuple[str, ...], budget: str, seed: int, as_json: bool) -> None:
    rows = []
    for name in cases:
        rows.append(measure(name, CASES[name], Budget.parse(budget), seed))
        click.echo(said(rows[-1]), err=as_json)
    if as_json:
        click.echo(json.dumps({"benchmark": "grid", "budget": budget, "seed": seed, "rows": rows}))


if __name__ == "__main__":
    main()
