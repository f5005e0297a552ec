"""The language model's losses and parameters against a PyTorch implementation from the same initial weights."""

from __future__ import annotations

from random import Random

import numpy as np
import pytest
from language_model import feeds, random_strategy, undivided

from taskflow.models.rnnlm import RNNLMConfig, rnnlm
from taskflow.rules import SGD, Adam
from taskflow.runtime.executor import Executor

torch = pytest.importorskip("torch", reason="PyTorch is not installed: make test TORCH=1")
pytestmark = pytest.mark.torch

CONFIG = RNNLMConfig(batch=6, steps=8, vocabulary=13, hidden=10, layers=2, steps_per_operator=4)


class Torch(torch.nn.Module):
    """Zaremba's model with torch's own layers."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = torch.nn.Embedding(CONFIG.vocabulary, CONFIG.hidden)
        self.lstm = torch.nn.LSTM(CONFIG.hidden, CONFIG.hidden, CONFIG.layers, batch_first=True)
        self.softmax = torch.nn.Linear(CONFIG.hidden, CONFIG.vocabulary)

    def forward(self, tokens, state):
        y, state = self.lstm(self.embedding(tokens), state)
        return self.softmax(y), state

    def load(self, ours: dict[str, np.ndarray]) -> None:
        """Our parameters under torch's names; an LSTM's gates are one dimension there."""
        named = {}
        for name, value in ours.items():
            layer, kind = name.rsplit(".", 1)
            layer = layer.split(".")[0]
            if layer.startswith("lstm"):
                named[f"lstm.{kind}_l{layer[4:]}"] = value.reshape(-1, *value.shape[2:])
            else:
                named[f"{layer}.{kind}"] = value
        self.load_state_dict({k: torch.from_numpy(v.copy()) for k, v in named.items()})


@pytest.mark.parametrize("dtype,tolerance", [("float64", 1e-10), ("float32", 1e-4)])
@pytest.mark.parametrize("rule", [SGD(0.5, momentum=0.9), Adam(0.01)], ids=["sgd", "adam"])
@pytest.mark.parametrize("seed", [None, 1, 2])
def test_twenty_steps(dtype, tolerance, rule, seed):
    graph = rnnlm(CONFIG, dtype)
    strategy = undivided(graph) if seed is None else random_strategy(graph, 4, Random(seed))
    run = Executor(graph, strategy, rule, seed=7, clip_norm=0.5)
    net = Torch().to(getattr(torch, dtype))
    net.load(run.parameters())
    if isinstance(rule, SGD):
        update = torch.optim.SGD(net.parameters(), lr=rule.lr, momentum=rule.momentum)
    else:
        update = torch.optim.Adam(net.parameters(), lr=rule.lr)
    state = None
    for step in range(20):
        batch = feeds(step, CONFIG)
        logits, state = net(torch.from_numpy(batch["tokens"]), state)
        state = tuple(s.detach() for s in state)
        loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), torch.from_numpy(batch["targets"]).flatten())
        update.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(net.parameters(), 0.5)
        update.step()
        assert run.train(batch) == pytest.approx(loss.item(), rel=tolerance)
