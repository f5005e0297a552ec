"""What the default search finds against the best plan of the grid, predicted, on ten pairs of a network and a cluster.

    python benchmarks/found_against_grid.py [--pairs gpt-175B-1024 ...] [--budget 60s] [--seed 0] [--json]

The grid is every plan of t, c, p, d, e, micro-batch, v, recomputation and ZeRO's stage that divides, under 1F1B (interleaved).
All are priced in closed form, and the best are simulated for as long as the search may take. On a mixed cluster its pieces are
even, as people's are; ``uneven``: the same with stages and shares by speed, as the search's own grid has them. Grids and search
each have a process of their own. ``gain``: how much longer a step takes under the grid's best plan than under the found one.
``first_plan_seconds``: when the search had its first plan that fits. ``busy``: of the time of a step, what the most and the
least busy device computes. Batches are those that people train such networks with. Numbers of 16 bits, Adam, no dropout.

Times are those of the cost model: each found plan is written out, to be looked at with suspicion.
"""

from __future__ import annotations

import json
import resource
import subprocess
import sys
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from time import perf_counter
from typing import Any

import click
from several import Several, one_of

from taskflow.machine import load_machine
from taskflow.mapper import Strategy, is_plan, parse_plan
from taskflow.models import build
from taskflow.optimizer import MemoryCheck, make_evaluator, search
from taskflow.optimizer.budget import Budget, Deadline
from taskflow.optimizer.evaluate import Evaluator
from taskflow.optimizer.explain import beyond_grid
from taskflow.optimizer.grid import MixedGrid, best_of_grid, make_grid
from taskflow.optimizer.session import NothingFits
from taskflow.optimizer.space import unequal
from taskflow.rules import Adam

MOST_SIMULATED = 60  # plans of the grid
LEAST_GAIN = 0.05  # that is asked of six pairs


@dataclass(frozen=True, slots=True)
class Pair:
    """A network on a cluster. ``why``: where the batch is from."""

    network: str
    batch: int
    machine: str
    devices: int
    why: str
    sizes: Mapping[str, Any] = field(default_factory=dict)
    dtype: str = "bfloat16"


NO_DROPOUT = {"dropout": 0.0}
PAIRS = {
    "gpt-175B-1024": Pair("GPT-3-175B", 1536, "a100", 1024, "3.1 million words, as arXiv 2104.04473 trains it", NO_DROPOUT),
    "llama-8B-8": Pair("Llama-8B", 128, "h100", 8, "a million words"),
    "llama-8B-64": Pair("Llama-8B", 512, "h100", 64, "4 million words, with which Llama 3 begins (arXiv 2407.21783)"),
    "llama-70B-64": Pair("Llama-70B", 512, "h100", 64, "4 million words"),
    "llama-70B-512": Pair("Llama-70B", 1024, "h100", 512, "8 million words"),
    "llama-405B-1024": Pair("Llama-405B", 1024, "h100", 1024, "8 million words"),
    "mixtral-64": Pair("Mixtral-8x7B", 512, "h100", 64, "4 million words"),
    "gshard-600B-1024": Pair("MoE-600B", 4096, "a100", 1024, "4 million words, as arXiv 2006.16668"),
    "nmt-64": Pair("NMT", 4096, "a100", 64, "64 sentences a device, as FlexFlow's paper"),
    "gpt-1.7B-mixed": Pair("GPT-3-1.7B", 64, "a100-v100", 8, "131 thousand words", NO_DROPOUT, "float16"),
}


def _problem(pair: Pair) -> tuple[Evaluator, MemoryCheck]:
    graph = build(pair.network, batch=pair.batch, dtype=pair.dtype, **pair.sizes)
    evaluator = make_evaluator(graph, load_machine(pair.machine, pair.devices), rule=Adam())
    return evaluator, MemoryCheck(evaluator)


def _facts(evaluator: Evaluator, room: MemoryCheck, strategy: Strategy) -> dict[str, Any]:
    """What a step under a strategy does, beside its time."""
    seconds = evaluator.set(strategy)
    usage = evaluator.usage()
    busy = sorted(usage.processor_seconds)
    return {
        "plan": in_words(strategy, evaluator), "ordered": strategy.ordered, "iteration_seconds": seconds,
        "busy": [busy[-1] / seconds, busy[0] / seconds], "moved_bytes": usage.transfer_bytes,
        "recomputed_operators": len(strategy.again.recompute), "peak_memory_bytes": max(room.peaks(strategy)[0]),
    }


