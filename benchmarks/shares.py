"""Data parallelism whose gradients go by one all-reduce, every device updating all weights (collective/every), against a
reduce-scatter, an update of each device's share, and an all-gather (collective/spread): simulated seconds and planned memory.

    python benchmarks/shares.py p100:4 p100:16 k80:64 h100:8 h100:64
    python benchmarks/shares.py --memory h100:8
"""

from __future__ import annotations

from dataclasses import replace

import click

from taskflow.graph import OperatorGraph
from taskflow.machine import Machine, load_machine
from taskflow.mapper import DataParallel, Strategy, map_graph, parse_sync
from taskflow.models import MODELS, build
from taskflow.optimizer import make_evaluator
from taskflow.optimizer.evaluate import Evaluator
from taskflow.optimizer.memory import memory_use
from taskflow.rules import SGD, Adam

RULES = {"momentum": SGD(0.01, momentum=0.9), "adam": Adam()}
WAYS = ("collective/every", "collective/spread")


def plans(graph: OperatorGraph, machine: Machine) -> list[Strategy]:
    """Data parallelism in both ways."""
    plan = map_graph(DataParallel(), graph, machine)
    return [replace(plan, syncs=dict.fromkeys(plan.syncs, parse_sync(way, "way"))) for way in WAYS]


def peak(evaluator: Evaluator, plan: Strategy) -> int:
    """Bytes of the processor that needs most."""
    evaluator.set(plan)
    return max(use.nbytes for use in memory_use(evaluator.lowered(plan), evaluator.timeline().order))


def ratio(every: float, spread: float) -> str:
    """How much less the second takes."""
    return f"{every / spread:.3f}"


@click.command()
@click.argument("machines", nargs=-1, required=True)
@click.option("--memory", is_flag=True, help="Also the peak memory of a device (of 64 devices this takes minutes a network).")
@click.option("--network", "networks", multiple=True, type=click.Choice(list(MODELS)), help="Only these.")
def main(machines: tuple[str, ...], memory: bool, networks: tuple[str, ...]) -> None:
    """A row of a Markdown table for each network on each of MACHINES (such as p100:16)."""
    for where in machines:
        name, devices = where.split(":")
        machine = load_machine(name, int(devices))
        for network in networks or MODELS:
            graph = build(network, devices=int(devices))
            cells = [f"{network}, {devices} {name}", f"{graph.parameter_count / 1e6:.1f}"]
            for rule in RULES.values():
                evaluator, ways = make_evaluator(graph, machine, rule=rule), plans(graph, machine)
                seconds = [evaluator.set(plan) for plan in ways]
                cells += [*(f"{1e3 * s:.4g}" for s in seconds), ratio(*seconds)]
                if memory:
                    cells += [f"{peak(evaluator, plan) / 1e9:.3g}" for plan in ways]
            print("| " + " | ".join(cells) + " |", flush=True)


if __name__ == "__main__":
    main()
