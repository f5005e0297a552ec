"""How near prices of the grid's plans are to simulated steps, and how many plans are priced a second.

    python benchmarks/grid_prices.py [--cases llama-70B-64 ...] [--plans 24] [--seed 0] [--known FILE] [--json]

A case is a network with its batch and a machine. Of the plans of the grid that fit and are priced at no more than twice the best
price, some are drawn, half of them with ZeRO's stage 3, and simulated; with ``--plan`` the named ones instead, and no others are
priced. Errors are of the price: (price - simulated) / simulated.
Tau is Kendall's, of prices and simulated seconds. ``--known``: the output of a run with ``--json``, whose plans are priced
again and not simulated: so prices of two versions are held against the same steps. Plans that take more than ``--limit``
seconds of processor time to simulate are left out and counted.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from random import Random
from statistics import mean
from time import process_time
from typing import Any

import click
from several import Several, one_of

from taskflow.machine import load_machine
from taskflow.mapper import HybridParallel, map_graph, parse_plan, samples
from taskflow.models import build
from taskflow.optimizer import make_evaluator
from taskflow.optimizer.budget import BudgetExhausted
from taskflow.optimizer.evaluate import TooManyTasksError
from taskflow.optimizer.grid import AnyGrid, PricedPlan, kendall, make_grid
from taskflow.rules import Adam

NEAR = 2.0  # times the best price
CASES: dict[str, tuple[str, int, str, int, dict[str, Any]]] = {  # network, batch, machine, devices, sizes
    "llama-8B-8": ("Llama-8B", 128, "h100", 8, {}),
    "llama-8B-64": ("Llama-8B", 512, "h100", 64, {}),
    "llama-70B-64": ("Llama-70B", 512, "h100", 64, {}),
    "mixtral-64": ("Mixtral-8x7B", 512, "h100", 64, {}),
    "gpt-175B-1024": ("GPT-3-175B", 1536, "a100", 1024, {"dropout": 0.0}),
    "gpt-1.7B-mixed": ("GPT-3-1.7B", 64, "a100-v100", 8, {"dropout": 0.0}),
    "qwen3-235B-256": ("Mixtral-8x7B", 1024, "h100", 256, {
        "layers": 94, "hidden": 4096, "heads": 64, "key_heads": 4, "head_size": 128, "inner": 12288, "expert_inner": 1536,
        "experts": 128, "chosen": 8, "vocabulary": 151936, "steps": 4096, "places": 1.0,
    }),
    "gpt-oss-120B-256": ("Mixtral-8x7B", 1024, "b200", 256, {  # its sizes, with Mixtral's layers
        "layers": 36, "hidden": 2880, "heads": 64, "key_heads": 8, "head_size": 64, "inner": 2880, "experts": 128, "chosen": 4,
        "vocabulary": 201088, "steps": 4096, "places": 1.0,
    }),
}


def drawn(plans: list[PricedPlan], count: int, seed: int) -> list[PricedPlan]:
    """Return some of the plans near the best price, half of them with ZeRO's stage 3 if there are as many."""
    near = sorted((one for one in plans if one.seconds <= NEAR * plans[0].seconds), key=lambda one: str(one.plan))
    random = Random(seed)
    sharded, others = ([one for one in near if (one.plan.zero == 3) is is_sharded] for is_sharded in (True, False))
    some = random.sample(sharded, min(len(sharded), max(count // 2, count - len(others))))
    return some + random.sample(others, min(len(others), count - len(some)))


def ended(end: float) -> None:
    """Raise BudgetExhausted once so much processor time has been used."""
    if process_time() > end:
        raise BudgetExhausted


def named(grid: AnyGrid, texts: Sequence[str]) -> list[PricedPlan]:
    """Return plans in notation, priced."""
    found = []
    for text in texts:
        plan = parse_plan(text)
        count = samples(grid.graph) // plan.samples_a_pass
        found.append(PricedPlan(plan, count, grid.prices(plan, count), grid.memory(plan, count)))
    return found


def measure(name: str, texts: Sequence[str], count: int, seed: int, limit: float, known: dict[str, Any] | None) -> dict[str, Any]:
    """A case's row."""
    network, batch, machine_name, devices, sizes = CASES[name]
    graph = build(network, batch=batch, dtype="float16" if name.endswith("mixed") else "bfloat16", **sizes)
    machine, rule = load_machine(machine_name, devices), Adam()
    grid: AnyGrid = make_grid(graph, machine, rule)
    begin = process_time()
    plans, number = (named(grid, texts), len(texts)) if texts else grid.plans()
    seconds = process_time() - begin  # with tables, which prices and memories are added up from
    if known is not None:
        pairs = [
            (row["plan"], grid.prices(plan := parse_plan(row["plan"]), batch // plan.samples_a_pass), row["simulated"])
            for row in known["plans"]
        ]
    else:
        evaluator = make_evaluator(graph, machine, rule=rule)
        pairs = []
        for one in plans if texts else drawn(plans, count, seed):
            strategy, end = map_graph(HybridParallel(one.plan), graph, machine), process_time() + limit
            with suppress(TooManyTasksError, BudgetExhausted), evaluator.interruptible(lambda end=end: ended(end)):
                pairs.append((str(one.plan), one.seconds, evaluator.set(strategy)))
                click.echo(f"  {pairs[-1][0]}: {pairs[-1][1]:.3f} and {pairs[-1][2]:.3f} s", err=True)
    rows = [{"plan": plan, "price": price, "simulated": took, "error": price / took - 1} for plan, price, took in pairs]
    return {
        "case": name, "batch": batch, "of": number, "fitting": len(plans), "pricing_seconds": seconds,
        "drawn": len(texts) or count, "plans": rows, **errors(rows)
    }  # fmt: skip


def errors(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """Tau and errors of all plans, of those with ZeRO's stage 3, and of the others."""
    sharded = [row for row in rows if "zero3" in row["plan"]]
    kinds = {"all": rows, "zero3": sharded, "others": [row for row in rows if row not in sharded]}
    return {
        kind: {
            "plans": len(some), "tau": kendall([(row["price"], row["simulated"]) for row in some]),
            "mean_error": mean(abs(row["error"]) for row in some), "lowest": min(row["error"] for row in some),
            "highest": max(row["error"] for row in some),
        }
        for kind, some in kinds.items() if some
    }  # fmt: skip


def said(row: dict[str, Any]) -> str:
    """A row for people."""
    lines = [f"{row['case']}: {row['of']:,} plans, {row['fitting']:,} fit, listed and priced in {row['pricing_seconds']:.1f} s; "
             f"{row['drawn']} drawn"]
    for kind in ("all", "zero3", "others"):
        if kind in row:
            one = row[kind]
            lines.append(
                f"  {kind:<7}{one['plans']:>3} plans  tau {one['tau']:.2f}  mean error {one['mean_error']:.1%}  "
                f"from {one['lowest']:+.1%} to {one['highest']:+.1%}"
            )
    return "\n".join(lines)


@click.command(cls=Several, help=__doc__.split("\n\n")[0])
@click.option("--cases", multiple=True, type=one_of(CASES), default=("llama-8B-8", "llama-70B-64"), help="One or several.")
@click.option("--plans", "count", default=24, show_default=True, type=click.IntRange(3), help="Simulated plans of each case.")
@click.option("--plan", "texts", multiple=True, metavar="PLAN", help="With t, p, d and mb; one or several.")
@click.option("--seed", default=0, show_default=True, type=click.IntRange(0))
@click.option("--limit", default=20.0, show_default=True, type=click.FloatRange(0), help="Seconds to simulate one plan.")
@click.option("--known", type=click.Path(exists=True, dir_okay=False, path_type=Path), help="What --json printed before.")
@click.option("--json", "as_json", is_flag=True)
def main(
    cases: tuple[str, ...], texts: tuple[str, ...], count: int, seed: int, limit: float, known: Path | None, as_json: bool
) -> None:
    before = {row["case"]: row for row in json.loads(known.read_text())["rows"]} if known else {}
    rows = []
    for name in cases:
        rows.append(measure(name, texts, count, seed, limit, before.get(name)))
        click.echo(said(rows[-1]), err=as_json)
    if as_json:
        click.echo(json.dumps({"benchmark": "grid_prices", "seed": seed, "rows": rows}))


if __name__ == "__main__":
    main()
