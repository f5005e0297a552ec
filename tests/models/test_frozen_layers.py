"""Imports of modules of which a part is frozen: what is not trained is a parameter without a gradient, as in PyTorch."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import pytest
from language_model import undivided

from taskflow.rules import SGD
from taskflow.runtime.executor import Executor

torch = pytest.importorskip("torch", reason="PyTorch is not installed: make test TORCH=1")
from torch import nn  # noqa: E402

from taskflow.models import huggingface  # noqa: E402
from taskflow.models.pytorch import from_torch, weights_of  # noqa: E402
from taskflow.models.pytorch.repeats import signature  # noqa: E402

pytestmark = pytest.mark.torch
TINY = {
    "model_type": "llama", "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "vocab_size": 50, "max_position_embeddings": 32,
}  # fmt: skip


class Adapted(nn.Module):
    """A dense layer that is not trained, with one of low rank beside it that is."""

    def __init__(self, base: Any, rank: int = 2) -> None:
        super().__init__()
        self.base = base.requires_grad_(False)
        self.a, self.b = nn.Linear(base.in_features, rank, bias=False), nn.Linear(rank, base.out_features, bias=False)

    def forward(self, x: Any) -> Any:
        return self.base(x) + 2.0 * self.b(self.a(x))


class Norm(nn.Module):
    """A normalisation of its own, whose weight is no layer's."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.rand(width) + 1, requires_grad=False)

    def forward(self, x: Any) -> Any:
        return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6) * self.weight


class Block(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm, self.first = Norm(width), Adapted(nn.Linear(width, width))
        self.out = nn.Linear(width, width).requires_grad_(False)

    def forward(self, x: Any) -> Any:
        return x + self.out(torch.tanh(self.first(self.norm(x))))


class Words(nn.Module):
    def __init__(self, width: int = 8) -> None:
        super().__init__()
        self.embed = nn.Embedding(11, width).requires_grad_(False)
        self.layers = nn.ModuleList([Block(width) for _ in range(3)])
        self.head = nn.Linear(width, 11).requires_grad_(False)

    def forward(self, words: Any) -> Any:
        x = self.embed(words)
        for layer in self.layers:
            x = layer(x)
        return self.head(x)


class Pictures(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm = nn.Conv2d(3, 4, 3).requires_grad_(False), nn.BatchNorm2d(4).requires_grad_(False)
        self.second, self.third = nn.Conv2d(4, 6, 3), nn.Conv2d(6, 6, 3).requires_grad_(False)
        self.rows, self.head = nn.LSTM(6, 6, batch_first=True).requires_grad_(False), nn.Linear(6, 3)

    def forward(self, x: Any) -> Any:
        x = self.third(self.second(torch.relu(self.norm(self.first(x))))).mean(2)
        return self.head(self.rows(x.transpose(1, 2))[0].mean(1))


def trained_names(module: nn.Module) -> set[str]:
    return {name for name, parameter in module.named_parameters() if parameter.requires_grad}


def test_a_step_is_pytorch_s() -> None:
    module, words = Words(), torch.randint(0, 11, (6, 5))
    graph = from_torch(module, words)
    assert {p.name for p in graph.parameters if p.trained} == trained_names(module)
    assert graph.parameter_count == sum(p.numel() for p in module.parameters())
    labels = torch.randint(0, 11, (6, 5))
    run = Executor(graph, undivided(graph), SGD(0.5))
    run.set_parameters({name: weights_of(module)[name] for name in weights_of(module)})
    inputs = [node.name for node in graph if node.operator.kind == "input" and node.name != "labels"]
    loss = run.train({inputs[0]: words.numpy(), "labels": labels.numpy()})
    wanted = nn.functional.cross_entropy(module(words).flatten(0, 1), labels.flatten())
    optimizer = torch.optim.SGD([p for p in module.parameters() if p.requires_grad], 0.5)
    wanted.backward()
    optimizer.step()
    assert loss == pytest.approx(wanted.item(), rel=1e-5)
    found = run.weights()
    assert found is not None
    for name, parameter in module.named_parameters():
        np.testing.assert_allclose(found[name], parameter.detach().numpy(), rtol=1e-4, atol=1e-6, err_msg=name)


def test_convolutions_batch_normalisation_and_recurrent_layers() -> None:
    module = Pictures()
    graph = from_torch(module, (4, 3, 12, 12))  # verified: gradients are PyTorch's
    layers = {p.layer.partition(".")[0] for p in graph.parameters if p.trained}
    assert layers == {"second", "head"} and graph.trained_count == sum(p.numel() for p in module.parameters() if p.requires_grad)


def test_layers_of_which_a_part_is_frozen_are_refused() -> None:
    module = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 3))
    module[2].weight.requires_grad_(False)
    with pytest.raises(ValueError, match="weight has requires_grad=False and bias has not; a layer is trained whole or not at all"):
        from_torch(module, (5, 4))


def test_what_code_computes_from_frozen_parameters_is_a_constant_where_parameters_are_not_made_for_that() -> None:
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.table = nn.Parameter(torch.rand(6, 6), requires_grad=False)
            self.last = nn.Linear(6, 3)

        def forward(self, x: Any) -> Any:
            return self.last(x + torch.linalg.matrix_exp(self.table).diagonal())

    graph = from_torch(Net(), (5, 6))
    assert {p.name for p in graph.parameters if p.trained} == {"last.weight", "last.bias"}


def test_blocks_with_adapters_are_alike() -> None:
    """So that the first is recorded, and the others are written down as it was; also if a part knows its own path."""
    module = Words()
    for number, block in enumerate(module.layers):
        block.first.called = {"key": f"layers.{number}.first"}
    first, second = (signature(block, f"layers.{number}") for number, block in enumerate(module.layers[:2]))
    assert first is not None and first == second
    module.layers[1].first.called = {"key": "layers.0.first"}
    assert signature(module.layers[1], "layers.1") != first


def test_adapters_of_peft() -> None:
    pytest.importorskip("peft", reason="peft is not installed: make test TORCH=1")
    pytest.importorskip("transformers", reason="transformers is not installed: make test TORCH=1")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        graph = huggingface.from_config(TINY, batch=4, steps=8, lora=4, verify=True)
        whole = huggingface.from_config(TINY, batch=4, steps=8)
        narrow = huggingface.from_config(TINY, batch=4, steps=8, lora=4, dtype="bfloat16")
    linear = [p for p in whole.parameters if p.layer.endswith("_proj")]
    assert graph.trained_count == narrow.trained_count == sum(4 * sum(p.shape) for p in linear)
    assert graph.parameter_count - graph.trained_count == whole.parameter_count == whole.trained_count
    assert all("lora_" in p.name for p in graph.parameters if p.trained)
    with pytest.raises(ValueError, match="lora must be a rank, an integer of 1 or more, got 0"):
        huggingface.from_config(TINY, batch=4, steps=8, lora=0)
