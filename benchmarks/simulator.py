"""How fast strategies are evaluated: by full simulation (paper, Algorithm 1) and, if asked for, by delta simulation (Algorithm 2),
with the update of the task graph included.

    python benchmarks/simulator.py [--models NMT RNNLM ...] [--devices 8 64 ...] [--algorithms full delta] [--seconds 2]
        [--steps-per-operator 10 1] [--json]

For each network and number of devices, from data parallelism (``start`` data; gradients by a library's all-reduces) and
from a random strategy. A proposal gives one random operator random degrees (powers of two) and a random contiguous range
of devices. ``proposals_per_second`` evaluates every proposal to its end and accepts none. ``decided`` only asks whether it would be
accepted by the rule of Metropolis-Hastings, with the threshold drawn first and passed on as the limit, as searches do, and stays
where it is; ``walk`` goes where that leads, mostly to plans of many more tasks. Rates are per second of processor time;
tasks_per_second counts tasks of the current strategy for each evaluation to its end. With --steps-per-operator
recurrent networks are unrolled otherwise than the paper's ten steps an operator.
"""

from __future__ import annotations

import json
from itertools import product
from math import inf, log, prod
from random import Random
from time import process_time

import click
from several import Several, one_of

from taskflow.graph import Node
from taskflow.machine import load_machine
from taskflow.mapper import DataParallel, OpConfig, Strategy, map_graph
from taskflow.models import MODELS, build
from taskflow.operators.operator import Soap
from taskflow.optimizer.cost import Roofline
from taskflow.optimizer.evaluate import ALGORITHMS, Evaluator, evaluator
from taskflow.rules import SGD

TEMPERATURE = 0.005  # of the Metropolis rule, relative to the current time


def random_config(node: Node, devices: int, random: Random) -> OpConfig:
    """Powers of two as degrees, on a contiguous range of devices."""
    left, degrees = devices, [1] * len(node.dims)
    order = list(range(len(node.dims)))
    random.shuffle(order)
    for i in order:
        dim = node.dims[i]
        if dim.divisible and dim.soap is not Soap.REDUCTION:
            most = min(left, dim.size)
            degrees[i] = random.choice([1 << k for k in range(most.bit_length()) if 1 << k <= most])
            left //= degrees[i]
    first = random.randrange(devices)
    return OpConfig(tuple(degrees), tuple((first + i) % devices for i in range(prod(degrees))))


def every(here: Evaluator, moves: list[dict[str, OpConfig]], seconds: float) -> float:
    """Proposals a second when each is evaluated to the end."""
    start, count = process_time(), 0
    while process_time() - start < seconds:
        here.propose(moves[count % len(moves)])
        count += 1
    return count / (process_time() - start)


def decided(here: Evaluator, moves: list[dict[str, OpConfig]], seconds: float, random: Random) -> float:
    """Proposals a second when each is only to be accepted or not, at one strategy."""
    start, count = process_time(), 0
    while process_time() - start < seconds:
        here.propose(moves[count % len(moves)], here.seconds * (1 - TEMPERATURE * log(1 - random.random())))
        count += 1
    return count / (process_time() - start)


def walk(here: Evaluator, seconds: float, random: Random) -> tuple[float, float]:
    """Proposals a second of a Metropolis walk, and the share accepted."""
    nodes, devices = list(here.graph), here.strategy.processors
    start, count, accepted, spent = process_time(), 0, 0, 0.0
    while spent < seconds:
        node = random.choice(nodes)
        limit = here.seconds * (1 - TEMPERATURE * log(1 - random.random()))
        if here.propose({node.name: random_config(node, devices, random)}, limit) <= limit:
            here.accept()
            accepted += 1
        count += 1
        spent = process_time() - start
    return count / spent, accepted / count


def row(
    model: str, devices: int, start: str, algorithm: str, machine: str, seconds: float, steps: int | None
) -> dict[str, object]:
    graph = build(model, devices=devices, **({} if steps is None else {"steps_per_operator": steps}))
    described = load_machine(machine, devices)
    here = evaluator(graph, described, Roofline(described), SGD(0.1), algorithm=algorithm)
    random = Random(0)
    strategy = map_graph(DataParallel(), graph, here.machine)
    if start == "random":
        strategy = Strategy(devices, {n.name: random_config(n, devices, random) for n in graph}, strategy.syncs, "random")
    here.set(strategy)
    nodes, tasks = list(graph), here.tasks
    moves = []
    for _ in range(50):
        node = random.choice(nodes)
        moves.append({node.name: random_config(node, devices, random)})
    for move in moves:  # make the tables first, as a search's first seconds do
        here.propose(move, inf)
    rate = every(here, moves, seconds)
    decisions = decided(here, moves, seconds, random)
    walk(here, seconds, random)
    walking, accepted = walk(here, seconds, random)
    return {
        "model": model, "devices": devices, "machine": machine, "steps_per_operator": steps, "start": start, "algorithm": algorithm,
        "evaluator": type(here).__name__, "operators": len(nodes), "tasks": tasks,
        "tasks_per_second": rate * tasks, "proposals_per_second": rate,
        "decided_proposals_per_second": decisions,
        "walk_proposals_per_second": walking, "walk_accepted": accepted, "walk_tasks": here.tasks,
    }


@click.command(cls=Several)
@click.option("--models", multiple=True, type=one_of(MODELS), default=["NMT"])
@click.option("--devices", multiple=True, type=int, default=[4, 8, 16, 32, 64])
@click.option("--machine", default="k80", show_default=True, help="Preset whose first devices are used.")
@click.option("--algorithms", multiple=True, type=click.Choice(ALGORITHMS[1:]), default=["full"], help="One or several.")
@click.option("--seconds", default=1.0, show_default=True, help="Processor time of each measurement.")
@click.option("--steps-per-operator", multiple=True, type=click.IntRange(1), help="Of recurrent networks. One or several.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def main(
    models: tuple[str, ...], devices: tuple[int, ...], machine: str, algorithms: tuple[str, ...], seconds: float,
    steps_per_operator: tuple[int, ...], as_json: bool,
) -> None:
    """Print tasks, tasks a second and proposals a second."""
    rows = []
    for model, steps, count, start, algorithm in product(
        models, steps_per_operator or (None,), devices, ("data", "random"), algorithms
    ):
        found = row(model, count, start, algorithm, machine, seconds, steps)
        rows.append(found)
        if not as_json:
            click.echo(
                f"{model + ('' if steps is None else f' by {steps}'):13} {count:4} devices  {start:6} {algorithm:5} "
                f"{found['tasks']:7} tasks  {found['tasks_per_second'] / 1e6:6.2f} M tasks/s  "
                f"{found['proposals_per_second']:8.0f} proposals/s  decided {found['decided_proposals_per_second']:8.0f}/s  walk "
                f"{found['walk_proposals_per_second']:8.0f}/s ({found['walk_accepted']:.0%} accepted)"
            )
    if as_json:
        click.echo(json.dumps({"benchmark": "simulator", "rows": rows}, indent=1))


if __name__ == "__main__":
    main()