def in_words(strategy: Strategy, evaluator: Evaluator) -> str:
    """A plan's notation; of a plan without an order, how many operators are cut in which way."""
    if is_plan(strategy.name):
        return strategy.name
    cuts = Counter(
        strategy[node.name].describe(node).partition("@")[0].strip() for node in evaluator.graph if node.inputs
    )
    return ", ".join(f"{count} x {cut}" for cut, count in cuts.most_common(6))


def grid_row(pair: Pair, budget: Budget, even: bool) -> dict[str, Any]:
    """The best plan of the grid, simulated for all of the budget. ``even``: without pieces by speed on a mixed cluster."""
    begin = perf_counter()
    evaluator, room = _problem(pair)
    deadline = Deadline(budget.seconds)
    network = evaluator.graph, evaluator.machine, evaluator.rule
    grid = MixedGrid(*network, even=True) if even and unequal(evaluator.machine) else make_grid(*network)
    found = best_of_grid(evaluator, room, deadline=deadline, most=MOST_SIMULATED, grid=grid)
    row: dict[str, Any] = {"seconds": deadline.elapsed, "grid": found.as_json()}
    if found.strategy is not None:
        row |= _facts(evaluator, room, found.strategy)
    return row | {"process_seconds": perf_counter() - begin, "process_bytes": _resident()}


def search_row(pair: Pair, budget: Budget, seed: int) -> dict[str, Any]:
    """What the default search finds."""
    evaluator, room = _problem(pair)
    try:
        found = search(evaluator.graph, evaluator.machine, budget=budget, seed=seed, use=evaluator, memory=room)
    except NothingFits as error:
        return {"nothing": str(error), "process_bytes": _resident()}
    return {
        "seconds": found.search_seconds, "first_plan_seconds": found.history[0].elapsed if found.history else None,
        "history": found.as_json()["history"], "proposals": found.proposals, "starts": dict(found.starts),
        "left_out": list(found.left_out), "process_bytes": _resident(), **_facts(evaluator, room, found.strategy),
    }  # fmt: skip


def _resident() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def measure(name: str, budget: str, seed: int) -> dict[str, Any]:
    """A pair's row, from two processes."""
    mixed = ("uneven",) if unequal(load_machine(PAIRS[name].machine, PAIRS[name].devices)) else ()
    grid, found, *uneven = (
        json.loads(subprocess.run(
            [sys.executable, str(Path(__file__)), "--pairs", name, "--budget", budget, "--seed", str(seed), "--worker", what],
            stdout=subprocess.PIPE, text=True, check=True,
        ).stdout)
        for what in ("grid", "search", *mixed)
    )  # fmt: skip
    return row_of(name, PAIRS[name], grid, found, *uneven)


def row_of(
    name: str, pair: Pair, grid: dict[str, Any], found: dict[str, Any], uneven: dict[str, Any] | None = None
) -> dict[str, Any]:
    """A pair's row, of what the grid and the search gave."""
    own = found.get("starts", {}).get("grid") if uneven is None else None  # of unequal devices that has uneven pieces
    ways = [side for side in (grid.get("iteration_seconds"), own) if side is not None]
    best, seconds = min(ways, default=None), found.get("iteration_seconds")
    return {
        "uneven": uneven,
        "pair": name, "network": pair.network, "batch": pair.batch, "why": pair.why, "machine": pair.machine,
        "devices": pair.devices, "grid_seconds": best, "found_seconds": seconds,
        "gain": best / seconds - 1 if best and seconds else None, "grid": grid, "found": found,
    }  # fmt: skip


def _below_uneven(row: dict[str, Any]) -> bool:
    """True if the best of the search's own grid, with uneven pieces, is faster than what was found."""
    best = (row["uneven"] or {}).get("iteration_seconds")
    return best is not None and best < row["found_seconds"]


