"""Whether plans that are found with measured costs train faster than those found with analytic ones, on this machine.

    python benchmarks/measured_plans.py [--networks RNNLM ...] [--budget 60s] [--rounds 9] [--json]  # 2 ranks under mpirun
    python benchmarks/measured_plans.py --machine mine.json                   # rates and links from `taskflow machine measure`
    python benchmarks/measured_plans.py --folder costs                        # keep what is measured, for the next time

For each network rank 0 searches as `taskflow train NAME --mapper search` does, with its default machine (typical rates of a CPU's
cores), once with `--costs analytic` and once with `--costs measured`, both with the same budget and seed. The second search's
budget is for measuring too, which is done anew for each network unless there is a --folder, so seconds are as a user has them the
first time; a budget of proposals (`2000p`) leaves measuring out. Then the steps of both plans and of data parallelism are measured
in turns, as in accuracy.py: a step's time is the median over rounds of the fastest of a few steps, and rounds in which other
programs ran are repeated while there is patience. Each plan is predicted with both kinds of costs. ``ratio``: the analytic costs'
plan's step by the measured costs' plan's, so above 1 measuring has paid. ``told_apart``: the same one was faster in every round.
"""

from __future__ import annotations

import json
import os
import tempfile
from contextlib import ExitStack
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Any

import accuracy
import click
from several import Several, one_of

SIZES: dict[str, dict[str, Any]] = {
    **accuracy.SIZES, "MLP": {"batch": 64, "features": 64, "hidden": (256, 256), "classes": 100},  # to try this file
}
DATA = "data"
PATIENCE_SECONDS = 3600.0  # for which a rank waits for a search


# ---- one job: all networks -------------------------------------------------------------------------------------------
def work(networks: tuple[str, ...], machine: str | None, budget: str, seed: int, rounds: int, patience: float, folder: str) -> None:
    """What each rank does; rank 0 prints a JSON object a network."""
    import taskflow
    from taskflow.machine import host, load_machine
    from taskflow.models import build

    transport = taskflow.connect()
    cluster = host(transport.size) if machine is None else load_machine(machine, transport.size)
    rule = taskflow.SGD(lr=1e-3, momentum=0.9)
    for network in networks:
        graph = build(network, **SIZES[network])
        with transport.patient(PATIENCE_SECONDS):
            found = transport.broadcast(
                searched(graph, cluster, rule, transport.size, budget, seed, folder) if transport.rank == 0 else None
            )
        strategies = [plan.pop("strategy") for plan in found]
        executors = [taskflow.Executor(graph, s, rule, transport=transport, machine=cluster) for s in strategies]
        times = accuracy.rounds_of(executors, accuracy.feeds(graph), transport, 0, rounds, patience, False)
        for executor in executors:
            executor.close()
        if transport.rank == 0:
            plans = [{**plan, **accuracy.measured(results)} for plan, results in zip(found, times)]
            print(json.dumps({
                "network": network, "operators": len(graph), "parameters": graph.parameter_count, "machine": cluster.name,
                "same_plan": same(strategies[1], strategies[2]), "plans": plans,
                "foreign_load": median(r.foreign for results in times for r in results),
            }), flush=True)  # fmt: skip
    transport.close()


def searched(graph: Any, machine: Any, rule: Any, ranks: int, budget: str, seed: int, folder: str) -> list[dict[str, Any]]:
    """Data parallelism and the plan that a search finds with each kind of costs, and what both kinds predict for all of them."""
    import taskflow
    from taskflow.optimizer import make_evaluator, search
    from taskflow.optimizer.cost import COSTS, choose_costs

    with ExitStack() as last:
        there = folder or last.enter_context(tempfile.TemporaryDirectory())
        evaluators = {
            name: make_evaluator(graph, machine, rule=rule, costs=choose_costs(
                name, graph, machine, rule, ranks=ranks, folder=Path(there)
            )) for name in COSTS
        }  # fmt: skip
        for evaluator in evaluators.values():
            last.callback(evaluator.costs.close)  # before anything trains beside it
        plans = [{"plan": DATA, "strategy": taskflow.choose(DATA, graph, machine)[0], "search_seconds": 0.0}]
        for name, evaluator in evaluators.items():
            began = perf_counter()
            found = search(graph, machine, budget=budget, seed=seed, use=evaluator)
            plans.append({"plan": name, "strategy": found.strategy, "search_seconds": perf_counter() - began,
                          "proposals": found.proposals, "costs": evaluator.costs.name})  # fmt: skip
        for plan in plans:
            plan["predicted_seconds"] = {name: evaluator.set(plan["strategy"]) for name, evaluator in evaluators.items()}
    return plans


