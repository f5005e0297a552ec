"""Repeated layers: of layers that are alike, the first is recorded, and the others are written down as it was.

Alike are modules of one list with equal classes, attributes, shapes of parameters and buffers that are called with arguments alike.
A layer's own number may differ, unless its forward looks at it.
"""

from __future__ import annotations

import inspect
import operator
import re
from collections import UserDict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from types import MethodType
from typing import Any

import torch
from torch import nn

from taskflow.models.pytorch.modules import is_leaf
from taskflow.models.pytorch.steps import Fixed, Ref, TorchStep, leaves, mapped

plain_call = nn.Module.__call__
NUMBERED = re.compile(r"(^|\.)\d+$")
NUMBER = re.compile(r"\.\d+\.")
OWN_PATH = "its own path"
INDEX = re.compile(r"(layer|block|depth)?_?(idx|index|id|number)$|^layer_")
PLAIN = (bool, int, float, str, type(None), torch.dtype, torch.device)


class Watched:
    """A layer's number during a call. ``looked``: whether somebody has used it as a number."""

    def __init__(self, value: int) -> None:
        self.value, self.looked = value, False


def _watching(function: Callable[..., Any], turned: bool = False) -> Callable[..., Any]:
    def method(self: Watched, *args: Any) -> Any:
        self.looked = True
        others = [other.value if isinstance(other, Watched) else other for other in args]
        return function(*others, self.value) if turned else function(self.value, *others)

    return method


for _name in ("add", "sub", "mul", "truediv", "floordiv", "mod", "pow", "and", "or", "xor"):
    _function = getattr(operator, f"__{_name}__")
    setattr(Watched, f"__{_name}__", _watching(_function))
    setattr(Watched, f"__r{_name}__", _watching(_function, turned=True))
for _name in ("eq", "ne", "lt", "le", "gt", "ge", "neg", "index"):
    setattr(Watched, f"__{_name}__", _watching(getattr(operator, f"__{_name}__")))
for _plain in (hash, bool, int, float, str, repr, format):
    setattr(Watched, f"__{_plain.__name__}__", _watching(_plain))


@dataclass(frozen=True, slots=True)
class RecordedLayer:
    """Steps ``start`` to below ``end`` of a layer at ``path``. ``given``: its arguments' tensors. ``returned``: the nest that it
    returned, with references. ``parameters``: their identities by name."""

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


def signature(part: nn.Module, at: str, holds_frozen: bool = True) -> Any:
    """Return what layers alike have in common; None for a layer that is not compared. ``at``: its path. ``holds_frozen``: as
    `Shadow` has it."""
    alike: list[Any] = []
    layers = {id(module) for layer in part.modules() if is_leaf(layer) for module in layer.modules()}
    for path, module in part.named_modules():
        own = []
        for name, value in vars(module).items():
            if name in ("_parameters", "_buffers", "_modules") or (type(value) is int and INDEX.search(name)):
                continue
            bound = isinstance(value, MethodType) and value.__self__ is module
            own.append((name, id(value.__func__) if bound else _settled(value, f"{at}.{path}" if path else at)))
        if not holds_frozen and id(module) not in layers and any(
            p is not None and not p.requires_grad for p in module._parameters.values()
        ):  # constants
            return None
        parameters = [
            (name, None if p is None else (tuple(p.shape), p.dtype, p.requires_grad)) for name, p in module._parameters.items()
        ]
        buffers = []
        for name, buffer in module._buffers.items():
            if buffer is not None and (buffer.is_meta or buffer.numel() > 1 << 22):
                return None
            buffers.append((name, None if buffer is None else (tuple(buffer.shape), buffer.dtype, _numbers(buffer))))
        alike.append((path, type(module), tuple(sorted(own, key=lambda pair: pair[0])), tuple(parameters), tuple(buffers)))
    return tuple(alike)


def _settled(value: Any, path: str) -> Any:
    """A value of an attribute of the module at ``path`` as something that is equal if the values are. A module may know its own
    path, which differs."""
    if isinstance(value, str) and NUMBER.search(value) and f".{path}".endswith(f".{value}"):
        return OWN_PATH
    if isinstance(value, PLAIN):
        return (type(value), value)
    if isinstance(value, (tuple, list)):
        return (type(value), tuple([_settled(part, path) for part in value]))
    if isinstance(value, dict):
        return tuple((str(key), _settled(part, path)) for key, part in value.items())
    if isinstance(value, (set, frozenset)):
        return tuple(sorted(map(str, value)))
    if type(value) is partial:
        return (partial, *(_settled(part, path) for part in (value.func, value.args, value.keywords)))
    return id(value)


