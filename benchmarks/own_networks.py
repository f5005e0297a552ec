"""Networks of benchmarks/export_steps.py beside those of tests/export/networks.py: a vision Transformer and a perceptron, and those
that the probe was not made with: an MLP-Mixer, a ConvNeXt and a language model of LSTMs."""

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


class MixerBlock(nn.Module):
    """A perceptron over the patches, and one over the channels."""

    def __init__(self, patches: int, width: int) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.across = nn.Sequential(nn.Linear(patches, 2 * patches), nn.GELU(), nn.Linear(2 * patches, patches))
        self.within = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x: Any) -> Any:
        x = x + self.across(self.norm1(x).transpose(1, 2)).transpose(1, 2)
        return x + self.within(self.norm2(x))


class Mixer(nn.Module):
    """MLP-Mixer of patches that are given as vectors."""

    def __init__(self, width: int = 256, depth: int = 3) -> None:
        super().__init__()
        self.patches = nn.Linear(3 * PATCH * PATCH, width)
        self.blocks = nn.Sequential(*(MixerBlock((SIDE // PATCH) ** 2, width) for _ in range(depth)))
        self.norm, self.scores = nn.LayerNorm(width), nn.Linear(width, 100)

    def forward(self, x: Any) -> Any:
        return self.scores(self.norm(self.blocks(self.patches(x))).mean(1))


class ConvNeXtBlock(nn.Module):
    """A depthwise convolution, and a perceptron over the channels."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.depthwise, self.norm = nn.Conv2d(width, width, 7, padding=3, groups=width), nn.LayerNorm(width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: Any) -> Any:
        y = self.norm(self.depthwise(x).permute(0, 2, 3, 1))
        return x + self.down(nn.functional.gelu(self.up(y))).permute(0, 3, 1, 2)


class ConvNeXt(nn.Module):
    """One resolution."""

    def __init__(self, width: int = 96, depth: int = 4) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, width, 2, stride=2)
        self.blocks = nn.Sequential(*(ConvNeXtBlock(width) for _ in range(depth)))
        self.norm, self.scores = nn.LayerNorm(width), nn.Linear(width, 100)

    def forward(self, x: Any) -> Any:
        return self.scores(self.norm(self.blocks(self.stem(x)).mean((2, 3))))


class Recurrent(nn.Module):
    """A language model of two LSTM layers."""

    def __init__(self, words: int = 1024, width: int = 256) -> None:
        super().__init__()
        self.table, self.lstm = nn.Embedding(words, width), nn.LSTM(width, width, 2, batch_first=True)
        self.scores = nn.Linear(width, words)

    def forward(self, tokens: Any) -> Any:
        return self.scores(self.lstm(self.table(tokens))[0])


def join(networks: Any) -> None:
    """Add these networks to the module of the others."""
    if "vit" in networks.MODULES:
        return
    networks.MODULES |= {"vit": VisionTransformer, "mlp": Perceptron, "mixer": Mixer, "convnext": ConvNeXt, "lstm": Recurrent}
    patches = (networks.BATCH, (SIDE // PATCH) ** 2, 3 * PATCH * PATCH)
    shapes = {"vit": patches, "mlp": (512, 256), "mixer": patches, "convnext": (networks.BATCH, 3, SIDE, SIDE)}
    examples, batch_of = networks.examples, networks.batch_of

    def examples_here(name: str) -> list[Any]:
        return [shapes[name]] if name in shapes else examples(name)

    def batch_here(name: str, generator: Any) -> tuple[list[Any], Any]:
        if name not in shapes:
            return batch_of(name, generator)  # type: ignore[no-any-return]
        labels = torch.randint(100, shapes[name][:1], generator=generator)
        return [torch.randn(shapes[name], generator=generator)], labels

    networks.examples, networks.batch_of = examples_here, batch_here
