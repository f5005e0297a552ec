"""The paper's Table 4: how long a search takes from start to end, with full and with delta simulation.

    python benchmarks/table4.py [--models NMT ...] [--devices 64 ...] [--budget 60] [--starts 10] [--follow none] [--json]

By the paper's protocol: the search by Metropolis-Hastings from random strategies (--starts of them), each ending when half of
its proposals so far brought no better strategy (and every operator could have been drawn once). The operators that choose are
those that the paper counts (AlexNet: 12); with them go activations, normalisation, sums of two tensors, views, inputs and state
(--follow elementwise; none: every node of the graph chooses for itself, in ResNet-101 764 instead of 107). Figures are seconds
of one search, the mean over the starts. Tables of cuts and costs stay from one start to the next, as the paper's simulator
measures a task once: the first search makes most of them, and its time is in the mean and beside it (``first_seconds``; all of a
cell's time is in the mean times the starts). How long a start goes on differs by factors of a hundred, so the mean over ten
strays by two and more with the random numbers: ``median_seconds`` and ``microseconds_a_proposal`` stand beside it. Both
algorithms see the same proposals. --budget limits
the seconds spent on one cell; ``complete`` says whether all starts came to their end within it: if not, the mean is over
those that did, and the cell is a lower bound if none did. Seconds are of processor time, since machines are shared;
``wall_seconds`` stands beside them. A search may end early at a poor plan, so what it found stands beside its time: the step's
seconds under data parallelism over those under the found plan (``data_over_found``; below 1: worse than data parallelism).
Beside both stands the default search: what it found in --default seconds of one thread, and after how many of them it had a
plan within 1 % of that.
"""

from __future__ import annotations

import json
from dataclasses import replace
from random import Random
from statistics import mean, median
from time import perf_counter, process_time

import click
from several import Several, one_of

from taskflow.machine import load_machine
from taskflow.models import MODELS, build
from taskflow.optimizer import Budget, Deadline, SearchOptions, make_evaluator, search
from taskflow.optimizer.algorithms import known, mcmc, random_start
from taskflow.optimizer.space import FOLLOW, CoupledMoves, SearchSpace, SpaceOptions

SIX = ("AlexNet", "ResNet-101", "Inception-v3", "RNNTC", "RNNLM", "NMT")
SPACE = SpaceOptions("even", reduction=False)  # the paper's section 4: equal pieces, of sample, attribute and parameter dimensions
PAPER = {  # devices -> seconds of (full, delta), in the order of SIX
    4: ((0.11, 0.04), (1.4, 0.4), (14, 4.1), (16, 7.5), (21, 9.2), (40, 16)),
    8: ((0.40, 0.13), (4.5, 1.4), (66, 17), (91, 39), (76, 31), (178, 65)),
    16: ((1.4, 0.48), (22, 7.3), (388, 77), (404, 170), (327, 121), (998, 328)),
    32: ((5.3, 1.8), (107, 33), (1746, 298), (1358, 516), (1102, 342), (2698, 701)),
    64: ((18, 5.9), (515, 158), (8817, 1278), (4404, 1489), (3406, 969), (8982, 2190)),
}


