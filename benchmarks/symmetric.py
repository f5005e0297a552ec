"""Plans that are symmetric: how fast plans of a few processors are evaluated for all, and how well that ranks the whole plans.

    python benchmarks/symmetric.py [--models NMT RNNLM ...] [--devices 16 64 ...] [--machine k80] [--sizes 4 8 ...] [--plans 24]
        [--seconds 1] [--json]

A repetition (`taskflow.optimizer.evaluate.Repetition`) is a plan of the first processors that all others carry out too, each
group on its own share of the samples. Proposals are those of benchmarks/simulator.py: one random operator gets random degrees
and a random range of devices. ``proposals_per_second``, ``decided`` and ``walk`` are as there, of processor time, ``whole_decided``
is the rate at the same symmetric plan when all its devices are simulated. ``plans`` symmetric plans, in which some of the
operators were changed from data parallelism, are evaluated in both ways: ``tau`` is Kendall's, ``mean_error`` and
``largest_error`` are relative to the whole plan's seconds.
"""

from __future__ import annotations

import json
from itertools import combinations, product
from math import inf
from random import Random

import click
from several import Several, one_of
from simulator import decided, every, random_config, walk

from taskflow.graph import OperatorGraph
from taskflow.machine import load_machine
from taskflow.mapper import DataParallel, Strategy, map_graph
from taskflow.models import MODELS, build
from taskflow.optimizer import make_evaluator
from taskflow.optimizer.evaluate import Repetition, repetition
from taskflow.optimizer.evaluate.compiled import CompiledEvaluator
from taskflow.rules import SGD

NETWORKS = ("AlexNet", "Inception-v3", "ResNet-101", "RNNTC", "RNNLM", "NMT")


def plan(graph: OperatorGraph, of: Repetition, random: Random) -> Strategy:
    """Data parallelism within a repetition, with some operators changed: one, two, four and so on, up to all."""
    start = map_graph(DataParallel(), graph, of.machine)
    names = [node.name for node in graph]
    count = min(len(names), 1 << random.randrange(len(names).bit_length() + 1))
    configs = dict(start.configs)
    for name in random.sample(names, count):
        configs[name] = random_config(graph.node(name), of.size, random)
    return Strategy(of.size, configs, start.syncs, "symmetric", start.sums)


def kendall(pairs: list[tuple[float, float]]) -> float:
    """Kendall's tau of pairs of seconds: 1 if both always rank two plans alike."""
    signs = [(a - c) * (b - d) for (a, b), (c, d) in combinations(pairs, 2)]
    return sum((sign > 0) - (sign < 0) for sign in signs) / len(signs) if signs else 1.0


def row(model: str, devices: int, machine: str, size: int, plans: int, seconds: float) -> dict[str, object] | None:
    """One network on one machine; None if no repetition of this size stands for the whole."""
    graph, described = build(model, devices=devices), load_machine(machine, devices)
    of = repetition(graph, described, size)
    if of is None:
        return None
    whole = make_evaluator(graph, described, rule=SGD(0.1))
    small = CompiledEvaluator(graph, of.machine, whole.costs, whole.rule, None, "full", of)
    random, found = Random(f"{model} {devices} {size}"), []
    for _ in range(plans):
        chosen = plan(graph, of, random)
        found.append((small.set(chosen), whole.set(of.expand(chosen))))
    errors = [abs(a - b) / b for a, b in found]
    small.set(map_graph(DataParallel(), graph, of.machine))
    tasks, nodes = small.tasks, list(graph)
    moves = [{node.name: random_config(node, size, random)} for node in random.choices(nodes, k=50)]
    for move in moves:  # make the tables first, as a search's first seconds do
        small.propose(move, inf)
    rates = every(small, moves, seconds), decided(small, moves, seconds, random)
    walk(small, seconds, random)
    walking, accepted = walk(small, seconds, random)
    whole.set(of.expand(map_graph(DataParallel(), graph, of.machine)))
    larger = [{name: of.expanded(graph.node(name), config) for name, config in move.items()} for move in moves[:12]]
    for move in larger:
        whole.propose(move, inf)
    return {
        "model": model, "devices": devices, "machine": machine, "size": size, "tasks": tasks, "whole_tasks": whole.tasks,
        "proposals_per_second": rates[0], "decided": rates[1], "walk": walking, "walk_accepted": accepted,
        "whole_decided": decided(whole, larger, seconds, random), "plans": plans, "tau": kendall(found),
        "mean_error": sum(errors) / len(errors), "largest_error": max(errors),
    }


@click.command(cls=Several)
@click.option("--models", multiple=True, type=one_of(MODELS), default=NETWORKS)
@click.option("--devices", multiple=True, type=int, default=[16, 64])
@click.option("--machine", default="k80", show_default=True, help="Preset whose first devices are used.")
@click.option("--sizes", multiple=True, type=int, default=[4, 8, 16], help="Processors of a repetition. One or several.")
@click.option("--plans", default=24, show_default=True, help="Symmetric plans that are evaluated in both ways.")
@click.option("--seconds", default=1.0, show_default=True, help="Processor time of each measurement.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def main(
    models: tuple[str, ...], devices: tuple[int, ...], machine: str, sizes: tuple[int, ...], plans: int, seconds: float,
    as_json: bool,
) -> None:
    """Print proposals a second, and how well repetitions rank whole plans."""
    rows = []
    for model, count, size in product(models, devices, sizes):
        found = row(model, count, machine, size, plans, seconds) if size < count else None
        if found is None:
            continue
        rows.append(found)
        if not as_json:
            click.echo(
                f"{model:13} {count:5} devices  {size:3} for all  {found['tasks']:6} of {found['whole_tasks']:8} tasks  "
                f"{found['proposals_per_second']:7.0f} proposals/s  decided {found['decided']:7.0f}/s (whole "
                f"{found['whole_decided']:6.0f}/s)  walk {found['walk']:7.0f}/s  tau {found['tau']:.3f}  error "
                f"{found['mean_error']:.2%}, at most {found['largest_error']:.2%}"
            )
    if as_json:
        click.echo(json.dumps({"benchmark": "symmetric", "rows": rows}, indent=1))


if __name__ == "__main__":
    main()