def _numbers(buffer: torch.Tensor) -> int:
    plain = buffer.detach().cpu().contiguous().reshape(-1)
    return hash(plain.view(torch.uint8).numpy().tobytes()) if plain.numel() else 0


def shifted(step: TorchStep, recorded: RecordedLayer, path: str, number: int, refs: Callable[[Ref], Ref]) -> TorchStep:
    """Return a step of a recorded layer as that of the layer at ``path``."""

    def moved(value: Any) -> Any:
        if isinstance(value, Fixed) and value.name:
            return replace(value, name=renamed(value.name))
        return refs(value) if isinstance(value, Ref) else value

    def renamed(name: Any) -> Any:
        inside = isinstance(name, str) and (name == recorded.path or name.startswith(f"{recorded.path}."))
        return f"{path}{name[len(recorded.path):]}" if inside else name

    target = renamed(step.target) if step.kind in ("module", "parameter") else step.target
    result = mapped(lambda value: Ref(number, value.index) if isinstance(value, Ref) else value, step.result)
    return TorchStep(  # which `replace` makes in several times as long
        number, step.kind, target, mapped(moved, step.args), mapped(moved, step.kwargs), result, step.values,
        renamed(step.where), step.training, step.grad, step.line,
    )


def foreign(steps: list[TorchStep], start: int, given: tuple[Ref, ...]) -> bool:
    """True if steps read what is neither made in them, nor an argument, nor a parameter of the whole."""
    numbers = {step.number for step in steps}
    return any(
        isinstance(leaf, Ref) and leaf.step not in numbers and leaf not in given
        for step in steps for leaf in leaves((step.args, step.kwargs))
    )


def _plainly(value: Any) -> Any:
    return value.value if isinstance(value, Watched) else value


def with_watched(part: nn.Module, args: Any, kwargs: Any) -> tuple[Any, Any, list[Watched]]:
    """Return arguments of a layer's forward in which a number that is called so, such as ``layer_idx``, is watched."""
    names = [*inspect.signature(type(part).forward).parameters][1 : len(args) + 1]
    found: list[Watched] = []

    def watched(name: str, value: Any) -> Any:
        if type(value) is not int or not INDEX.search(name):
            return value
        found.append(Watched(value))
        return found[-1]

    named = (*names, *[""] * (len(args) - len(names)))
    return tuple(map(watched, named, args)), {name: watched(name, value) for name, value in kwargs.items()}, found


def held(nest: Any) -> Iterator[Any]:
    """Yield the leaves of arguments; of what is like a dict, such as keys and values that layers share, keys and leaves."""
    for leaf in leaves(nest):
        if isinstance(leaf, UserDict):
            yield from (*leaf, *held(list(leaf.values())))
        else:
            yield leaf


def is_simple(value: Any) -> bool:
    """True for what a layer may return beside tensors."""
    return isinstance(value, (Ref, Fixed, *PLAIN))


