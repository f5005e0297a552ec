"""A small vision Transformer and a perceptron for benchmarks/export_steps.py, beside the networks of tests/export/networks.py."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

WIDTH, DEPTH, HEADS, PATCH, SIDE = 192, 3, 6, 4, 32


class VisionBlock(nn.Module):
    """Attention over all patches, and a perceptron."""

    def __init__(self) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.q, self.k, self.v, self.out = (nn.Linear(WIDTH, WIDTH) for _ in range(4))
        self.up, self.down = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(3 * WIDTH, WIDTH)

    def forward(self, x: Any) -> Any:
        n, s, w = x.shape
        y = self.norm1(x)
        q, k, v = (part(y).view(n, s, HEADS, w // HEADS).transpose(1, 2) for part in (self.q, self.k, self.v))
        y = nn.functional.scaled_dot_product_attention(q, k, v)
        x = x + self.out(y.transpose(1, 2).reshape(n, s, w))
        return x + self.down(nn.functional.gelu(self.up(self.norm2(x))))


class VisionTransformer(nn.Module):
    """Of patches that are given as vectors; the mean of their results has the scores."""

    def __init__(self) -> None:
        super().__init__()
        self.patches = nn.Linear(3 * PATCH * PATCH, WIDTH)
        self.blocks = nn.Sequential(*(VisionBlock() for _ in range(DEPTH)))
        self.norm, self.scores = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 100)

    def forward(self, x: Any) -> Any:
        return self.scores(self.norm(self.blocks(self.patches(x))).mean(1))


class Perceptron(nn.Module):
    """Four wide layers."""

    def __init__(self, width: int = 768) -> None:
        super().__init__()
        sizes = (256, width, width, width, 100)
        self.layers = nn.ModuleList(nn.Linear(a, b) for a, b in zip(sizes, sizes[1:]))

    def forward(self, x: Any) -> Any:
        for layer in self.layers[:-1]:
            x = torch.relu(layer(x))
        return self.layers[-1](x)


def join(networks: Any) -> None:
    """Add these networks to the module of the others."""
    if "vit" in networks.MODULES:
        return
    networks.MODULES |= {"vit": VisionTransformer, "mlp": Perceptron}
    shapes = {"vit": (networks.BATCH, (SIDE // PATCH) ** 2, 3 * PATCH * PATCH), "mlp": (512, 256)}
    examples, batch_of = networks.examples, networks.batch_of

    def examples_here(name: str) -> list[Any]:
        return [shapes[name]] if name in shapes else examples(name)

    def batch_here(name: str, generator: Any) -> tuple[list[Any], Any]:
        if name not in shapes:
            return batch_of(name, generator)  # type: ignore[no-any-return]
        labels = torch.randint(100, shapes[name][:1], generator=generator)
        return [torch.randn(shapes[name], generator=generator)], labels

    networks.examples, networks.batch_of = examples_here, batch_here
