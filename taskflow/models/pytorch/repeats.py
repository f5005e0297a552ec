"""Repeated layers: of layers that are alike, the first is recorded, and the others are written down as it was.

Alike are modules of one list with equal classes, attributes, shapes of parameters and buffers that are called with arguments alike.
A layer's own number may differ, unless its forward looks at it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import nn

from taskflow.models.pytorch.steps import Fixed, Ref, TorchStep, leaves, mapped

NUMBERED = re.compile(r"(^|\.)\d+$")
INDEX = re.compile(r"(layer|block|depth)?_?(idx|index|id|number)$|^layer_")
PLAIN = (bool, int, float, str, type(None), torch.dtype, torch.device)


class Watched:
    """A layer's number during a call. ``looked``: whether somebody has used it as a number."""

    def __init__(self, value: int) -> None:
        self.value, self.looked = value, False


def _watching(name: str) -> Callable[..., Any]:
    def method(self: Watched, *args: Any) -> Any:
        self.looked = True
        return getattr(self.value, name)(*(other.value if isinstance(other, Watched) else other for other in args))

    return method


for _name in (
    "add", "radd", "sub", "rsub", "mul", "rmul", "truediv", "rtruediv", "floordiv", "rfloordiv", "mod", "rmod", "pow", "rpow", "neg", "eq",
    "ne", "lt", "le", "gt", "ge", "hash", "bool", "int", "float", "index", "str", "repr", "format", "and", "rand", "or", "ror", "xor",
):
    setattr(Watched, f"__{_name}__", _watching(f"__{_name}__"))


@dataclass(frozen=True, slots=True)
class Recorded:
    """Steps ``start`` to below ``end`` of a layer at ``path``. ``given``: its arguments' tensors of this step; ``returned``: the nest
    that it returned, with references; ``values``: tensors that these stand for."""

    path: str
    start: int
    end: int
    given: tuple[Ref, ...]
    returned: Any
    parameters: dict[str, int]


def numbers_of(part: nn.Module) -> Iterator[tuple[nn.Module, str, int]]:
    """Yield where a layer keeps numbers of its own, such as ``layer_idx``."""
    for module in part.modules():
        for name, value in vars(module).items():
            if type(value) is int and INDEX.search(name):
                yield module, name, value


def signature(part: nn.Module) -> Any:
    """Return what layers alike have in common; None for a layer that is not compared."""
    said: list[Any] = []
    for path, module in part.named_modules():
        own = []
        for name, value in vars(module).items():
            if name in ("_parameters", "_buffers", "_modules") or (type(value) is int and INDEX.search(name)):
                continue
            own.append((name, _frozen(value)))
        parameters = [(name, None if p is None else (tuple(p.shape), p.dtype, p.requires_grad)) for name, p in module._parameters.items()]
        if any(p is not None and not p.requires_grad for p in module._parameters.values()):
            return None
        buffers = []
        for name, buffer in module._buffers.items():
            if buffer is not None and (buffer.is_meta or buffer.numel() > 1 << 22):
                return None
            buffers.append((name, None if buffer is None else (tuple(buffer.shape), buffer.dtype, _numbers(buffer))))
        said.append((path, type(module), tuple(sorted(own, key=lambda pair: pair[0])), tuple(parameters), tuple(buffers)))
    return tuple(said)


def _frozen(value: Any) -> Any:
    if isinstance(value, PLAIN):
        return (type(value), value)
    if isinstance(value, (tuple, list)):
        return (type(value), tuple(map(_frozen, value)))
    if isinstance(value, dict):
        return tuple((str(key), _frozen(part)) for key, part in value.items())
    if isinstance(value, (set, frozenset)):
        return tuple(sorted(map(str, value)))
    return id(value)


def _numbers(buffer: torch.Tensor) -> int:
    plain = buffer.detach().cpu().contiguous().reshape(-1)
    return hash(plain.view(torch.uint8).numpy().tobytes()) if plain.numel() else 0


def shifted(step: TorchStep, recorded: Recorded, path: str, number: int, refs: Callable[[Ref], Ref]) -> TorchStep:
    """Return a step of a recorded layer as that of the layer at ``path``."""

    def moved(value: Any) -> Any:
        if isinstance(value, Fixed) and value.name:
            return replace(value, name=renamed(value.name))
        return refs(value) if isinstance(value, Ref) else value

    def renamed(name: Any) -> Any:
        inside = isinstance(name, str) and (name == recorded.path or name.startswith(f"{recorded.path}."))
        return f"{path}{name[len(recorded.path):]}" if inside else name

    target = renamed(step.target) if step.kind in ("module", "parameter") else step.target
    return replace(
        step, number=number, target=target, args=mapped(moved, step.args), kwargs=mapped(moved, step.kwargs),
        result=mapped(lambda value: Ref(number, value.index) if isinstance(value, Ref) else value, step.result),
        where=renamed(step.where),
    )


def foreign(steps: list[TorchStep], start: int, given: tuple[Ref, ...]) -> bool:
    """True if steps read what is neither made in them, nor an argument, nor a parameter of the whole."""
    numbers = {step.number for step in steps}
    return any(
        isinstance(leaf, Ref) and leaf.step not in numbers and leaf not in given
        for step in steps for leaf in leaves((step.args, step.kwargs))
    )


def is_simple(value: Any) -> bool:
    """True for what a layer may return beside tensors."""
    return isinstance(value, (Ref, Fixed, *PLAIN))
