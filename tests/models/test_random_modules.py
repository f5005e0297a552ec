"""Random PyTorch modules train as in PyTorch, whole and under random strategies."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from random import Random
from typing import Any

import numpy as np
import pytest
from fast_and_slow import fast_among
from language_model import random_strategy, undivided

import taskflow
from taskflow.models.pytorch import weights_of
from taskflow.rules import SGD
from taskflow.runtime.executor import Executor
from taskflow.training import load_weights

torch = pytest.importorskip("torch", reason="PyTorch is not installed: make test TORCH=1")
from torch import nn  # noqa: E402
from torch.nn import functional as F  # noqa: E402

pytestmark = pytest.mark.torch
STEPS, CLASSES, MOST_ELEMENTS = 3, 5, 6000
SEEDS = 5  # modules of one test


class Does(nn.Module):  # type: ignore[misc]
    """A function as a layer."""

    def __init__(self, function: Callable[[Any], Any]) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: Any) -> Any:
        return self.function(x)


class Attends(nn.Module):  # type: ignore[misc]
    def __init__(self, features: int, heads: int) -> None:
        super().__init__()
        self.inner = nn.MultiheadAttention(features, heads, batch_first=True)

    def forward(self, x: Any) -> Any:
        return x + self.inner(x, x, x, need_weights=False)[0]


class Recurs(nn.Module):  # type: ignore[misc]
    def __init__(self, features: int, hidden: int, layers: int) -> None:
        super().__init__()
        self.inner = nn.LSTM(features, hidden, layers, batch_first=True)

    def forward(self, x: Any) -> Any:
        return self.inner(x)[0]


class Scales(nn.Module):  # type: ignore[misc]
    def __init__(self, features: int) -> None:
        super().__init__()
        self.factor, self.offset = nn.Parameter(torch.rand(features) + 0.5), nn.Parameter(torch.zeros(features))

    def forward(self, x: Any) -> Any:
        return x * self.factor + self.offset


class Residual(nn.Module):  # type: ignore[misc]
    """A layer that keeps shapes, beside its input."""

    def __init__(self, layer: Any) -> None:
        super().__init__()
        self.layer = layer

    def forward(self, x: Any) -> Any:
        return x - self.layer(x) * 0.5


def heads(features: int, r: Random) -> int:
    return r.choice([h for h in (1, 2, 3) if features % h == 0])


ACTIVATIONS = (
    nn.ReLU(), nn.GELU(), nn.GELU("tanh"), nn.SiLU(), nn.Hardswish(), nn.LeakyReLU(0.2), nn.ReLU6(), nn.Tanh(), nn.Sigmoid(),
    nn.Hardtanh(), nn.Hardsigmoid(),
)
Draw = Callable[[tuple[int, ...], Random], Any]
ANY: dict[str, Draw] = {
    "activation": lambda s, r: r.choice(ACTIVATIONS),
    "cat": lambda s, r: Does(lambda x: torch.cat([x, x.relu()], 1)),
    "slice": lambda s, r: Does(lambda x: x[:, s[1] // 3:]),
    "quotient": lambda s, r: Does(lambda x: (2.0 - x) / 3),
    "mean": lambda s, r: Does(lambda x: x.mean(1, keepdim=True)),
    "scale": lambda s, r: Scales(s[-1]),
}
IMAGES: dict[str, Draw] = {
    "conv": lambda s, r: nn.Conv2d(
        s[1], s[1] * r.choice((1, 2)), r.choice((1, 2, 3, (1, 3))), stride=r.choice((1, 2, (2, 1))),
        padding=r.choice((0, 1, (0, 1))), dilation=r.choice((1, 2)), groups=r.choice((1, s[1])), bias=r.random() < 0.5,
    ),
    "transposed conv": lambda s, r: nn.ConvTranspose2d(
        s[1], 2, r.choice((1, 2, 3)), stride=r.choice((1, 2, 3)), bias=r.random() < 0.5
    ),
    "batch norm": lambda s, r: nn.BatchNorm2d(s[1]),
    "max pool": lambda s, r: nn.MaxPool2d(r.choice((2, 3)), r.choice((None, 1, 2)), r.choice((0, 1))),
    "ceiled pool": lambda s, r: nn.MaxPool2d(2, 2, ceil_mode=True),
    "average pool": lambda s, r: nn.AvgPool2d(
        r.choice((2, 3)), r.choice((None, 1)), r.choice((0, 1)), count_include_pad=r.random() < 0.5
    ),
    "adaptive pool": lambda s, r: nn.AdaptiveAvgPool2d(r.choice((1, 2, (2, 3), 3))),
    "upsample": lambda s, r: nn.Upsample(scale_factor=2),
    "transpose": lambda s, r: Does(lambda x: x.transpose(2, 3).contiguous()),
    "sequence": lambda s, r: Does(lambda x: x.flatten(2)),
    **ANY,
}
SEQUENCES: dict[str, Draw] = {
    "linear": lambda s, r: nn.Linear(s[2], r.choice((2, 3, 4, 6)), bias=r.random() < 0.6),
    "lstm": lambda s, r: Recurs(s[2], r.choice((2, 3, 4)), r.choice((1, 2))),
    "attention": lambda s, r: Attends(s[2], heads(s[2], r)),
    "encoder": lambda s, r: nn.TransformerEncoderLayer(
        s[2], heads(s[2], r), 8, dropout=0.0, activation=r.choice(("relu", "gelu")), batch_first=True, norm_first=r.random() < 0.5
    ),
    "layer norm": lambda s, r: nn.LayerNorm(s[2]),
    "batch norm": lambda s, r: nn.BatchNorm1d(s[1]),
    "self product": lambda s, r: Does(lambda x: F.scaled_dot_product_attention(x, x, x, is_causal=True)),
    "product": lambda s, r: Does(lambda x: torch.bmm(x, x.transpose(1, 2)) / s[2]),
    "softmax": lambda s, r: nn.Softmax(-1),
    "permute": lambda s, r: Does(lambda x: x.permute(0, 2, 1)),
    "chunk": lambda s, r: Does(lambda x: x.chunk(2, 1)[-1]),
    **ANY,
}


def module(seed: int) -> tuple[Any, tuple[int, ...], list[str]]:
    """A network, the shape of its input, and what it is made of: the same for the same seed."""
    r = Random(seed)
    torch.manual_seed(seed)
    n = r.choice((2, 3, 4, 6))
    shape = r.choice(((n, r.choice((1, 2, 4)), r.choice((5, 8)), r.choice((4, 7))), (n, r.choice((3, 4)), r.choice((4, 6)))))
    x, layers, names = torch.zeros(shape), [], []
    for _ in range(r.randint(2, 6)):
        ways = IMAGES if x.dim() == 4 else SEQUENCES
        name = r.choice(list(ways))
        try:
            layer = ways[name](tuple(x.shape), r)
            made = layer(x)
        except (RuntimeError, ValueError):  # a window larger than its image
            continue
        if 0 < made.numel() <= MOST_ELEMENTS:
            if made.shape == x.shape and r.random() < 0.3:
                layer = Residual(layer)
            x = made
            layers.append(layer), names.append(name)
    return nn.Sequential(*layers, nn.Flatten(1), nn.Linear(x[0].numel(), CLASSES)), shape, names


def compare(seed: int) -> None:
    net, shape, names = module(seed)
    x, labels = torch.randn(shape), torch.randint(CLASSES, shape[:1])
    graph = taskflow.from_torch(net, shape, verify=seed % SEEDS == 0)  # what follows compares without its help
    weights = weights_of(net)
    runs = []
    for strategy in (undivided(graph), random_strategy(graph, 4, Random(seed))):
        runs.append(Executor(graph, strategy, SGD(0.05, momentum=0.9)))
        load_weights(runs[-1], weights)
    step, wanted = torch.optim.SGD(net.parameters(), lr=0.05, momentum=0.9), []
    for _ in range(STEPS):
        step.zero_grad()
        loss = F.cross_entropy(net(x), labels)
        loss.backward()
        step.step()
        wanted.append(loss.item())
    (name,) = [node.name for node in graph if node.operator.kind == "input" and node.name != "labels"]
    for run in runs:
        found = [run.train({name: x.numpy(), "labels": labels.numpy()}) for _ in range(STEPS)]
        np.testing.assert_allclose(found, wanted, rtol=2e-3, atol=2e-4, err_msg=f"module {seed}, {names}, {run.strategy.name}")


@pytest.mark.parametrize("first", fast_among(range(0, 60, SEEDS), range(0, 30, SEEDS)))
def test_trains_as_in_pytorch(first: int) -> None:
    for seed in range(first, first + SEEDS):
        compare(seed)


@pytest.mark.slow
@pytest.mark.parametrize("first", range(1000, 3000, 20 * SEEDS))
def test_many_train_as_in_pytorch(first: int) -> None:
    for seed in range(first, first + 20 * SEEDS):
        compare(seed)


def test_every_layer_is_in_some_module() -> None:
    made = Counter(name for seed in range(60) for name in module(seed)[2])
    assert {*IMAGES, *SEQUENCES} == made.keys(), {*IMAGES, *SEQUENCES} - made.keys()