def same(one: Any, other: Any) -> bool:
    """Whether two strategies differ in their names only."""
    return (one.configs, one.syncs, one.sums) == (other.configs, other.syncs, other.sums)


# ---- judging ---------------------------------------------------------------------------------------------------------
def judge_network(row: dict[str, Any]) -> None:
    """Add the ratios of the plans' measured steps."""
    data, analytic, measured = row["plans"]
    row["ratio"] = analytic["measured_seconds"] / measured["measured_seconds"]
    row["told_apart"] = accuracy.told_apart(analytic, measured)
    row["against_data"] = {plan["plan"]: data["measured_seconds"] / plan["measured_seconds"] for plan in (analytic, measured)}


def report(row: dict[str, Any]) -> None:
    """One network, for people."""
    apart = "the same plan" if row["same_plan"] else "told apart" if row["told_apart"] else "not told apart"
    click.echo(
        f"{row['network']}: {row['operators']} operators on {row['machine']}; the analytic costs' plan takes {row['ratio']:.3f} "
        f"times as long as the measured costs' plan ({apart}); foreign load {row['foreign_load']:.0%}", err=True,
    )
    click.echo(f"  {'plan':<10}{'measured ms':>12}{'analytic says':>15}{'measured say':>14}{'against data':>14}", err=True)
    for plan in row["plans"]:
        says, against = plan["predicted_seconds"], row["against_data"].get(plan["plan"], 1.0)
        click.echo(
            f"  {plan['plan']:<10}{plan['measured_seconds'] * 1e3:>12.2f}{says['analytic'] * 1e3:>15.2f}"
            f"{says['measured'] * 1e3:>14.2f}{against:>13.2f}x", err=True,
        )


@click.command(cls=Several, help=__doc__.split("\n\n")[0])
@click.option("--networks", multiple=True, type=one_of(SIZES), default=tuple(accuracy.SIZES), help="One or several.")
@click.option("--machine", metavar="FILE", help="Whose rates and links both searches use (default: those of `taskflow train`).")
@click.option("--budget", default="60s", show_default=True, help="Of each search: 60s, or 2000p for proposals.")
@click.option("--seed", default=0, show_default=True, type=click.IntRange(0), help="Of both searches.")
@click.option("--rounds", default=9, show_default=True, type=click.IntRange(1), help="Of a few steps of each plan.")
@click.option("--patience", default=60.0, show_default=True, help="Seconds a network to wait for undisturbed rounds.")
@click.option("--ranks", default=2, show_default=True, type=click.IntRange(2), help="A core each.")
@click.option("--folder", default="", metavar="DIR", help="Keeps the measured costs (default: they are measured anew).")
@click.option("--json", "as_json", is_flag=True)
@click.option("--worker", is_flag=True, hidden=True)
def main(
    networks: tuple[str, ...], machine: str | None, budget: str, seed: int, rounds: int, patience: float, ranks: int, folder: str,
    as_json: bool, worker: bool,
) -> None:
    if worker:
        work(networks, machine, budget, seed, rounds, patience, folder)
        return
    command = [__file__, "--worker", "--budget", budget, "--seed", str(seed), "--rounds", str(rounds), "--patience", str(patience)]
    command += [part for network in networks for part in ("--networks", network)] + ["--folder", folder]
    rows = []
    for row in accuracy.rows_of([*command, *(("--machine", machine) if machine is not None else ())], ranks):
        judge_network(row)
        report(row)
        rows.append(row)
    if as_json:
        result = {"benchmark": "measured_plans", "ranks": ranks, "budget": budget, "load_average": os.getloadavg()[0], "rows": rows}
        click.echo(json.dumps(result))


if __name__ == "__main__":
    main()
