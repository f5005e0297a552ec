"""How close to the optimum the default search comes (paper, section 8.4).

    python benchmarks/optimality.py [--seconds 60] [--exact-seconds 300] [--json]

1. LeNet and RNNLM-2 on 4 devices: branch and bound within --exact-seconds; whether it proved the optimum, the default search's plan
   after one second, and the gap to the lower bound.
2. The six networks on 2, 4 and 8 devices: whether any change of a single operator improves the plan that the default search
   found. Every structured configuration of every operator is tried, by the evaluator and not by the search.
"""

from __future__ import annotations

import json
from math import nextafter
from time import perf_counter

import click

from taskflow.machine import load_machine
from taskflow.models import build
from taskflow.optimizer.found import Budget
from taskflow.optimizer.search import make_evaluator, search
from taskflow.optimizer.space import Space, SpaceOptions

SIX = ("AlexNet", "Inception-v3", "ResNet-101", "RNNTC", "RNNLM", "NMT")


def optimum(model: str, seconds: float) -> dict:
    graph, machine = build(model, devices=4), load_machine("p100", 4)
    judge, options = make_evaluator(graph, machine), SpaceOptions("powers", reduction=False)
    quick = search(graph, machine, budget=Budget(seconds=1.0), use=judge, memory=False, space=options)
    proof = search(
        graph, machine, budget=Budget(seconds=seconds), use=judge, memory=False, space=options, algorithm="exact"
    )
    return {
        "model": model, "machine": machine.name, "devices": 4, "strategies": Space(graph, 4, options).strategies,
        "exact_iteration_seconds": proof.seconds, "proved": proof.optimal, "exact_search_seconds": proof.search_seconds,
        "exact_proposals": proof.proposals, "default_iteration_seconds": quick.seconds,
        "default_search_seconds": quick.search_seconds, "default_found_it": quick.seconds <= proof.seconds,
        "lower_bound_seconds": proof.lower_bound, "gap": proof.gap,
    }


def neighbours(model: str, devices: int, seconds: float) -> dict:
    graph, machine = build(model, devices=devices), load_machine("p100", devices)
    judge = make_evaluator(graph, machine)
    found = search(graph, machine, budget=Budget(seconds=seconds), use=judge, memory=False)
    judge.set(found.strategy)
    space, tried, better, begin = Space(graph, devices), 0, 0, perf_counter()
    for node in graph:
        for config in space[node]:
            tried += 1
            better += judge.propose({node.name: config}, nextafter(found.seconds, 0.0)) < found.seconds
    return {
        "model": model, "machine": machine.name, "devices": devices, "iteration_seconds": found.seconds,
        "search_seconds": found.search_seconds, "search_says_locally_optimal": found.local, "neighbours": tried,
        "better_neighbours": better, "locally_optimal": better == 0, "check_seconds": perf_counter() - begin,
    }


@click.command(help=__doc__.split("\n\n")[0])
@click.option("--models", multiple=True, default=SIX, help="For part 2; may be repeated.")
@click.option("--devices", multiple=True, type=int, default=(2, 4, 8), help="For part 2; may be repeated.")
@click.option("--seconds", default=60.0, show_default=True, help="Budget of each search in part 2.")
@click.option("--exact-seconds", default=300.0, show_default=True, help="Budget of each proof in part 1.")
@click.option("--json", "as_json", is_flag=True)
def main(models: tuple[str, ...], devices: tuple[int, ...], seconds: float, exact_seconds: float, as_json: bool) -> None:
    exact, local = [], []
    for model in ("LeNet", "RNNLM-2"):
        row = optimum(model, exact_seconds)
        exact.append(row)
        click.echo(
            f"{model} on 4: {row['strategies']:.2g} strategies, {'proved' if row['proved'] else 'not proved'} in "
            f"{row['exact_search_seconds']:.1f} s: {row['exact_iteration_seconds'] * 1e3:.4g} ms; default search "
            f"{row['default_iteration_seconds'] * 1e3:.4g} ms in {row['default_search_seconds']:.1f} s; gap {row['gap']:.1%}",
            err=as_json,
        )
    for model in models:
        for count in devices:
            row = neighbours(model, count, seconds)
            local.append(row)
            click.echo(
                f"{model} on {count}: {row['better_neighbours']} of {row['neighbours']} neighbours are faster "
                f"(search {row['search_seconds']:.1f} s)", err=as_json,
            )
    if as_json:
        click.echo(json.dumps({"benchmark": "optimality", "exact": exact, "local": local}))


if __name__ == "__main__":
    main()
