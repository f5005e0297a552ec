"""A small network in which much is computed of weights alone: positions, a table of distances, a mixed matrix, a penalty."""

from __future__ import annotations

from dataclasses import replace
from random import Random

import numpy as np
from language_model import random_strategy

import taskflow
from taskflow.graph import OperatorGraph
from taskflow.mapper import Strategy
from taskflow.operators.operator import Init

SAMPLES, STEPS, WIDTH = 6, 4, 6
NORMAL = Init("normal", 0.5)


def model(dtype: str = "float64", penalty: bool = True) -> OperatorGraph:
    """The positions are read twice, and by operators that cut them; the matrix is a product of weights and is normalised."""
    graph = OperatorGraph(dtype)
    x = taskflow.input(graph, (SAMPLES, STEPS, WIDTH), name="x")
    numbers = taskflow.constant(graph, np.arange(STEPS).reshape(1, STEPS), name="numbers")
    table = taskflow.embedding(numbers, STEPS, WIDTH, name="table")
    left = taskflow.expand_weight(graph, (WIDTH, 3), (WIDTH, 3), init=NORMAL, name="left")
    right = taskflow.expand_weight(graph, (3, WIDTH), (3, WIDTH), init=NORMAL, name="right")
    mixed = taskflow.tanh(taskflow.einsum("ik,kj->ij", left, right, name="mixed"), name="bounded")
    h = taskflow.add(x, table, name="placed")
    h = taskflow.einsum("nti,ij->ntj", h, mixed, name="product")
    h = taskflow.add(taskflow.relu(h, name="relu"), table, name="again")
    logits = taskflow.linear(taskflow.flatten(h, 1, name="flat"), 5, name="head")
    losses = [taskflow.cross_entropy(logits, taskflow.input(graph, (SAMPLES,), "int64", name="label"), name="loss")]
    if penalty:
        square = taskflow.mul(mixed, mixed, name="square")
        losses.append(taskflow.einsum("ij->", square, name="penalty"))
    graph.minimize(*losses)
    return graph


def feeds(step: int, dtype: str = "float64") -> dict[str, np.ndarray]:
    random = np.random.default_rng(step)
    return {"x": random.normal(size=(SAMPLES, STEPS, WIDTH)).astype(dtype), "label": random.integers(0, 5, SAMPLES)}


def with_copies(graph: OperatorGraph, processors: int, random: Random) -> Strategy:
    """A random strategy, in which some of what is made of weights is computed on several processors."""
    found = random_strategy(graph, processors, random)
    configs = dict(found.configs)
    for node in graph:
        pieces = len(configs[node.name].processors)
        cut = [i for i, degree in enumerate(configs[node.name].degrees) if degree > 1]
        summed = any(node.written_axis(i, t.index) is None for i in cut for t in node.outputs)
        if not node.of_weights or summed or random.random() < 0.2:
            continue
        copies = random.randint(2, processors) if processors > 1 else 1
        each = [random.sample(range(processors), copies) for _ in range(pieces)]
        if random.random() < 0.5:
            each, copies = [list(range(processors))] * pieces, processors
        places = tuple(p for of in each for p in of)
        configs[node.name] = replace(configs[node.name], processors=places, copies=copies)
    return replace(found, configs=configs)
