"""A network whose operators give partial values in every way, and strategies whose readers mostly are where these are made."""

from __future__ import annotations

from math import prod
from random import Random

import numpy as np

import taskflow
from taskflow.graph import Node, OperatorGraph
from taskflow.mapper import OpConfig, Strategy, SyncAlgorithm
from taskflow.operators.operator import Soap
from taskflow.tasks.task import Kind, Task, TaskGraph
from taskflow.tasks.topic import Purpose

BATCH = 6


def network(dtype: str = "float64") -> OperatorGraph:
    """Batch normalisations (of images and of rows), contracted channels and features, an output with two readers."""
    graph = OperatorGraph(dtype, "partial sums")
    images = taskflow.input(graph, (BATCH, 4, 4, 3), name="images")
    labels = taskflow.input(graph, (BATCH,), "int64", name="labels")
    x = taskflow.relu(taskflow.batch_norm(taskflow.conv2d(images, 4, 3, padding=1, name="conv1"), name="bn1"))
    x = taskflow.add(x, taskflow.relu(taskflow.conv2d(x, 4, 1, name="conv2")), name="both")
    x = taskflow.linear(taskflow.flatten(x, 1), 6, name="fc1")
    x = taskflow.linear(taskflow.relu(taskflow.batch_norm(x, name="bn2")), 4, name="fc2")
    graph.minimize(taskflow.cross_entropy(taskflow.linear(taskflow.relu(x), 3, name="fc3"), labels, name="loss"))
    return graph


def feeds(step: int, dtype: str = "float64") -> dict[str, np.ndarray]:
    """A batch, the same for the same step."""
    random = np.random.default_rng(step)
    return {"images": random.normal(size=(BATCH, 4, 4, 3)).astype(dtype), "labels": random.integers(0, 3, BATCH)}


def near_strategy(graph: OperatorGraph, processors: int, random: Random, sums: SyncAlgorithm) -> Strategy:
    """Each operator is cut by samples, by what it contracts, or by anything, mostly over the same few processors."""
    team, stray = random.sample(range(processors), random.randint(2, processors)), random.choice((0.03, 0.2))
    configs = {node.name: near_config(node, processors, team, random, stray) for node in graph}
    return Strategy(processors, configs, {}, "near", sums)


def near_config(node: Node, processors: int, team: list[int], random: Random, stray: float = 0.2) -> OpConfig:
    """``stray``: how often it is something else than one piece for each of the team."""
    kind = random.choice((Soap.SAMPLE, Soap.SAMPLE, Soap.REDUCTION, None))
    wanted = random.choice((1, 2)) if random.random() < 2 * stray else len(team)
    degrees = [1] * len(node.dims)
    if kind is None:
        i = random.randrange(len(degrees)) if degrees else 0
        of = [i] if degrees and node.dims[i].divisible else []
    else:
        of = [i for i, dim in enumerate(node.dims) if dim.soap is kind and dim.divisible][:1]
    for i in of:
        degrees[i] = min(wanted, node.dims[i].size)
    count = prod(degrees)
    if random.random() >= stray:
        places = tuple(team[k % len(team)] for k in range(count))
    else:
        places = tuple(random.randrange(processors) for _ in range(count))
    return OpConfig(tuple(degrees), places)


def summing(tasks: TaskGraph, purpose: Purpose) -> list[Task]:
    """The collectives of a step that are for this."""
    return [task for task in tasks if task.kind is Kind.COLLECTIVE and task.topic.purpose is purpose]


def case(seed: int, processors: int, sums: SyncAlgorithm) -> tuple[OperatorGraph, Strategy]:
    """The network with a strategy of its own for each seed; every third is data parallel, cut by samples over all."""
    random, graph = Random(seed), network(("float64", "float32")[seed % 2])
    if seed % 3:
        return graph, near_strategy(graph, processors, random, sums)
    everyone = list(range(min(processors, BATCH)))
    degrees = {node.name: [len(everyone) if dim.soap is Soap.SAMPLE else 1 for dim in node.dims] for node in graph}
    configs = {name: OpConfig(tuple(of), tuple(everyone[: prod(of)])) for name, of in degrees.items()}
    return graph, Strategy(processors, configs, {}, "samples", sums)


def results(run: taskflow.Executor) -> dict[str, object]:
    """Five steps' losses, and a number that stands for all parameters."""
    losses = [run.train(feeds(step, str(run.graph.dtype))) for step in range(5)]
    parameters = run.parameters() or {}  # on rank 0
    return {"losses": losses, "parameters": sum(float(abs(v).sum()) for v in parameters.values())}