class RepeatedLayers:
    """Calls of the layers of a `TorchRecorder`'s module: those alike are written down as the first of them was."""

    def __init__(self, recorder: Any) -> None:
        self.recorder = recorder
        self.known: dict[Any, RecordedLayer] = {}  # by what layers have in common that are alike

    def call(self, part: nn.Module, path: str, args: Any, kwargs: Any) -> Any:
        """Call a module, or write it down as an earlier one that is alike."""
        r = self.recorder
        if not r.repeats or not r.shadow.fake or r.observe is not None or not NUMBERED.search(path):
            return plain_call(part, *args, **kwargs)
        with self.recorder.pause():
            own = signature(part, path, r.shadow.holds_frozen)
            args, kwargs, numbers = with_watched(part, args, kwargs)
            given, alike = self._given(args, kwargs)
        if own is None or given is None:
            return plain_call(part, *mapped(_plainly, args), **mapped(_plainly, kwargs))
        key = (NUMBERED.sub("", path), own, alike)
        if (known := self.known.get(key)) is not None:
            copy = self._written_again(known, part, path, given)
            if copy is not None:
                return copy[0]
        return self._first(key, part, path, given, args, kwargs, numbers)

    def _given(self, args: Any, kwargs: Any) -> tuple[list[torch.Tensor] | None, Any]:
        """The tensors among arguments that depend on inputs or parameters, and what calls alike have in common."""
        tensors: list[torch.Tensor] = []
        alike: list[Any] = []
        for leaf in held((args, sorted(kwargs.items()))):
            if not isinstance(leaf, torch.Tensor):
                alike.append(Watched if isinstance(leaf, Watched) else (type(leaf), leaf) if isinstance(leaf, PLAIN) else id(leaf))
            elif id(leaf) in self.recorder.refs and id(leaf) not in self.recorder.stale:
                same = next((i for i, other in enumerate(tensors) if other is leaf), len(tensors))
                tensors += [leaf] if same == len(tensors) else []
                alike.append((same, tuple(leaf.shape), leaf.dtype, leaf.stride(), leaf.requires_grad))
            elif self.recorder.tracked(leaf):
                return None, None
            else:
                alike.append(id(leaf))
                self.recorder.kept.append(leaf)
        return tensors, (tuple(alike), torch.is_grad_enabled())

    def _first(
        self, key: Any, part: nn.Module, path: str, given: list[torch.Tensor], args: Any, kwargs: Any, numbers: list[Watched]
    ) -> Any:
        """Call a layer, and keep what it does, for those that are alike."""
        watched = [(module, name, value, Watched(value)) for module, name, value in numbers_of(part)]
        start, versions, before = len(self.recorder.steps), [value._version for value in given], [*map(id, held((args, kwargs)))]
        refs = tuple(self.recorder.refs[id(value)] for value in given)
        parameters = {name: id(p) for name, p in part.named_parameters()}
        for module, name, _, watch in watched:
            vars(module)[name] = watch
        try:
            returned = plain_call(part, *args, **kwargs)
        finally:
            for module, name, value, _ in watched:
                vars(module)[name] = value
        steps = self.recorder.steps[start:]
        with self.recorder.pause():
            looked = any(watch.looked for watch in (*numbers, *(watch for *_, watch in watched)))
            fine = not looked and versions == [value._version for value in given]
            fine = fine and before == [*map(id, held((args, kwargs)))]  # nothing is put into what it is given
            fine = fine and not foreign(steps, start, refs) and not any(id(value) in self.recorder.stale for value in given)
            nest = mapped(lambda v: self.recorder.reference(v) if isinstance(v, torch.Tensor) else v, returned) if fine else None
        if fine and all(map(is_simple, leaves(nest))) and len(steps) == len(self.recorder.steps) - start:
            self.known[key] = RecordedLayer(path, start, len(self.recorder.steps), refs, nest, parameters)
        return returned

    def _written_again(self, known: RecordedLayer, part: nn.Module, path: str, given: list[torch.Tensor]) -> tuple[Any] | None:
        """What a layer returns that is alike; None if it shares parameters with others."""
        own = {id(p) for p in part.parameters()}
        if own & {*known.parameters.values()} or own & self.recorder.refs.keys() or not own <= self.recorder.shadow.paths.keys():
            return None
        moved = dict(zip(known.given, (self.recorder.refs[id(value)] for value in given)))
        with self.recorder.pause():
            for step in self.recorder.steps[known.start : known.end]:
                number = len(self.recorder.steps)
                moved.update({Ref(step.number, i): Ref(number, i) for i in range(len(step.values))})
                copy = shifted(step, known, path, number, moved.__getitem__)
                self.recorder.steps.append(copy)
                self.recorder.writes.steps |= {number} if step.number in self.recorder.writes.steps else set()
                if copy.kind == "parameter":
                    value = part.get_parameter(copy.target[len(path) + 1 :])
                    self.recorder.refs[id(value)], self.recorder.origins[id(value)] = Ref(number), value.grad_fn
                    self.recorder.protected[value.untyped_storage()._cdata] = f"parameter {copy.target}"
            return (mapped(lambda value: self._again(value, moved, given, known), known.returned),)

    def _again(self, value: Any, moved: dict[Ref, Ref], given: list[torch.Tensor], known: RecordedLayer) -> Any:
        """A leaf of what a layer returned, as that of the layer alike."""
        if isinstance(value, Fixed):
            return value.tensor
        if not isinstance(value, Ref):
            return value
        if value in known.given:
            return given[known.given.index(value)]
        theirs = self.recorder.steps[value.step].values[value.index]
        with self.recorder.shadow.mode:
            copy = torch.empty_strided(theirs.size(), theirs.stride(), dtype=theirs.dtype)
        copy = copy.requires_grad_().clone(memory_format=torch.preserve_format) if theirs.requires_grad else copy
        self.recorder.kept.append(copy)
        self.recorder.refs[id(copy)], self.recorder.origins[id(copy)] = moved[value], copy.grad_fn
        self.recorder.storages.setdefault(copy.untyped_storage()._cdata, []).append(copy)
        return copy
