"""What each part of measured costs is worth: the same steps predicted by costs with one part left out.

    python benchmarks/cost_parts.py [--networks RNNLM ...] [--passes 2] [--rounds 6] [--json]   # on 2 ranks, a core each

Measured costs time each task as a step would run it: beside other ranks at work (``company``), after other memory was read
(``memory``), with a share of it older still (``age``), after other code (``code``), and once more where the core was slow
(``probe``). Here all tasks are timed with all of these, then with each left out and with the last four, in turns, before the
steps of a pass. A step's time is measured as in accuracy.py. The error of a part is the mean absolute error of predictions
without it.
"""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from statistics import mean, median
from typing import Any

import accuracy
import click
from several import Several, one_of

FOUR = ("company", "age", "code", "probe")
PARTS = ("nothing", "memory", *FOUR, "these four")
LEAST_BYTES = 4  # of other memory that can be read


# ---- one job: all networks -------------------------------------------------------------------------------------------
def work(networks: Sequence[str], rounds: int, passes: int, budget: str, patience: float) -> None:
    """What each rank does; rank 0 prints a JSON object a network."""
    import taskflow
    from taskflow.models import build
    from taskflow.runtime.calibrate import measure

    transport = taskflow.connect()
    machine = measure(transport)
    rule = taskflow.SGD(lr=1e-3, momentum=0.9)
    for network in networks:
        graph = build(network, **accuracy.SIZES[network])
        first, strategies = transport.rank == 0, None
        if first:
            found = accuracy.Predictor(graph, machine, rule, False, False).search(budget)
            strategies = accuracy.strategies_of(graph, machine, found)
        strategies = transport.broadcast(strategies)
        executors = [taskflow.Executor(graph, s, rule, transport=transport, machine=machine) for s in strategies]
        inputs = accuracy.feeds(graph)
        times: list[list[accuracy.Round]] = [[] for _ in executors]
        predictions: dict[str, list[list[float]]] = {part: [] for part in PARTS}
        for number in range(passes):
            for part in PARTS if number % 2 == 0 else PARTS[::-1]:
                if first:
                    predictions[part].append(predicted(graph, machine, rule, strategies, part))
                transport.barrier()
            some = accuracy.rounds_of(executors, inputs, transport, number, -(-rounds // passes), patience / passes, False)
            for results, more in zip(times, some):
                results += more
        if first:
            print(json.dumps({
                "network": network, "foreign_load": median(r.foreign for results in times for r in results),
                "strategies": [
                    {"strategy": s.name, **accuracy.measured(results), "predicted_seconds": {
                        part: median(each[i] for each in predictions[part]) for part in PARTS
                    }} for i, (s, results) in enumerate(zip(strategies, times))
                ],
            }), flush=True)  # fmt: skip
        for executor in executors:
            executor.close()
    transport.close()


def predicted(graph: Any, machine: Any, rule: Any, strategies: Sequence[Any], without: str) -> list[float]:
    """Seconds of a step under each strategy, by tasks that are timed now without a part (``nothing``: with all)."""
    from taskflow.optimizer import make_evaluator
    from taskflow.optimizer.cost.measured import MeasuredCosts, between
    from taskflow.optimizer.cost.measured.cache_state import FRESH

    state, left_out = between(graph, machine, rule), FOUR if without == "these four" else (without,)
    if without == "memory":
        state = replace(state, nbytes=LEAST_BYTES, code=dict.fromkeys(state.code, 0), age=FRESH)
    if "age" in left_out:
        state = replace(state, age=FRESH)
    if "code" in left_out:
        state = replace(state, code={})
    company = 0 if "company" in left_out else len(machine.processors) - 1
    with tempfile.TemporaryDirectory() as folder:
        costs = MeasuredCosts(machine, None, Path(folder), accuracy.SECONDS, state, company, 1)
        if "probe" in left_out:
            costs._yardstick = None  # nothing outside of measuring should be able to do so
        try:
            evaluator = make_evaluator(graph, machine, costs=costs, rule=rule)
            return [float(evaluator.set(strategy)) for strategy in strategies]
        finally:
            costs.close()


# ---- judging ---------------------------------------------------------------------------------------------------------
def judge(rows: Sequence[dict[str, Any]]) -> dict[str, dict[str, float]]:
    """Of each part, the mean absolute error without it, and how much that is more than with all, in points of per cent."""
    found = {}
    for part in PARTS:
        errors = [abs(p["predicted_seconds"][part] / p["measured_seconds"] - 1) for row in rows for p in row["strategies"]]
        found[part] = {"mean_error": mean(errors), "maximum_error": max(errors)}
    for part in PARTS:
        found[part]["worth"] = found[part]["mean_error"] - found["nothing"]["mean_error"]
    return found


def report(name: str, found: dict[str, dict[str, float]]) -> None:
    """One network, or all, for people."""
    click.echo(f"{name}: without", err=True)
    for part, of in found.items():
        error, most, worth = of["mean_error"], of["maximum_error"], of["worth"]
        click.echo(f"  {part:<10} mean error {error:6.1%}, at most {most:6.1%} ({worth:+.1%})", err=True)


@click.command(cls=Several, help=__doc__.split("\n\n")[0])
@click.option("--networks", multiple=True, type=one_of(accuracy.SIZES), default=tuple(accuracy.SIZES), help="One or several.")
@click.option("--rounds", default=6, show_default=True, type=click.IntRange(1), help="Of a few steps each, of all passes together.")
@click.option("--passes", default=2, show_default=True, type=click.IntRange(1), help="How often kernels are timed, then steps.")
@click.option("--budget", default="8s", show_default=True, help="Of the search for one of the strategies.")
@click.option("--patience", default=20.0, show_default=True, help="Seconds a network to wait for undisturbed rounds.")
@click.option("--json", "as_json", is_flag=True)
@click.option("--worker", is_flag=True, hidden=True)
def main(
    networks: tuple[str, ...], rounds: int, passes: int, budget: str, patience: float, as_json: bool, worker: bool
) -> None:
    if worker:
        work(networks, rounds, passes, budget, patience)
        return
    command = [__file__, "--worker", "--rounds", str(rounds), "--passes", str(passes), "--budget", budget]
    command += ["--patience", str(patience), *(part for network in networks for part in ("--networks", network))]
    rows = []
    for row in accuracy.rows_of(command, 2):
        report(row["network"], judge([row]))
        rows.append(row)
    if len(rows) > 1:
        report("all", judge(rows))
    if as_json:
        click.echo(json.dumps({
            "benchmark": "cost_parts", "parts": judge(rows), "load_average": os.getloadavg()[0], "networks": rows,
        }))  # fmt: skip


if __name__ == "__main__":
    main()