def cell(model: str, devices: int, machine: str, algorithm: str, starts: int, budget: float, follow: str) -> dict:
    """Searches from ``starts`` random strategies, one after another, while ``budget`` seconds last."""
    graph, cluster = build(model, devices=devices), load_machine(machine, devices)
    choice = replace(SPACE, follow=follow)
    space = SearchSpace(graph, devices, choice)
    begin, took, walls, proposals, found = process_time(), [], [], [], []
    here, wall = process_time(), perf_counter()
    evaluator = make_evaluator(graph, cluster, algorithm=algorithm)
    for seed in range(starts):
        left = budget - (process_time() - begin)
        if left <= 0:
            break
        random = random_start(graph, cluster, space, Random(f"table4 {seed}"), f"random {seed}")
        deadline = Deadline(left, process_time)
        options = SearchOptions(Budget(seconds=left), seed, choice, starts=(random,), deadline=deadline)
        result = mcmc(evaluator, options, patient=False)
        if result.stopped == "stalled":
            took.append(process_time() - here)
            walls.append(perf_counter() - wall)
            proposals.append(result.proposals)
            found.append(result.seconds)
        here, wall = process_time(), perf_counter()
    paper = None
    if devices in PAPER and model in SIX:
        paper = PAPER[devices][SIX.index(model)][algorithm == "delta"]
    seconds = mean(took) if took else process_time() - begin
    data = make_evaluator(graph, cluster).set(known(graph, cluster)[0])
    return {
        "model": model, "devices": devices, "machine": cluster.name, "algorithm": algorithm, "starts": starts,
        "follow": follow, "operators": len(CoupledMoves(graph, space)), "first_seconds": took[0] if took else None,
        "finished": len(took), "complete": len(took) == starts, "search_seconds": seconds,
        "median_seconds": median(took) if took else None, "wall_seconds": mean(walls) if walls else None,
        "proposals": mean(proposals) if proposals else None,
        "microseconds_a_proposal": 1e6 * sum(took) / sum(proposals) if took else None,
        "found_iteration_seconds": mean(found) if found else None, "data_iteration_seconds": data,
        "data_over_found": data / mean(found) if found else None, "paper_seconds": paper,
        "times_faster_than_paper": paper / seconds if paper and took else None,
    }


def default(model: str, devices: int, machine: str, budget: float) -> dict:
    """The default search, which starts from the strategies that people write."""
    graph, cluster = build(model, devices=devices), load_machine(machine, devices)
    here, wall = process_time(), perf_counter()
    found = search(graph, cluster, budget=Budget(seconds=budget), memory=False, workers=1)
    wall = perf_counter() - wall
    data = found.starts[next(iter(found.starts))]
    near = next((h for h in found.history if h.seconds <= 1.01 * found.seconds), None)
    return {
        "model": model, "devices": devices, "machine": cluster.name, "algorithm": "default", "proposals": found.proposals,
        "search_seconds": process_time() - here, "wall_seconds": wall, "near_seconds": near.elapsed if near else 0.0,
        "found_iteration_seconds": found.seconds, "data_iteration_seconds": data, "data_over_found": data / found.seconds,
    }


@click.command(cls=Several, help=__doc__.split("\n\n")[0])
@click.option("--models", multiple=True, type=one_of(MODELS), default=SIX, help="One or several.")
@click.option("--devices", multiple=True, type=int, default=tuple(PAPER), help="One or several.")
@click.option("--machine", default="k80", show_default=True)
@click.option("--budget", default=60.0, show_default=True, help="Seconds for one cell, all starts together.")
@click.option("--starts", default=10, show_default=True)
@click.option("--follow", type=click.Choice(FOLLOW), default="elementwise", show_default=True, help="Who does not choose.")
@click.option("--default", "rest", default=10.0, show_default=True, help="Seconds of the default search in each cell; 0: none.")
@click.option("--json", "as_json", is_flag=True)
def main(
    models: tuple[str, ...], devices: tuple[int, ...], machine: str, budget: float, starts: int, follow: str, rest: float,
    as_json: bool,
) -> None:
    rows = []
    for model in models:
        for count in devices:
            for algorithm in ("full", "delta"):
                row = cell(model, count, machine, algorithm, starts, budget, follow)
                rows.append(row)
                times, worth = row["times_faster_than_paper"], row["data_over_found"]
                click.echo(
                    f"{model:<14}{count:>4} {algorithm:<6}{row['search_seconds']:>9.3g} s"
                    f"{'' if row['finished'] else ' (at least)'}  {row['finished']}/{starts} starts  "
                    f"{row['microseconds_a_proposal'] or 0:.0f} us a proposal  paper "
                    f"{row['paper_seconds'] or '-'} s{f'  {times:.2g} times as fast' if times else ''}"
                    f"{f', found {worth:.2f} of data parallelism' if worth else ''}",
                    err=as_json,
                )
            if rest:
                rows.append(default(model, count, machine, rest))
                click.echo(
                    f"{model:<14}{count:>4} default search: found {rows[-1]['data_over_found']:.2f} of data parallelism, within "
                    f"1 % of that after {rows[-1]['near_seconds']:.3g} s", err=as_json,
                )
    if as_json:
        click.echo(json.dumps({"benchmark": "table4", "rows": rows}))


if __name__ == "__main__":
    main()
