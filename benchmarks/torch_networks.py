"""The networks of taskflow.models in PyTorch: the same layers under the same parameter names, for tests and benchmarks.

Each takes the config of ours, and the names of our inputs as arguments; ``forward`` returns the loss. An LSTM's layers and
gates are numbered otherwise in PyTorch: `named` translates.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F


class AlexNet(nn.Module):
    """Krizhevsky's one-tower network with torchvision's layer names."""

    def __init__(self, c: Any) -> None:
        super().__init__()
        one, two, three, four, five = c.channels
        relu, pool = nn.ReLU(), nn.MaxPool2d(3, 2)
        self.features = nn.Sequential(
            nn.Conv2d(3, one, 11, 4, 2), relu, pool, nn.Conv2d(one, two, 5, padding=2), relu, pool,
            nn.Conv2d(two, three, 3, padding=1), relu, nn.Conv2d(three, four, 3, padding=1), relu,
            nn.Conv2d(four, five, 3, padding=1), relu, pool,
        )
        self.pool = nn.AdaptiveAvgPool2d(c.pooled)
        drop = nn.Dropout(c.dropout)
        self.classifier = nn.Sequential(
            drop, nn.Linear(five * c.pooled**2, c.hidden), relu, drop, nn.Linear(c.hidden, c.hidden), relu,
            nn.Linear(c.hidden, c.classes),
        )

    def forward(self, images, labels):
        return F.cross_entropy(self.classifier(self.pool(self.features(images)).flatten(1)), labels)


# ---- ResNet ----------------------------------------------------------------------------------------------------------


class Bottleneck(nn.Module):
    """1 x 1, 3 x 3 and 1 x 1 convolutions beside the identity or a projection."""

    def __init__(self, channels: int, width: int, stride: int) -> None:
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(channels, width, 1, bias=False), nn.BatchNorm2d(width)
        self.conv2, self.bn2 = nn.Conv2d(width, width, 3, stride, 1, bias=False), nn.BatchNorm2d(width)
        self.conv3, self.bn3 = nn.Conv2d(width, 4 * width, 1, bias=False), nn.BatchNorm2d(4 * width)
        self.downsample = nn.Identity()
        if stride > 1 or channels != 4 * width:
            self.downsample = nn.Sequential(
                nn.Conv2d(channels, 4 * width, 1, stride, bias=False), nn.BatchNorm2d(4 * width)
            )
        self.relu = nn.ReLU(inplace=True)  # as torchvision has it

    def forward(self, x):
        y = self.relu(self.bn2(self.conv2(self.relu(self.bn1(self.conv1(x))))))
        return self.relu(self.bn3(self.conv3(y)) + self.downsample(x))


class ResNet(nn.Module):
    """torchvision's, with as many blocks as the config says."""

    def __init__(self, c: Any) -> None:
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(3, c.width, 7, 2, 3, bias=False), nn.BatchNorm2d(c.width)
        self.relu = nn.ReLU(inplace=True)
        channels = c.width
        for stage, count in enumerate(c.blocks):
            width, blocks = c.width << stage, []
            for block in range(count):
                blocks.append(Bottleneck(channels, width, 2 if stage and not block else 1))
                channels = 4 * width
            setattr(self, f"layer{stage + 1}", nn.Sequential(*blocks))
        self.fc = nn.Linear(channels, c.classes)

    def forward(self, images, labels):
        x = F.max_pool2d(self.relu(self.bn1(self.conv1(images))), 3, 2, 1)
        x = self.layer4(self.layer3(self.layer2(self.layer1(x))))
        return F.cross_entropy(self.fc(x.mean((2, 3))), labels)


# ---- Inception-v3 ----------------------------------------------------------------------------------------------------


class ConvBN(nn.Module):
    """Convolution without bias, batch normalisation, relu."""

    def __init__(self, channels: int, width: int, kernel: Any, stride: int = 1, padding: Any = 0) -> None:
        super().__init__()
        self.conv = nn.Conv2d(channels, width, kernel, stride, padding, bias=False)
        self.bn = nn.BatchNorm2d(width, eps=1e-3)

    def forward(self, x):
        return F.relu(self.bn(self.conv(x)), inplace=True)


