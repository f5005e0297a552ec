"""PyTorch modules that are easily understood wrongly, and what has to become of each: "equal", or "refused" with a ValueError.

A case: the module's maker, the arguments of its forward (made after a seed), and the word. They are of the kinds that people write:
in-place operations, views, hooks, frozen parts, buffers, branches on training, shared layers, options of layers.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed: make test TORCH=1")

nn, F = torch.nn, torch.nn.functional
Arguments = Callable[[], tuple[Any, ...]]


@dataclass(frozen=True)
class Case:
    name: str
    make: Callable[[], Any]
    arguments: Arguments
    word: str  # equal, refused


CASES: dict[str, Case] = {}


def rows(*shape: int) -> Arguments:
    return lambda: (torch.randn(*(shape or (4, 6)), dtype=torch.float64),)


def ids(high: int = 7, *shape: int) -> Arguments:
    return lambda: (torch.randint(high, shape or (4, 5)),)


def case(word: str, arguments: Arguments | None = None) -> Callable[[Callable[[], Any]], Callable[[], Any]]:
    """Decorator of a module's maker."""

    def add(make: Callable[[], Any]) -> Callable[[], Any]:
        CASES[make.__name__] = Case(make.__name__, make, arguments or rows(), word)
        return make

    return add


def net(forward: Callable[..., Any], **parts: Any) -> Any:
    """A module of these parts (modules, parameters, buffers as plain tensors, other attributes) with this forward."""
    made = type("Net", (nn.Module,), {"forward": forward})()
    for name, part in parts.items():
        if isinstance(part, torch.Tensor) and not isinstance(part, nn.Parameter):
            made.register_buffer(name, part)
        else:
            setattr(made, name, part)
    return made


def line(i: int = 6, o: int = 6, **options: Any) -> Any:
    return nn.Linear(i, o, **options)


def simple(function: Callable[..., Any], word: str = "equal", *, name: str) -> None:
    """A case of a linear layer, a function, and another linear layer if the width fits."""
    CASES[name] = Case(name, lambda: net(lambda self, x: function(self.a(x)), a=line()), rows(), word)


IMAGES = rows(3, 3, 6, 6)
