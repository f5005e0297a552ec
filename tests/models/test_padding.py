"""Padding changes nothing: not how long the rows are, and not against PyTorch on each sentence alone, without any."""

from __future__ import annotations

from dataclasses import replace
from random import Random
from typing import Any

import numpy as np
import pytest
from language_model import random_strategy, undivided

from taskflow.models import find
from taskflow.rules import SGD
from taskflow.runtime.executor import Executor

NAMES = ["NMT", "Transformer"]
LENGTHS = ((1, 3), (5, 1), (2, 2), (4, 5))  # of source and target


def network(name: str, steps: int) -> tuple[Any, Any]:
    model = find(name)[1]
    config = replace(model.small, batch=len(LENGTHS), steps=steps, dropout=0.0, padding=0)
    return model.builder, config


def pairs(seed: int) -> list[tuple[list[int], list[int], list[int]]]:
    """Sentences as source, target and labels; none uses word 0."""
    random = Random(seed)
    draw = lambda count: [random.randint(1, 16) for _ in range(count)]  # noqa: E731
    return [(draw(a), draw(b), draw(b)) for a, b in LENGTHS]


def feeds(seed: int, steps: int) -> dict[str, np.ndarray]:
    result = {}
    for k, (name, fill) in enumerate((("source", 0), ("target", 0), ("labels", -100))):
        result[name] = np.array([pair[k] + [fill] * (steps - len(pair[k])) for pair in pairs(seed)])
    return result


@pytest.mark.parametrize("name", NAMES)
def test_longer_rows_train_the_same(name: str) -> None:
    results = []
    for steps, seed in ((5, 0), (8, 0), (9, 1)):
        build, config = network(name, steps)
        graph = build(config, "float64")
        run = Executor(graph, random_strategy(graph, 3, Random(seed)) if seed else undivided(graph), SGD(0.3), seed=2)
        losses = [run.train(feeds(step, steps)) for step in range(4)]
        results.append((losses, run.parameters()))
    (losses, weights), *others = results
    assert len(set(losses)) == 4
    for more, theirs in others:
        np.testing.assert_allclose(more, losses, rtol=1e-11)
        for key, value in weights.items():
            np.testing.assert_allclose(theirs[key], value, rtol=1e-8, atol=1e-11, err_msg=key)


@pytest.mark.parametrize("name", NAMES)
def test_without_padding_the_graph_is_as_it_was(name: str) -> None:
    build, config = network(name, 5)
    kinds = {node.operator.kind for node in build(replace(config, padding=None))}
    assert not kinds & {"mask_padding", "per_label"}
    assert {"mask_padding", "per_label"} <= {node.operator.kind for node in build(config)}


@pytest.mark.torch
@pytest.mark.parametrize("name", NAMES)
def test_padded_batches_train_as_torch_does_sentence_by_sentence(name: str) -> None:
    torch = pytest.importorskip("torch", reason="PyTorch is not installed: make test TORCH=1")
    from test_models_against_torch import NETWORKS, torch_networks

    build, config = network(name, 7)
    graph = build(config, "float64")
    run = Executor(graph, undivided(graph), SGD(0.1, momentum=0.9), seed=4)
    net = NETWORKS[name](config).double()
    net.load_state_dict({k: torch.from_numpy(v.copy()) for k, v in torch_networks.named(run.parameters())}, strict=False)
    update = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)
    for step in range(3):
        total = sum(
            len(labels) * net(*(torch.tensor([words]) for words in (source, target, labels)))
            for source, target, labels in pairs(step)
        )
        loss = total / sum(length for _, length in LENGTHS)
        update.zero_grad()
        loss.backward()
        update.step()
        assert run.train(feeds(step, 7)) == pytest.approx(loss.item(), rel=1e-9)
    ours = dict(torch_networks.named(run.parameters()))
    for key, value in net.named_parameters():
        np.testing.assert_allclose(ours[key], value.detach().numpy(), rtol=1e-7, atol=1e-9, err_msg=key)
