"""Machines with two kinds of device: what even pieces reach of the sum of the devices' speeds, and what uneven ones do.

Run ``python benchmarks/mixed_machines.py`` (minutes). The speed of a device is the samples a second of the same training with the
batch's equal part, on this device alone; the sum of speeds is what all devices would do if nothing had to be sent.
``--decoder 128``: a decoder instead, also with the best pipeline of the grid.
"""

from __future__ import annotations

import argparse
from dataclasses import replace

from taskflow.graph import OperatorGraph
from taskflow.machine import Cluster, load_machine
from taskflow.mapper import DataParallel, HybridParallel, map_graph
from taskflow.models import build
from taskflow.models.gpt import GPTConfig, gpt
from taskflow.optimizer import MemoryCheck, make_evaluator, search
from taskflow.optimizer.explain import uneven_pieces
from taskflow.optimizer.grid import make_grid
from taskflow.rules import Adam

CASES = (
    ("ResNet-101", 512, "float32"), ("ResNet-101", 2048, "float16"), ("Inception-v3", 512, "float32"),
    ("Inception-v3", 2048, "float16"), ("Transformer", 512, "float16"),
)  # fmt: skip


def pair() -> Cluster:
    """Two devices of 19.5 TFLOP/s and two of a third of that with half of the memory's rate, on a node each."""
    machine = load_machine("a100-v100")
    quick = replace(machine.kinds[0], program=None)
    slow = replace(
        quick, kind="slow", flops_per_second=tuple((name, rate / 3) for name, rate in quick.flops_per_second),
        memory_bytes_per_second=quick.memory_bytes_per_second / 2,
    )
    first = replace(machine.nodes[0], processors=(replace(machine.nodes[0].processors[0], count=2),))
    second = replace(first, name="slow-2", processors=(replace(first.processors[0], device="slow"),))
    return replace(
        machine, name="2 fast, 2 slow", kinds=(quick, slow), nodes=(first, second), layout=((first.name, 1), ("slow-2", 1))
    )


def speeds(machine: Cluster, network: str, batch: int, dtype: str) -> float:
    """Samples a second of all devices together, each with its equal part of the batch by itself."""
    part = batch // len(machine.processors)
    graph, total = build(network, batch=part, dtype=dtype), 0.0
    for (name, _), template in zip(machine.layout, machine.nodes):
        one = replace(machine, layout=((name, 1),), devices=1)
        total += template.count * part / make_evaluator(graph, one).set(map_graph(DataParallel(), graph, one))
    return total


def row(machine: Cluster, network: str, batch: int, dtype: str, budget: str) -> str:
    """One line of the table."""
    found = search(build(network, batch=batch, dtype=dtype), machine, budget=budget, workers=1)
    most = speeds(machine, network, batch, dtype)
    reached = [batch / seconds / most for seconds in (found.starts["data"], found.starts["data by speed"], found.seconds)]
    return (
        f"| {machine.name} | {network}, {batch}, {dtype} | {reached[0]:.2f} | {reached[1]:.2f} | {reached[2]:.2f} | "
        f"{found.starts['data'] / found.seconds:.2f} |"
    )


def decoder(batch: int) -> OperatorGraph:
    """GPT of 1.1 billion parameters, 1,024 words."""
    return gpt(GPTConfig(batch=batch, steps=1024, layers=16, hidden=2304, heads=18, vocabulary=51_200, dropout=0.0), "float16")


def decoders(machine: Cluster, batch: int, budget: str, pipelines: int = 3) -> None:
    """Print what the search finds for a decoder, and the best of the grid's pipelines, with what is said of them."""
    graph, rule, most = decoder(batch), Adam(), 0.0
    part = decoder(batch // len(machine.processors))
    for (name, _), template in zip(machine.layout, machine.nodes):
        one = replace(machine, layout=((name, 1),), devices=1)
        alone = make_evaluator(part, one, rule=rule).set(map_graph(DataParallel(), part, one))
        most += template.count * part.nodes[0].space.shape[0] / alone
    evaluator = make_evaluator(graph, machine, rule=rule)
    check = MemoryCheck(evaluator)
    data = evaluator.set(map_graph(DataParallel(), graph, machine))
    print(f"GPT 1.1B, {batch}: even data parallelism {batch / data / most:.2f} {check(evaluator.strategy)}", flush=True)
    plans = [one for one in make_grid(graph, machine, rule).plans()[0] if one.plan.pipeline > 1]
    best: tuple[float, str] = (float("inf"), "")
    for priced in plans[:pipelines]:
        strategy = map_graph(HybridParallel(priced.plan), graph, machine)
        seconds = evaluator.set(strategy)
        if seconds < best[0] and not check(strategy):
            best = seconds, f"{priced.plan}: {uneven_pieces(evaluator)}"
    print(f"best pipeline {batch / best[0] / most:.2f} {best[0]:.4f} s {best[1]}", flush=True)
    found = search(graph, machine, budget=budget, rule=rule, use=evaluator, workers=1)
    evaluator.set(found.strategy)
    print(f"found {batch / found.seconds / most:.2f} {found.strategy.name}\n{found}\n{uneven_pieces(evaluator)}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--budget", default="30s", help="of each search")
    parser.add_argument("--decoder", type=int, metavar="BATCH", help="only a decoder, with so many samples a step")
    given = parser.parse_args()
    budget = given.budget
    if given.decoder:
        decoders(load_machine("a100-v100"), given.decoder, budget)
        return
    print("| machine | network | even data parallelism | by speed | found | found against even |\n|---|---|---|---|---|---|")
    print(row(pair(), "ResNet-101", 128, "float32", budget), flush=True)
    for case in CASES:
        print(row(load_machine("a100-v100"), *case, budget), flush=True)


if __name__ == "__main__":
    main()
