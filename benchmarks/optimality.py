"""How close to the optimum the default search comes (paper, section 8.4).

    python benchmarks/optimality.py [--seconds 60] [--exact-seconds 900] [--everything] [--json] [--out rows.json]

1. LeNet and RNNLM-2 on 4 devices: the fastest strategy, proved by branch and bound, and the default search's plan after one
   second. First in spaces of the paper's size: equal pieces, no contracted dimensions, contiguous processors from any offset;
   the operators with weights choose (they are the paper's layers), the others follow. That is 24 configurations for each of
   RNNLM-2's 8 operators, 1.1e11 strategies as the paper has it, times our ways to synchronise each layer. Then with all
   structured placements; then LeNet's whole space, in which every operator chooses; and of RNNLM-2's whole space that no
   strategy is faster by more than --tolerance. --everything adds wider spaces. The default search always has all operators
   to choose for, so its plan may be faster than the fastest strategy of a space in which some follow.
2. The six networks on 2, 4 and 8 devices: the plan of the default search is polished until no change of a single operator
   helps; then every structured configuration of every operator is tried, by the evaluator and not by the search.

Budgets and times are seconds of the processor's time, so that other work on the machine changes nothing. --out writes what is done
after every row, and what the file has already is not done again.
"""

from __future__ import annotations

import json
from dataclasses import asdict, replace
from math import nextafter
from pathlib import Path
from time import process_time

import click
from several import Several, one_of

from taskflow.machine import load_machine
from taskflow.models import build
from taskflow.optimizer import ALGORITHMS, Budget, Deadline, SearchOptions, SearchResult, make_evaluator
from taskflow.optimizer.algorithms import ROUNDING, exact, known, polished
from taskflow.optimizer.bounds import lower_bound
from taskflow.optimizer.evaluate import Evaluator
from taskflow.optimizer.space import SearchSpace, SpaceOptions

SIX = ("AlexNet", "Inception-v3", "ResNet-101", "RNNTC", "RNNLM", "NMT")
WHOLE = SpaceOptions("powers", reduction=False)
PAPER = SpaceOptions("even", "contiguous", reduction=False, follow="weightless")
CASES = (  # model, space, and whether a tolerance is asked for
    ("LeNet", PAPER, False),
    ("RNNLM-2", PAPER, False),
    ("RNNLM-2", replace(WHOLE, follow="weightless"), False),
    ("LeNet", WHOLE, False),
    ("RNNLM-2", WHOLE, True),
)
MORE = (
    ("LeNet", SpaceOptions("any"), False),
    ("LeNet", replace(WHOLE, placements="arbitrary"), False),
    ("RNNLM-2", replace(WHOLE, follow="passive"), False),
)
QUICK = 1.0  # seconds of the default search in part 1


def default(evaluator: Evaluator, seconds: float, space: SpaceOptions) -> SearchResult:
    """The default search, as `search` runs it."""
    return ALGORITHMS["guided"](evaluator, SearchOptions(
        Budget(seconds=seconds), space=space, rivals=known(evaluator.graph, evaluator.machine),
        deadline=Deadline(seconds, process_time), bound=lambda over: lower_bound(evaluator, space, over),
    ))  # fmt: skip


def optimum(model: str, space: SpaceOptions, seconds: float, tolerance: float) -> dict:
    graph, machine = build(model, devices=4), load_machine("p100", 4)
    quick = default(make_evaluator(graph, machine), QUICK, replace(space, follow="none"))
    evaluator, within = make_evaluator(graph, machine), space.follow != "none"
    begin = process_time()
    proof = exact(evaluator, SearchOptions(
        Budget(seconds=seconds), space=space, rivals=() if within else (quick.strategy,), tolerance=tolerance,
        deadline=Deadline(seconds, process_time),
    ), within=within)  # fmt: skip
    assert proof.proof is not None
    reached = [h.elapsed for h in quick.history if h.seconds <= proof.seconds * (1 + ROUNDING)]
    return {
        "model": model, "machine": machine.name, "devices": 4, "space": _options(space),
        **proof.proof.as_json(), "exact_iteration_seconds": proof.seconds, "proved": proof.proof.complete,
        "optimal": proof.optimal, "exact_processor_seconds": process_time() - begin,
        "lower_bound_seconds": proof.lower_bound, "gap": proof.gap,
        "default_iteration_seconds": quick.seconds, "default_processor_seconds": quick.search_seconds,
        "default_reached_it": bool(reached), "default_reached_it_after_seconds": min(reached, default=None),
        "default_above_it": quick.seconds / proof.seconds - 1,
        "default_history": [(h.proposal, h.elapsed, h.seconds) for h in quick.history],
    }  # fmt: skip


def _options(space: SpaceOptions) -> dict:
    return {name: value for name, value in asdict(space).items() if name in ("degrees", "placements", "reduction", "follow")}