class Branches(nn.Module):
    """Chains of named layers side by side, joined along the channels. A chain is a list of (name, width, kernel, stride,
    padding); the layers of a last list stand side by side at the chain's end. ``pool``: channels of a 1 x 1 convolution
    after average pooling, 0 for max pooling to half the size."""

    def __init__(self, channels: int, divide: int, chains: list[list[Any]], pool: int) -> None:
        super().__init__()
        self.chains: list[list[Any]] = []
        self.width = 0
        for chain in chains:
            at, names = channels, []
            for step in chain:
                several = step if isinstance(step, list) else [step]
                for name, width, *slide in several:
                    setattr(self, name, ConvBN(at, max(1, width // divide), *slide))
                names.append([name for name, *_ in several])
                outs = [max(1, width // divide) for _, width, *_ in several]
                at = sum(outs)
            self.chains.append(names)
            self.width += at
        self.pooled = pool > 0
        if self.pooled:
            self.branch_pool = ConvBN(channels, max(1, pool // divide), 1)
        self.width += max(1, pool // divide) if self.pooled else channels

    def forward(self, x):
        ends = []
        for names in self.chains:
            y = x
            for several in names:
                sides = [getattr(self, name)(y) for name in several]
                y = sides[0] if len(sides) == 1 else torch.cat(sides, 1)
            ends.append(y)
        ends.append(self.branch_pool(F.avg_pool2d(x, 3, 1, 1)) if self.pooled else F.max_pool2d(x, 3, 2))
        return torch.cat(ends, 1)


def _a(pool: int) -> tuple[list[Any], int]:
    return [
        [("branch1x1", 64, 1)], [("branch5x5_1", 48, 1), ("branch5x5_2", 64, 5, 1, 2)],
        [("branch3x3dbl_1", 64, 1), ("branch3x3dbl_2", 96, 3, 1, 1), ("branch3x3dbl_3", 96, 3, 1, 1)],
    ], pool


def _c(inner: int) -> tuple[list[Any], int]:
    row, column = ((1, 7), 1, (0, 3)), ((7, 1), 1, (3, 0))
    return [
        [("branch1x1", 192, 1)],
        [("branch7x7_1", inner, 1), ("branch7x7_2", inner, *row), ("branch7x7_3", 192, *column)],
        [
            ("branch7x7dbl_1", inner, 1), ("branch7x7dbl_2", inner, *column), ("branch7x7dbl_3", inner, *row),
            ("branch7x7dbl_4", inner, *column), ("branch7x7dbl_5", 192, *row),
        ],
    ], 192


_B = [
    [("branch3x3", 384, 3, 2)],
    [("branch3x3dbl_1", 64, 1), ("branch3x3dbl_2", 96, 3, 1, 1), ("branch3x3dbl_3", 96, 3, 2)],
], 0
_D = [
    [("branch3x3_1", 192, 1), ("branch3x3_2", 320, 3, 2)],
    [
        ("branch7x7x3_1", 192, 1), ("branch7x7x3_2", 192, (1, 7), 1, (0, 3)), ("branch7x7x3_3", 192, (7, 1), 1, (3, 0)),
        ("branch7x7x3_4", 192, 3, 2),
    ],
], 0
_E = [
    [("branch1x1", 320, 1)],
    [("branch3x3_1", 384, 1), [("branch3x3_2a", 384, (1, 3), 1, (0, 1)), ("branch3x3_2b", 384, (3, 1), 1, (1, 0))]],
    [
        ("branch3x3dbl_1", 448, 1), ("branch3x3dbl_2", 384, 3, 1, 1),
        [("branch3x3dbl_3a", 384, (1, 3), 1, (0, 1)), ("branch3x3dbl_3b", 384, (3, 1), 1, (1, 0))],
    ],
], 192
_MODULES = {
    "Mixed_5b": _a(32), "Mixed_5c": _a(64), "Mixed_5d": _a(64), "Mixed_6a": _B, "Mixed_6b": _c(128), "Mixed_6c": _c(160),
    "Mixed_6d": _c(160), "Mixed_6e": _c(192), "Mixed_7a": _D, "Mixed_7b": _E, "Mixed_7c": _E,
}


class Inception(nn.Module):
    """torchvision's without the auxiliary head."""

    def __init__(self, c: Any) -> None:
        super().__init__()
        self.smoothing = c.label_smoothing
        widths = [max(1, width // c.divide) for width in (32, 32, 64, 80, 192)]
        self.Conv2d_1a_3x3 = ConvBN(3, widths[0], 3, 2)
        self.Conv2d_2a_3x3 = ConvBN(widths[0], widths[1], 3)
        self.Conv2d_2b_3x3 = ConvBN(widths[1], widths[2], 3, 1, 1)
        self.Conv2d_3b_1x1 = ConvBN(widths[2], widths[3], 1)
        self.Conv2d_4a_3x3 = ConvBN(widths[3], widths[4], 3)
        channels = widths[4]
        for name, (chains, pool) in _MODULES.items():
            module = Branches(channels, c.divide, chains, pool)
            setattr(self, name, module)
            channels = module.width
        self.dropout = nn.Dropout(c.dropout)
        self.fc = nn.Linear(channels, c.classes)

    def forward(self, images, labels):
        x = F.max_pool2d(self.Conv2d_2b_3x3(self.Conv2d_2a_3x3(self.Conv2d_1a_3x3(images))), 3, 2)
        x = F.max_pool2d(self.Conv2d_4a_3x3(self.Conv2d_3b_1x1(x)), 3, 2)
        for name in _MODULES:
            x = getattr(self, name)(x)
        x = self.dropout(F.adaptive_avg_pool2d(x, 1).flatten(1))
        return F.cross_entropy(self.fc(x), labels, label_smoothing=self.smoothing)


# ---- recurrent networks ----------------------------------------------------------------------------------------------


class RNNTC(nn.Module):
    """The last layer's last state is classified."""

    def __init__(self, c: Any) -> None:
        super().__init__()
        self.embedding = nn.Embedding(c.vocabulary, c.hidden)
        self.lstm = nn.LSTM(c.hidden, c.hidden, c.layers, batch_first=True)
        self.softmax = nn.Linear(c.hidden, c.classes)

    def forward(self, tokens, labels):
        y, _ = self.lstm(self.embedding(tokens))
        return F.cross_entropy(self.softmax(y[:, -1]), labels)


class RNNLM(nn.Module):
    """Zaremba's language model; its state goes from batch to batch."""

    def __init__(self, c: Any) -> None:
        super().__init__()
        self.embedding = nn.Embedding(c.vocabulary, c.hidden)
        self.lstm = nn.LSTM(c.hidden, c.hidden, c.layers, batch_first=True)
        self.softmax = nn.Linear(c.hidden, c.vocabulary)
        self.register_buffer("h", torch.zeros(c.layers, c.batch, c.hidden), persistent=False)
        self.register_buffer("c", torch.zeros(c.layers, c.batch, c.hidden), persistent=False)

    def forward(self, tokens, targets):
        y, (h, c) = self.lstm(self.embedding(tokens), (self.h, self.c))
        self.h, self.c = h.detach(), c.detach()
        return F.cross_entropy(self.softmax(y).flatten(0, 1), targets.flatten())


class NMT(nn.Module):
    """Luong's attention of the decoder's outputs over the encoder's."""

    def __init__(self, c: Any) -> None:
        super().__init__()
        self.encoder, self.decoder, self.attention = nn.Module(), nn.Module(), nn.Module()
        for side in (self.encoder, self.decoder):
            side.embedding = nn.Embedding(c.vocabulary, c.hidden)
            side.lstm = nn.LSTM(c.hidden, c.hidden, c.layers, batch_first=True)
        self.attention.linear_in = nn.Linear(c.hidden, c.hidden, bias=False)
        self.attention.linear_out = nn.Linear(2 * c.hidden, c.hidden, bias=False)
        self.softmax = nn.Linear(c.hidden, c.vocabulary)

    def forward(self, source, target, labels):
        memory, state = self.encoder.lstm(self.encoder.embedding(source))
        y, _ = self.decoder.lstm(self.decoder.embedding(target), state)
        weights = torch.softmax(self.attention.linear_in(y) @ memory.transpose(1, 2), 2)
        y = torch.tanh(self.attention.linear_out(torch.cat((weights @ memory, y), 2)))
        return F.cross_entropy(self.softmax(y).flatten(0, 1), labels.flatten())


NETWORKS = {
    "AlexNet": AlexNet, "Inception-v3": Inception, "ResNet-101": ResNet, "RNNTC": RNNTC, "RNNLM": RNNLM, "NMT": NMT,
}


def named(ours: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """Our parameters under PyTorch's names."""
    for key, value in ours.items():
        layer, _, kind = key.rpartition(".")
        stack = layer.rstrip("0123456789")
        if stack.endswith("lstm"):
            yield f"{stack}.{kind}_l{layer[len(stack):]}", value.reshape(-1, *value.shape[2:])
        else:
            yield key, value
