"""Random classifiers of tokens of which some labels are ignored, with plans for them, for the tests."""

from __future__ import annotations

from math import prod
from random import Random
from typing import Any

import numpy as np
from language_model import random_strategy
from pipelines import fitting

import taskflow as tf
from taskflow.graph import OperatorGraph
from taskflow.mapper import HybridParallel, Strategy, map_graph

HYBRIDS = ("d2", "t2", "c2 mb2", "d2 mb1 zero2", "p2 mb1", "p2 d2 mb1 zero1", "t2 d2 mb1", "p2 mb2 schedule=zb-h1", "t4")


def network(seed: int) -> OperatorGraph:
    """A table, a layer and scores, whose loss takes labels as they come in, without their dimensions or without the first of each
    row (a causal shift), leaves out one of several numbers, and has several kinds of factors."""
    r, graph = Random(seed), OperatorGraph("float64", f"labels {seed}")
    samples, steps, words = r.choice((4, 6, 8)), r.choice((2, 4, 6)), r.choice((5, 8))
    tokens = tf.input(graph, (samples, steps), "int64", name="tokens")
    labels = tf.input(graph, (samples, steps), r.choice(("int64", "int32")), name="labels")
    x = tf.embedding(tokens, words, 6, name="table")
    x = tf.add(x, tf.relu(tf.linear(x, 6, name="layer"), name="relu"), name="add")
    scores = tf.linear(x, words, name="scores")
    form = r.choice(("plain", "plain", "flat", "shifted"))
    if form == "flat":
        scores, labels = tf.reshape(scores, (samples * steps, words)), tf.reshape(labels, (samples * steps,))
    elif form == "shifted":
        scores, labels = tf.narrow(scores, 1, 0, steps - 1), tf.narrow(labels, 1, 1, steps - 1)
    loss = tf.cross_entropy(
        scores, labels, ignore_index=ignored(seed), blocks=r.choice((None, None, 1, 2, words)),
        label_smoothing=r.choice((0.0, 0.0, 0.1)), name="loss",
    )
    graph.minimize(tf.scale(loss, 0.5, name="half") if r.random() < 0.2 else loss)
    return graph


def ignored(seed: int) -> int:
    """The label that a network leaves out: PyTorch's default, the first word (padding), or the last of five."""
    return Random(f"ignored {seed}").choice((-100, -100, 0, 4))


def batch(graph: OperatorGraph, seed: int, step: int) -> dict[str, Any]:
    """A random batch, of whose labels a random share is ignored: none, some, all of some samples, all but one, all."""
    numbers, r = np.random.default_rng((seed, step)), Random(f"{seed} {step}")
    shape, words = graph.node("tokens").space.shape, graph.node("scores").outputs[0].shape[-1]
    labels = numbers.integers(0, words, shape)
    share = r.choice((0.0, 0.3, 0.6, 0.9, 1.0))
    labels[numbers.random(shape) < share] = ignored(seed)
    if r.random() < 0.4:
        labels[: r.randint(1, shape[0] - 1)] = ignored(seed)
    dtype = graph.node("labels").outputs[0].spec.dtype
    return {"tokens": numbers.integers(0, words, shape), "labels": labels.astype(dtype)}


def plan(graph: OperatorGraph, random: Random, number: int) -> Strategy:
    """In turn: any cuts; any micro-batches, stages and schedule; one of the notation's plans."""
    if number % 3 == 0:
        return random_strategy(graph, random.randint(2, 5), random)
    if number % 3 == 1:
        return fitting(graph, random.randint(1, 4), random)
    text = random.choice(HYBRIDS)
    count = prod(int(word[1:]) for word in text.split() if word[0] in "tcpd" and word[1:].isdecimal())
    return map_graph(HybridParallel(text), graph, tf.host(count))


def rank_case(seed: int, ranks: int) -> tuple[OperatorGraph, Strategy]:
    """A network and a plan for so many ranks."""
    graph, random = network(seed), Random(f"ranks {seed}")
    return graph, random_strategy(graph, ranks, random) if seed % 2 else fitting(graph, ranks, random)