def neighbours(model: str, devices: int, seconds: float, polish: float) -> dict:
    graph, machine = build(model, devices=devices), load_machine("p100", devices)
    evaluator = make_evaluator(graph, machine)
    begin = process_time()
    first = default(evaluator, seconds, SpaceOptions())
    searched = process_time()
    found = polished(evaluator, first, SearchOptions(Budget(seconds=polish), deadline=Deadline(polish, process_time)))
    done = process_time()
    evaluator.set(found.strategy)
    space, tried, better = SearchSpace(graph, devices), 0, 0
    for node in graph:
        for config in space[node]:
            tried += 1
            better += evaluator.propose({node.name: config}, nextafter(found.seconds, 0.0)) < found.seconds
    return {
        "model": model, "machine": machine.name, "devices": devices, "iteration_seconds": found.seconds,
        "before_polishing_seconds": first.seconds, "lower_bound_seconds": first.lower_bound,
        "polish_finished": found.local, "neighbours": tried, "better_neighbours": better, "locally_optimal": better == 0,
        "search_processor_seconds": searched - begin, "polish_processor_seconds": done - searched,
        "check_processor_seconds": process_time() - done,
    }  # fmt: skip


def describe(row: dict) -> str:
    proved = "proved" if row["proved"] else "not proved"
    within = f" within {row['tolerance']:.1%}" if row["tolerance"] else ""
    after = row["default_reached_it_after_seconds"]
    reached = f"as fast after {after:.2f} s" if after is not None else f"{row['default_above_it']:.2%} above it"
    return (
        f"{row['model']} on 4, {row['space']}: {row['strategies']:.2g} strategies, {proved}{within} in "
        f"{row['exact_processor_seconds']:.1f} s ({row['partial_plans']} partial plans, {row['simulated']} simulated): "
        f"{row['exact_iteration_seconds'] * 1e3:.5g} ms, at least {row['lower_bound_seconds'] * 1e3:.5g} ms; default search "
        f"{row['default_iteration_seconds'] * 1e3:.5g} ms, {reached}"
    )


def describe_neighbours(row: dict) -> str:
    return (
        f"{row['model']} on {row['devices']}: {row['better_neighbours']} of {row['neighbours']} neighbours are faster "
        f"({row['iteration_seconds'] * 1e3:.4g} ms; before polishing {row['before_polishing_seconds'] * 1e3:.4g} ms)"
    )


@click.command(cls=Several, help=__doc__.split("\n\n")[0])
@click.option("--models", multiple=True, type=one_of((*SIX, "LeNet", "RNNLM-2")), help="One or several; by default all.")
@click.option("--devices", multiple=True, type=int, default=(2, 4, 8), help="For part 2; one or several.")
@click.option("--seconds", default=60.0, show_default=True, help="Budget of each search in part 2.")
@click.option("--polish-seconds", default=1500.0, show_default=True, help="Of polishing each plan in part 2.")
@click.option("--exact-seconds", default=900.0, show_default=True, help="Budget of each proof in part 1.")
@click.option("--tolerance", default=0.045, show_default=True, help="Share of RNNLM-2's time, in its whole space.")
@click.option("--part", "parts", multiple=True, type=click.IntRange(1, 2), default=(1, 2), help="One or several.")
@click.option("--everything", is_flag=True, help="Wider spaces, too, which take longer.")
@click.option("--out", type=click.Path(path_type=Path), help="File for the rows; those that it has are not done again.")
@click.option("--json", "as_json", is_flag=True)
def main(
    models: tuple[str, ...], devices: tuple[int, ...], seconds: float, polish_seconds: float, exact_seconds: float,
    tolerance: float, parts: tuple[int, ...], everything: bool, out: Path | None, as_json: bool,
) -> None:
    content: dict = {"benchmark": "optimality", "exact": [], "local": []}
    if out is not None and out.exists():
        content = json.loads(out.read_text())

    def keep(part: str, row: dict, text: str) -> None:
        content[part].append(row)
        if out is not None:
            out.write_text(json.dumps(content, indent=1))
        click.echo(text, err=as_json)

    for model, space, tolerant in (*CASES, *(MORE if everything else ())) if 1 in parts else ():
        least = tolerance if tolerant else 0.0
        known_row = any((r["model"], r["space"], r["tolerance"]) == (model, _options(space), least) for r in content["exact"])
        if (not models or model in models) and not known_row:
            row = optimum(model, space, exact_seconds, least)
            keep("exact", row, describe(row))
    for count in devices if 2 in parts else ():
        for model in (m for m in SIX if not models or m in models):
            if not any((r["model"], r["devices"]) == (model, count) for r in content["local"]):
                row = neighbours(model, count, seconds, polish_seconds)
                keep("local", row, describe_neighbours(row))
    if as_json:
        click.echo(json.dumps(content))


if __name__ == "__main__":
    main()
