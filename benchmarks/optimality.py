"""How close to the optimum the default search comes (paper, section 8.4).

    python benchmarks/optimality.py [--seconds 60] [--exact-seconds 900] [--everything] [--json]

1. LeNet and RNNLM-2 on 4 devices: branch and bound within --exact-seconds, and the default search's plan after one second. LeNet's
   space is whole: every operator has any cut into powers of two and any structured placement, every layer any of 9 ways to
   be synchronised. Of RNNLM-2 the operators with weights choose and the others follow (the paper counts layers, too); in
   the whole space it is proved that no strategy is faster by more than --tolerance. --everything adds wider spaces.
2. The six networks on 2, 4 and 8 devices: the plan of the default search is polished until no change of a single operator
   helps; then every structured configuration of every operator is tried, by the evaluator and not by the search.
"""

from __future__ import annotations

import json
from dataclasses import replace
from math import nextafter
from time import process_time

import click

from taskflow.machine import load_machine
from taskflow.models import build
from taskflow.optimizer.exact import exact
from taskflow.optimizer.found import Budget, SearchOptions
from taskflow.optimizer.polish import polished
from taskflow.optimizer.search import make_evaluator, search
from taskflow.optimizer.space import Space, SpaceOptions

SIX = ("AlexNet", "Inception-v3", "ResNet-101", "RNNTC", "RNNLM", "NMT")
POWERS = SpaceOptions("powers", reduction=False)
CASES = (  # model, space, and whether a tolerance is asked for
    ("LeNet", POWERS, False),
    ("RNNLM-2", replace(POWERS, follow="weightless"), False),
    ("RNNLM-2", POWERS, True),
)
MORE = (
    ("LeNet", SpaceOptions("any"), False),
    ("LeNet", replace(POWERS, placements="arbitrary"), False),
    ("RNNLM-2", replace(POWERS, follow="passive"), False),
)


def optimum(model: str, space: SpaceOptions, seconds: float, tolerance: float) -> dict:
    graph, machine = build(model, devices=4), load_machine("p100", 4)
    judge = make_evaluator(graph, machine)
    quick = search(graph, machine, budget=Budget(seconds=1.0), use=judge, memory=False, space=replace(space, follow="none"))
    options = SearchOptions(Budget(seconds=seconds), space=space, rivals=(quick.strategy,), tolerance=tolerance)
    begin = process_time()
    proof = exact(judge, options)
    assert proof.proof is not None
    return {
        "model": model, "machine": machine.name, "devices": 4, "space": {
            "degrees": space.degrees, "placements": space.placements, "reduction": space.reduction, "follow": space.follow,
        },
        **proof.proof.as_json(), "exact_iteration_seconds": proof.seconds, "proved": proof.proof.complete,
        "optimal": proof.optimal, "exact_search_seconds": proof.search_seconds,
        "exact_processor_seconds": process_time() - begin, "default_iteration_seconds": quick.seconds,
        "default_search_seconds": quick.search_seconds, "default_found_it": quick.seconds <= proof.seconds,
        "default_above_it": quick.seconds / proof.seconds - 1,
        "lower_bound_seconds": proof.lower_bound, "gap": proof.gap,
    }  # fmt: skip


def neighbours(model: str, devices: int, seconds: float, polish: float) -> dict:
    graph, machine = build(model, devices=devices), load_machine("p100", devices)
    judge = make_evaluator(graph, machine)
    begin = process_time()
    first = search(graph, machine, budget=Budget(seconds=seconds), use=judge, memory=False, workers=1)
    searched = process_time()
    found = polished(judge, first, SearchOptions(Budget(seconds=polish)))
    done = process_time()
    judge.set(found.strategy)
    space, tried, better = Space(graph, devices), 0, 0
    for node in graph:
        for config in space[node]:
            tried += 1
            better += judge.propose({node.name: config}, nextafter(found.seconds, 0.0)) < found.seconds
    return {
        "model": model, "machine": machine.name, "devices": devices, "iteration_seconds": found.seconds,
        "before_polishing_seconds": first.seconds, "search_seconds": first.search_seconds,
        "polish_seconds": found.search_seconds - first.search_seconds, "polish_finished": found.local,
        "lower_bound_seconds": first.lower_bound, "neighbours": tried, "better_neighbours": better,
        "locally_optimal": better == 0, "search_processor_seconds": searched - begin,
        "polish_processor_seconds": done - searched, "check_processor_seconds": process_time() - done,
    }


def describe(row: dict) -> str:
    proved = "proved" if row["proved"] else "not proved"
    within = f" within {row['tolerance']:.1%}" if row["tolerance"] else ""
    return (
        f"{row['model']} on 4, {row['space']}: {row['strategies']:.2g} strategies, {proved}{within} in "
        f"{row['exact_search_seconds']:.1f} s ({row['exact_processor_seconds']:.1f} s of a core, {row['partial_plans']} partial "
        f"plans, {row['simulated']} simulated): {row['exact_iteration_seconds'] * 1e3:.5g} ms; default search "
        f"{row['default_iteration_seconds'] * 1e3:.5g} ms in {row['default_search_seconds']:.1f} s; gap {row['gap']:.1%}"
    )


@click.command(help=__doc__.split("\n\n")[0])
@click.option("--models", multiple=True, default=SIX, help="For part 2; may be repeated.")
@click.option("--devices", multiple=True, type=int, default=(2, 4, 8), help="For part 2; may be repeated.")
@click.option("--seconds", default=60.0, show_default=True, help="Budget of each search in part 2.")
@click.option("--exact-seconds", default=900.0, show_default=True, help="Budget of each proof in part 1.")
@click.option("--tolerance", default=0.06, show_default=True, help="Share of RNNLM-2's time, in its whole space.")
@click.option("--part", "parts", multiple=True, type=click.IntRange(1, 2), default=(1, 2), help="May be repeated.")
@click.option("--everything", is_flag=True, help="Wider spaces, too, which take longer.")
@click.option("--json", "as_json", is_flag=True)
def main(
    models: tuple[str, ...], devices: tuple[int, ...], seconds: float, exact_seconds: float, tolerance: float,
    parts: tuple[int, ...], everything: bool, as_json: bool,
) -> None:
    proofs, local = [], []
    for model, space, tolerant in (*CASES, *(MORE if everything else ())) if 1 in parts else ():
        proofs.append(optimum(model, space, exact_seconds, tolerance if tolerant else 0.0))
        click.echo(describe(proofs[-1]), err=as_json)
    for model in models if 2 in parts else ():
        for count in devices:
            row = neighbours(model, count, seconds)
            local.append(row)
            click.echo(
                f"{model} on {count}: {row['better_neighbours']} of {row['neighbours']} neighbours are faster "
                f"({row['iteration_seconds'] * 1e3:.4g} ms; before polishing {row['before_polishing_seconds'] * 1e3:.4g} ms)",
                err=as_json,
            )
    if as_json:
        click.echo(json.dumps({"benchmark": "optimality", "exact": proofs, "local": local}))


if __name__ == "__main__":
    main()