def said(row: dict[str, Any]) -> str:
    """A row for people."""
    grid, found = row["grid"], row["found"]
    head = f"{row['pair']}: {row['network']}, batch {row['batch']:,} ({row['why']}), on {row['devices']:,} of {row['machine']}"
    if row["gain"] is None:
        return f"{head}\n  {found.get('nothing', 'no plan of the grid was simulated')}"
    first = found["first_plan_seconds"]
    counts = f"{grid['grid']['plans']:,} plans of the grid, {grid['grid']['simulated']} simulated"
    uneven = row["uneven"] or {}
    return "\n".join([
        head,
        f"  grid  {row['grid_seconds'] * 1e3:>10.5g} ms  {grid.get('plan', '-')}",
        *([f"  uneven{uneven['iteration_seconds'] * 1e3:>10.5g} ms  {uneven['plan']}"] if "plan" in uneven else []),
        f"  found {row['found_seconds'] * 1e3:>10.5g} ms  {found['plan']}  ({row['gain']:+.1%})",
        f"  {counts}; search {found['seconds']:.0f} s, first plan {'-' if first is None else f'{first:.1f} s'}, "
        f"{found['process_bytes'] / 1e9:.1f} GB",
        f"  {explained(row)}",
    ])  # fmt: skip


def explained(row: dict[str, Any]) -> str:
    """What the found plan does otherwise, as far as numbers say it."""
    grid, found = row["grid"], row["found"]
    if grid["plan"] == found["plan"]:
        return "It is the best plan of the grid."
    one, other = set(grid["plan"].split()), set(found["plan"].split())
    words = [
        f"Instead of {' '.join(w for w in grid['plan'].split() if w not in other) or 'nothing'} it has "
        f"{' '.join(w for w in found['plan'].split() if w not in one) or 'nothing more'}."
        if found["ordered"] else f"It has no order: {found['plan']}."
    ]  # fmt: skip
    busy = [f"{side['busy'][0]:.1%} to {side['busy'][1]:.1%}" for side in (found, grid)]
    words.append(f"Its devices compute {busy[0]} of the time, the grid's {busy[1]}.")
    words.append(f"It computes {found['recomputed_operators']} operators again, the grid's {grid['recomputed_operators']};")
    words.append(f"it moves {found['moved_bytes'] / grid['moved_bytes']:.3g} times as much.")
    needs = [side["peak_memory_bytes"] / 1e9 for side in (found, grid)]
    words.append(f"It needs {needs[0]:.3g} GB of a device, the grid's {needs[1]:.3g}.")
    return " ".join([*words, beyond_grid(parse_plan(found["plan"]) if found["ordered"] else None)]).rstrip()


@click.command(cls=Several, help=__doc__.split("\n\n")[0])
@click.option("--pairs", multiple=True, type=one_of(PAIRS), default=tuple(PAIRS), help="One or several; all by default.")
@click.option("--budget", default="60s", show_default=True, help="Of each search; the grid alone gets as much.")
@click.option("--seed", default=0, show_default=True, type=click.IntRange(0))
@click.option("--json", "as_json", is_flag=True)
@click.option("--worker", type=click.Choice(["grid", "search", "uneven"]), hidden=True)
def main(pairs: tuple[str, ...], budget: str, seed: int, as_json: bool, worker: str | None) -> None:
    limit = Budget.parse(budget)
    if worker is not None:
        pair = PAIRS[pairs[0]]
        click.echo(json.dumps(
            search_row(pair, limit, seed) if worker == "search" else grid_row(pair, limit, even=worker == "grid")
        ))
        return
    rows = []
    for name in pairs:
        rows.append(measure(name, budget, seed))
        click.echo(said(rows[-1]), err=as_json)
    better = sum((row["gain"] or 0) >= LEAST_GAIN for row in rows)
    slower = [row["pair"] for row in rows if row["gain"] is None or row["gain"] < 0 or _below_uneven(row)]
    click.echo(f"{better} of {len(rows)} at least {LEAST_GAIN:.0%} faster; slower: {', '.join(slower) or 'none'}", err=as_json)
    if as_json:
        click.echo(json.dumps({"benchmark": "found_against_grid", "budget": budget, "seed": seed, "rows": rows}))


if __name__ == "__main__":
    main()
