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


class Bert(nn.Module):
    """Hugging Face's own encoder, which says each token's word. Needs transformers."""

    def __init__(self, width: int = 192, depth: int = 3) -> None:
        super().__init__()
        from transformers import BertConfig, BertForMaskedLM

        self.net = BertForMaskedLM(BertConfig(
            vocab_size=1024, hidden_size=width, num_hidden_layers=depth, num_attention_heads=6, intermediate_size=4 * width,
            max_position_embeddings=128, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0,
        ))  # fmt: skip

    def forward(self, tokens: Any) -> Any:
        return self.net(tokens).logits


class InvertedResidual(nn.Module):
    """MobileNetV3's block: wider, a depthwise convolution, squeeze and excitation, narrower."""

    def __init__(self, width: int, hidden: int) -> None:
        super().__init__()
        self.wider = nn.Sequential(nn.Conv2d(width, hidden, 1, bias=False), nn.BatchNorm2d(hidden), nn.Hardswish())
        self.depthwise = nn.Sequential(
            nn.Conv2d(hidden, hidden, 3, padding=1, groups=hidden, bias=False), nn.BatchNorm2d(hidden), nn.Hardswish()
        )
        self.squeeze = nn.Sequential(
            nn.AdaptiveAvgPool2d(1), nn.Conv2d(hidden, hidden // 4, 1), nn.ReLU(), nn.Conv2d(hidden // 4, hidden, 1),
            nn.Hardsigmoid(),
        )
        self.narrower = nn.Sequential(nn.Conv2d(hidden, width, 1, bias=False), nn.BatchNorm2d(width))

    def forward(self, x: Any) -> Any:
        y = self.depthwise(self.wider(x))
        return x + self.narrower(y * self.squeeze(y))


class MobileNet(nn.Module):
    """Two resolutions of inverted residuals."""

    def __init__(self, width: int = 32, depth: int = 3) -> None:
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, width, 3, stride=2, padding=1, bias=False), nn.BatchNorm2d(width), nn.Hardswish())
        self.first = nn.Sequential(*(InvertedResidual(width, 4 * width) for _ in range(depth)))
        self.down = nn.Sequential(nn.Conv2d(width, 2 * width, 3, stride=2, padding=1, bias=False), nn.BatchNorm2d(2 * width))
        self.second = nn.Sequential(*(InvertedResidual(2 * width, 8 * width) for _ in range(depth)))
        self.scores = nn.Linear(2 * width, 100)

    def forward(self, x: Any) -> Any:
        return self.scores(self.second(self.down(self.first(self.stem(x)))).mean((2, 3)))


class Residual(nn.Module):
    """Two convolutions, each behind group normalisation and SiLU."""

    def __init__(self, channels: int, results: int) -> None:
        super().__init__()
        self.first = nn.Sequential(nn.GroupNorm(8, channels), nn.SiLU(), nn.Conv2d(channels, results, 3, padding=1))
        self.second = nn.Sequential(nn.GroupNorm(8, results), nn.SiLU(), nn.Conv2d(results, results, 3, padding=1))
        self.beside = nn.Conv2d(channels, results, 1)

    def forward(self, x: Any) -> Any:
        return self.beside(x) + self.second(self.first(x))


class UNet(nn.Module):
    """Down by two twice and up again, beside what was before."""

    def __init__(self, width: int = 32) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, width, 3, padding=1)
        self.down1, self.down2 = Residual(width, width), Residual(width, 2 * width)
        self.shrink1, self.shrink2 = (nn.Conv2d(n, n, 3, stride=2, padding=1) for n in (width, 2 * width))
        self.middle = Residual(2 * width, 2 * width)
        self.grow1, self.grow2 = (nn.Conv2d(n, n, 3, padding=1) for n in (2 * width, width))
        self.up1, self.up2 = Residual(4 * width, width), Residual(2 * width, width)
        self.scores = nn.Linear(width, 100)

    def forward(self, x: Any) -> Any:
        large = self.down1(self.stem(x))
        small = self.down2(self.shrink1(large))
        y = self.grow1(nn.functional.interpolate(self.middle(self.shrink2(small)), scale_factor=2.0, mode="nearest"))
        y = self.grow2(nn.functional.interpolate(self.up1(torch.cat([y, small], 1)), scale_factor=2.0, mode="nearest"))
        return self.scores(self.up2(torch.cat([y, large], 1)).mean((2, 3)))


class Recommender(nn.Module):
    """A DLRM: a table of categories, products of all pairs of their vectors, and perceptrons."""

    def __init__(self, words: int = 1024, width: int = 64) -> None:
        super().__init__()
        self.table = nn.Embedding(words, width)
        self.below = nn.Sequential(nn.Linear(width, 256), nn.ReLU(), nn.Linear(256, width), nn.ReLU())
        self.above = nn.Sequential(nn.Linear(STEPS * STEPS, 512), nn.ReLU(), nn.Linear(512, 256), nn.ReLU(), nn.Linear(256, 100))

    def forward(self, tokens: Any) -> Any:
        vectors = self.table(tokens)
        vectors = vectors + self.below(vectors)
        return self.above((vectors @ vectors.transpose(1, 2)).flatten(1))


STEPS = 32  # categories of a sample
PATCHES = (8, (SIDE // PATCH) ** 2, 3 * PATCH * PATCH)
IMAGES = (8, 3, SIDE, SIDE)
LABELLED: dict[str, tuple[type[nn.Module], tuple[int, ...]]] = {  # networks with a label a sample, and the shape of their input
    "vit": (VisionTransformer, PATCHES), "mlp": (Perceptron, (512, 256)), "mixer": (Mixer, PATCHES), "convnext": (ConvNeXt, IMAGES),
    "mobilenet": (MobileNet, IMAGES), "unet": (UNet, IMAGES), "dlrm": (Recommender, (256, STEPS)),
}  # fmt: skip
LANGUAGE: dict[str, type[nn.Module]] = {"lstm": Recurrent, "bert": Bert}


def join(networks: Any) -> None:
    """Add these networks to the module of the others."""
    if "vit" in networks.MODULES:
        return
    networks.MODULES |= {name: kind for name, (kind, _) in LABELLED.items()} | LANGUAGE
    examples, batch_of = networks.examples, networks.batch_of

    def examples_here(name: str) -> list[Any]:
        if name not in LABELLED:
            return examples(name)  # type: ignore[no-any-return]
        return [torch.zeros(LABELLED[name][1], dtype=torch.long) if name == "dlrm" else LABELLED[name][1]]

    def batch_here(name: str, generator: Any) -> tuple[list[Any], Any]:
        if name not in LABELLED:
            return batch_of(name, generator)  # type: ignore[no-any-return]
        shape = LABELLED[name][1]
        of_words = name == "dlrm"
        given = torch.randint(1024, shape, generator=generator) if of_words else torch.randn(shape, generator=generator)
        return [given], torch.randint(100, shape[:1], generator=generator)

    networks.examples, networks.batch_of = examples_here, batch_here
