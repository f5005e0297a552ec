"""A mapper of your own: operators are cut by samples, but only so far that every piece has enough to do.

    mpirun -n 4 python examples/mlp.py --mapper enough_work:EnoughWork    # any program takes it by name
    python examples/enough_work.py --machine p100 --devices 16 AlexNet    # what is predicted for a machine you do not have

Small operators stay on few processors, so that less is sent and fewer kernels are started. docs/guide/mappers.md has all
that a mapper can be asked.
"""

from __future__ import annotations

from collections.abc import Sequence

import click

import taskflow
from taskflow.graph import Node, OperatorGraph
from taskflow.machine import Machine
from taskflow.mapper import Mapper, MessageSync, Sync, SyncAlgorithm, UpdatePlacement
from taskflow.models import build
from taskflow.operators.operator import Work
from taskflow.optimizer import make_evaluator

ENOUGH_SECONDS = 20e-6  # that a piece shall keep a processor busy at its peak rate, forward


class EnoughWork(Mapper):
    """Products and convolutions are cut as far as pieces have enough to do; all others as the operator that they belong to."""

    name = "enough-work"

    def prepare(self, graph: OperatorGraph, machine: Machine) -> None:
        enough = ENOUGH_SECONDS * machine.processors[0].flops_per_second
        self._degree: dict[str, int] = {}
        waiting: list[Node] = []  # inputs and what comes before the first product: as the first that has a degree of its own
        for node in graph:
            producers = [graph.producer(tensor).name for tensor in node.inputs]
            known = [self._degree[name] for name in producers if name in self._degree]
            if node.operator.work is not Work.MEMORY:
                flops = node.operator.flops(node.specs, node.space)
                degree = max(1, min(len(machine.processors), int(flops / enough)))
            elif known:
                degree = max(known)
            else:
                waiting.append(node)
                continue
            self._degree[node.name] = degree
            self._degree.update({earlier.name: degree for earlier in waiting})
            waiting.clear()
        self._degree.update({node.name: len(machine.processors) for node in waiting})

    def slice_task(self, node: Node, machine: Machine) -> Sequence[int]:
        degree = self._degree[node.name]
        return [min(degree, dim.size) if dim.name == "n" and dim.divisible else 1 for dim in node.dims]

    def map_task(self, node: Node, piece: int, degrees: Sequence[int], machine: Machine) -> int:
        return piece

    def select_reduction(self, layer: str, nbytes: int, holders: Sequence[int], machine: Machine) -> Sync:
        return (
            MessageSync(SyncAlgorithm.RING, UpdatePlacement.REPLICATED)
            if nbytes > 1 << 20
            else MessageSync(SyncAlgorithm.TREE, UpdatePlacement.REPLICATED)
        )


@click.command(help=__doc__.split("\n\n")[0])
@click.argument("model", default="AlexNet")
@click.option("--machine", default="k80", show_default=True, help="A machine's name or FILE.json.")
@click.option("--devices", type=click.IntRange(1), default=16, show_default=True)
@click.option("--batch", type=click.IntRange(1), default=64, show_default=True, help="Samples a step, of all devices.")
def main(model: str, machine: str, devices: int, batch: int) -> None:
    graph, cluster = build(model, batch=batch), taskflow.load_machine(machine, devices)
    evaluator = make_evaluator(graph, cluster)
    for mapper in (taskflow.choose("data", graph, cluster)[1], EnoughWork()):
        strategy = taskflow.map_graph(mapper, graph, cluster)
        pieces = [len(strategy[node.name].processors) for node in graph]
        milliseconds = evaluator.set(strategy) * 1e3
        click.echo(f"{mapper.name}: {milliseconds:.4g} ms a step, {min(pieces)} to {max(pieces)} pieces an operator")


if __name__ == "__main__":
    main()
