"""Modules of unusual shape, with their batches and their losses, for the tests of exported modules."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

import taskflow

BATCH, CLASSES = 8, 5


class Again(nn.Module):
    """One block with several weights, applied four times: stages share all of them."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(6, 8), nn.Linear(8, CLASSES)
        self.block = nn.Sequential(nn.LayerNorm(8), nn.Linear(8, 8), nn.GELU())

    def forward(self, x: Any) -> Any:
        x = self.first(x)
        for _ in range(4):
            x = x + self.block(x)
        return self.last(x)


class Returning(nn.Module):
    """A layer that the first and the third of four stages share."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.c, self.d = nn.Linear(6, 8), nn.Linear(8, 8), nn.Linear(8, 8), nn.Linear(8, 8)
        self.e, self.shared, self.last = nn.Linear(8, 8), nn.Linear(8, 8), nn.Linear(8, CLASSES)

    def forward(self, x: Any) -> Any:
        x = torch.tanh(self.shared(self.a(x)))
        x = self.c(self.b(x))
        x = torch.tanh(self.shared(self.d(x)))
        return self.last(self.e(x))


class SharedTable(nn.Module):
    """Scores by the table of the first layer, which the first and the last stage share."""

    def __init__(self) -> None:
        super().__init__()
        self.table, self.middle = nn.Embedding(CLASSES, 16), nn.Linear(16, 16)
        self.scores = nn.Linear(16, CLASSES, bias=False)
        self.scores.weight = self.table.weight

    def forward(self, tokens: Any) -> Any:
        x = self.table(tokens)
        return self.scores(x + torch.tanh(self.middle(x)))


class Head(nn.Module):
    """BERT's head: a layer within it, and scores by the table, whose bias the head holds too."""

    def __init__(self, table: nn.Embedding) -> None:
        super().__init__()
        words, width = table.weight.shape
        self.dense, self.scores = nn.Linear(width, width), nn.Linear(width, words)
        self.bias = self.scores.bias
        self.scores.weight = table.weight

    def forward(self, x: Any) -> Any:
        return self.scores(torch.tanh(self.dense(x)))


class BehindHead(nn.Module):
    """A head that holds a weight which is read outside of it."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(CLASSES, 16)
        self.layers, self.head = nn.ModuleList(nn.Linear(16, 16) for _ in range(2)), Head(self.table)

    def forward(self, tokens: Any) -> Any:
        x = self.table(tokens)
        for layer in self.layers:
            x = x + torch.tanh(layer(x))
        return self.head(x)


class Joined(nn.Module):
    """What joins values of the stage before, as a U-Net does, gives it slices of a gradient."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(6, 16), nn.Linear(16, 16)
        self.c, self.last = nn.Linear(16, 16), nn.Linear(32, CLASSES)

    def forward(self, x: Any) -> Any:
        x = torch.tanh(self.a(x))
        y = torch.tanh(self.b(x))
        return self.last(torch.cat([torch.tanh(self.c(y)), x], -1))


class Skipped(nn.Module):
    """Of two arguments that may be left out, the first is."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(6, 8), nn.Linear(8, CLASSES)

    def forward(self, x: Any, factor: Any = None, more: Any = None) -> Any:
        x = torch.tanh(self.first(x))
        x = x if factor is None else x * factor
        return self.last(x if more is None else x + more)


class ByName(nn.Module):
    """An argument that can only be given by name."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.beside, self.last = nn.Linear(6, 8), nn.Linear(3, 8), nn.Linear(8, CLASSES)

    def forward(self, x: Any, *, side: Any) -> Any:
        return self.last(torch.tanh(self.first(x) + self.beside(side)))


class WithNumber(nn.Module):
    """Returns a number beside its scores."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last, self.drop = nn.Linear(6, 8), nn.Linear(8, CLASSES), nn.Dropout(0.0)

    def forward(self, x: Any) -> Any:
        x = torch.tanh(self.first(x))
        return self.last(self.drop(x)), x.square().mean()


class Masked(nn.Module):
    """Dropout, which evaluation leaves out."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.drop, self.last = nn.Linear(6, 8), nn.Dropout(0.9), nn.Linear(8, CLASSES)

    def forward(self, x: Any) -> Any:
        return self.last(self.drop(torch.tanh(self.first(x))))


class Asked(nn.Module):
    """A layer that returns None beside its result, for which the code asks."""

    def __init__(self, masks: bool = False) -> None:
        super().__init__()
        self.layer, self.masks = nn.Linear(8, 8), masks

    def forward(self, x: Any) -> Any:
        y = torch.tanh(self.layer(x))
        return y, (torch.sigmoid(y) if self.masks else None), [y * 2, self.masks]


class Asking(nn.Module):
    """Asks which of its layers return a mask."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(6, 8), nn.Linear(8, CLASSES)
        self.layers = nn.ModuleList([Asked(), Asked(True), Asked()])

    def forward(self, x: Any) -> Any:
        x = self.first(x)
        for layer in self.layers:
            y, mask, (double, _) = layer(x)
            x = y - double if mask is None else y * mask
        return self.last(x)


class InMapping(nn.Module):
    """Returns a dictionary, which no stage of PyTorch's does."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(6, 8), nn.Linear(8, CLASSES)

    def forward(self, x: Any) -> Any:
        x = torch.tanh(self.first(x))
        return {"hidden": x, "logits": self.last(x)}


class Twin(nn.Module):
    """One encoder of two inputs: by the module's code the second stage computes all."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder, self.last = nn.Sequential(nn.Linear(6, 24), nn.ReLU(), nn.Linear(24, 8)), nn.Linear(16, CLASSES)

    def forward(self, a: Any, b: Any) -> Any:
        return self.last(torch.cat([self.encoder(a), self.encoder(b)], -1))


MODULES: dict[str, type[nn.Module]] = {
    "again": Again, "returning": Returning, "table": SharedTable, "skipped": Skipped, "by_name": ByName, "number": WithNumber,
    "masked": Masked, "twin": Twin, "head": BehindHead, "joined": Joined, "asking": Asking, "mapping": InMapping,
}  # fmt: skip
OF_TOKENS = ("table", "head")
KEYWORDS: Mapping[str, Mapping[str, tuple[int, int]]] = {"skipped": {"more": (BATCH, 8)}, "by_name": {"side": (BATCH, 3)}}


def graph(name: str) -> taskflow.OperatorGraph:
    """The network's graph."""
    torch.manual_seed(0)
    shapes: list[Any] = [torch.zeros(BATCH, 3, dtype=torch.long)] if name in OF_TOKENS else [(BATCH, 6)] * (1 + (name == "twin"))
    return taskflow.from_torch(MODULES[name](), *shapes, keywords=KEYWORDS.get(name), name=name)


def batch(name: str, step: int) -> tuple[list[Any], dict[str, Any], Any]:
    """Arguments of forward by position and by name, and labels."""
    random = torch.Generator().manual_seed(step)
    if name in OF_TOKENS:
        tokens = torch.randint(CLASSES, (BATCH, 3), generator=random)
        return [tokens], {}, tokens.roll(1, 1)
    named = {key: torch.randn(shape, generator=random) for key, shape in KEYWORDS.get(name, {}).items()}
    return [torch.randn(BATCH, 6, generator=random)], named, torch.randint(CLASSES, (BATCH,), generator=random)


def loss(output: Any, labels: Any) -> Any:
    """Mean cross-entropy of the scores, which are the first of several results."""
    scores = output[0] if isinstance(output, tuple) else output["logits"] if isinstance(output, dict) else output
    return F.cross_entropy(scores.flatten(0, -2), labels.flatten())
