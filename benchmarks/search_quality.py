"""How good the searches are: the default one against plain MCMC and OptCNN at equal time, on described clusters.

    python benchmarks/search_quality.py [--models NMT ...] [--machine k80] [--devices 16] [--budget 10] [--seeds 5] [--json]

Each search has the same budget in seconds of the processor's time, so that other work on the machine changes nothing; OptCNN
takes what it takes and is run once, since it is deterministic. All start from data parallelism, expert and model parallelism.
Figures: predicted seconds a step, median, least and largest over the seeds. Memory is not limited, so that all search one space.
"""

from __future__ import annotations

import json
from math import inf
from statistics import median
from time import process_time

import click
from several import Several, one_of

from taskflow.machine import load_machine
from taskflow.models import MODELS, build
from taskflow.optimizer import ALGORITHMS, Budget, Deadline, SearchOptions, SearchResult, make_evaluator
from taskflow.optimizer.algorithms import known
from taskflow.optimizer.evaluate import Evaluator

SIX = ("AlexNet", "Inception-v3", "ResNet-101", "RNNTC", "RNNLM", "NMT")


def one(evaluator: Evaluator, algorithm: str, seconds: float, seed: int) -> SearchResult:
    """One search, which begins with an evaluator that knows nothing yet."""
    rivals = () if algorithm == "optcnn" else known(evaluator.graph, evaluator.machine)
    options = SearchOptions(Budget(seconds=seconds), seed, rivals=rivals, deadline=Deadline(seconds, process_time))
    return ALGORITHMS[algorithm](evaluator, options)


def measure(model: str, machine_name: str, devices: int, seconds: float, seeds: int) -> dict:
    graph, machine = build(model, devices=devices), load_machine(machine_name, devices)
    evaluator = make_evaluator(graph, machine)
    row: dict = {"model": model, "machine": machine.name, "devices": devices, "budget_seconds": seconds, "seeds": seeds}
    row["starts_iteration_seconds"] = {s.name: evaluator.set(s) for s in known(graph, machine)}
    row["starts_sync"] = {s.name: ", ".join(sorted({str(y) for y in s.syncs.values()})) for s in known(graph, machine)}
    for algorithm in ("optcnn", "mcmc", "guided"):
        runs = [
            one(make_evaluator(graph, machine), algorithm, inf if algorithm == "optcnn" else seconds, seed)
            for seed in range(1 if algorithm == "optcnn" else seeds)
        ]
        found = [r.seconds for r in runs]
        row[algorithm] = {
            "iteration_seconds": median(found), "least_seconds": min(found), "most_seconds": max(found),
            "proposals": median(r.proposals for r in runs), "search_seconds": median(r.search_seconds for r in runs),
        }
    default = row["guided"]
    row["guided_never_worse"] = default["most_seconds"] <= min(
        row["mcmc"]["least_seconds"], row["optcnn"]["iteration_seconds"], *row["starts_iteration_seconds"].values()
    )
    row["mcmc_over_guided"] = row["mcmc"]["iteration_seconds"] / default["iteration_seconds"]
    row["optcnn_over_guided"] = row["optcnn"]["iteration_seconds"] / default["iteration_seconds"]
    return row


@click.command(cls=Several, help=__doc__.split("\n\n")[0])
@click.option("--models", multiple=True, type=one_of(MODELS), default=SIX, help="One or several.")
@click.option("--machine", default="k80", show_default=True)
@click.option("--devices", multiple=True, type=int, default=(16,), help="One or several.")
@click.option("--budget", "seconds", default=10.0, show_default=True, help="Seconds of each search.")
@click.option("--seeds", default=5, show_default=True)
@click.option("--json", "as_json", is_flag=True)
def main(models: tuple[str, ...], machine: str, devices: tuple[int, ...], seconds: float, seeds: int, as_json: bool) -> None:
    rows = []
    for model in models:
        for count in devices:
            row = measure(model, machine, count, seconds, seeds)
            rows.append(row)
            default, plain = row["guided"], row["mcmc"]
            click.echo(
                f"{model:<14}{count:>4} {row['machine']}: default {default['iteration_seconds']:.4g} s "
                f"({default['least_seconds']:.4g} to {default['most_seconds']:.4g}), MCMC {plain['iteration_seconds']:.4g} s "
                f"({plain['least_seconds']:.4g} to {plain['most_seconds']:.4g}), OptCNN "
                f"{row['optcnn']['iteration_seconds']:.4g} s; never worse: {row['guided_never_worse']}",
                err=as_json,
            )
    if as_json:
        click.echo(json.dumps({"benchmark": "search_quality", "rows": rows}))


if __name__ == "__main__":
    main()
