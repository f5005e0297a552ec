"""AtenProgram: the calls of an exported program in order, as plain values without references to torch's graph."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch.fx import GraphModule, Node

from taskflow.models.pytorch.exported.aten import IGNORED, function_of
from taskflow.models.pytorch.exported.layers import (
    ATTENTION,
    DROPOUTS,
    NEVER_TRAINS,
    NORMS,
    LayerSpec,
    base_of,
    counts_batches,
    layer_of_operator,
)
from taskflow.models.pytorch.places import CodePlace, is_theirs, place_text
from taskflow.models.pytorch.site import Unsupported
from taskflow.models.pytorch.steps import mapped
from taskflow.wording import some

MOST_NAMED = 8  # of what is not known
FRAMES = re.compile(r'File "(?P<file>[^"]+)", line (?P<line>\d+), in .*(?:\n +(?P<code>.+))?')
LIBRARIES = re.compile(r"[/\\]torch[/\\](_|nn[/\\]|utils[/\\]|functional|autograd|export)")
CHOOSING = {
    "cond": "torch.cond", "while_loop": "torch.while_loop", "map_impl": "torch.map", "scan": "torch.scan",
    "associative_scan": "torch.associative_scan",
}  # operators that hold code, which numbers choose or repeat


@dataclass(frozen=True, slots=True)
class Named:
    """A value of a program: what a call returned, an argument, a parameter or a buffer."""

    name: str


@dataclass(frozen=True, slots=True)
class InTraining:
    """An argument's value in training mode; in evaluation mode it has another."""

    training: Any
    evaluation: Any


@dataclass(frozen=True, slots=True)
class FloatKind:
    """Stands for the program's float type, whichever a copy of the module has."""


@dataclass(frozen=True, slots=True)
class ProgramCall:
    """Call of one operator. ``target``: the ATen operator. ``run``: the function of torch to call with its arguments. ``path``:
    the module whose code makes the call. ``sizes``: of each tensor that it returns, None for open ones. ``layer``: the layer of
    torch.nn that is called in place of ``run``. ``block``: the calls that it stands for; ``grad``: whether they record
    gradients (None: as around it)."""

    name: str
    target: Any
    run: Callable[..., Any]
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]
    path: str
    place: CodePlace | None
    sizes: tuple[tuple[int | None, ...], ...]
    layer: LayerSpec | None = None
    block: AtenProgram | None = None
    grad: bool | None = None

    def described(self) -> str:
        """Return it as text for messages."""
        return f"{named(self.target)}{f' in {self.path}' if self.path else ''}{place_text(self.place)}"


@dataclass(frozen=True, slots=True)
class AtenProgram:
    """The calls of a program. ``arguments``: names of its inputs; ``outputs``: a nest of its results."""

    arguments: tuple[str, ...]
    calls: tuple[ProgramCall, ...]
    outputs: Any

    def __deepcopy__(self, memo: Any) -> AtenProgram:
        return self


@dataclass(slots=True)
class ProgramReader:
    """Reads graphs of torch.fx. ``floats``: the program's float type. ``held``: name in the graph -> path of the parameter or
    buffer. ``layers``: the layers found."""

    floats: torch.dtype
    held: Mapping[str, str]
    layers: dict[str, LayerSpec] = field(default_factory=dict)
    missing: dict[str, list[str]] = field(default_factory=dict)  # operators without a function: where they stand

    def read(self, module: GraphModule) -> AtenProgram:
        """Return the program of a graph."""
        arguments, calls, outputs = [], [], None
        blocks: dict[str, GraphModule] = {}
        for node in module.graph.nodes:
            if node.op == "placeholder":
                arguments.append(node.name)
            elif node.op == "get_attr":
                blocks[node.name] = held = getattr(module, str(node.target))
                if not isinstance(held, GraphModule):
                    raise Unsupported(f"it reads {node.target}, a {type(held).__name__}; make it with torch.export.export")
            elif node.op == "output":
                outputs = self._nest(node.args[0])
            elif not counts_batches(node, self.held):
                calls.append(self._call(node, blocks))
        return AtenProgram(tuple(arguments), tuple(calls), outputs)

    def require_all_known(self) -> None:
        """Raise Unsupported, listing the operators that have no function of torch, with their lines of code."""
        if self.missing:
            named = [
                f"{places[0]}{f' ({len(places)} times)' if len(places) > 1 else ''}" for places in self.missing.values()
            ]
            raise Unsupported(
                f"no function of torch is known for {some(named, MOST_NAMED, of='kinds')}; replace it in the module that was "
                "exported, or import the module itself"
            )

    def _call(self, node: Node, blocks: Mapping[str, GraphModule]) -> ProgramCall:
        path, place = path_of(node), place_of(node)
        said_of_block = _block_of(node, blocks)
        if said_of_block is not None:
            grad, block, given = said_of_block
            args, inner = self._nest(given), self.read(block)
            return ProgramCall(node.name, node.target, _nothing, args, {}, path, place, (), block=inner, grad=grad)
        layer = layer_of_operator(node, self.held)
        if layer is not None:
            self.layers[layer.path] = layer = replace(layer, args=self._nest(layer.args))
            args = self._arguments(node)
            return ProgramCall(node.name, node.target, _nothing, args, {}, path, place, sizes_of(node), layer=layer)
        run = function_of(node.target)
        if run is None:
            call = ProgramCall(node.name, node.target, _nothing, (), {}, path, place, ())
            self.missing.setdefault(named(node.target), []).append(call.described())
            run = _nothing
        kwargs = {key: self._nest(value) for key, value in node.kwargs.items() if key not in IGNORED}
        return ProgramCall(node.name, node.target, run, self._arguments(node), kwargs, path, place, sizes_of(node))

    def _arguments(self, node: Node) -> tuple[Any, ...]:
        args = list(self._nest(tuple(node.args)))
        kind = base_of(node.target)
        if kind in DROPOUTS and len(args) > 2 and args[2]:
            args[2] = InTraining(True, False)
        if kind in NORMS and kind != NEVER_TRAINS and args[5]:
            args[5] = InTraining(True, False)
        if kind == ATTENTION and len(args) > 4 and args[4]:
            args[4] = InTraining(args[4], 0.0)
        return tuple(args)

    def _nest(self, value: Any) -> Any:
        return mapped(self._leaf, value)

    def _leaf(self, value: Any) -> Any:
        if isinstance(value, Node):
            return Named(value.name)
        if isinstance(value, torch.device):
            return torch.device("cpu")
        return FloatKind() if value is self.floats else value


def named(target: Any) -> str:
    """Return an operator's name for messages."""
    kind = str(getattr(target, "__name__", target))
    if kind in CHOOSING:
        return f"{CHOOSING[kind]} (control flow that depends on numbers in tensors)"
    return str(target) if isinstance(target, torch._ops.OpOverload) else kind


def path_of(node: Node) -> str:
    """Return the path of the module whose code made a node."""
    stack = node.meta.get("nn_module_stack") or {}
    path = str([*stack.values()][-1][0]) if stack else ""
    return re.sub(r"@\d+", "", re.sub(r"^(L\['self'\]|L__self__|_export_root)\.?", "", path))


def place_of(node: Node) -> CodePlace | None:
    """Return the line of the module's own code that made a node: the innermost one outside torch."""
    found = None
    for frame in FRAMES.finditer(node.meta.get("stack_trace") or ""):
        if is_theirs(frame["file"]) and not LIBRARIES.search(frame["file"]):
            found = CodePlace(frame["file"], int(frame["line"]), (frame["code"] or "").strip())
    return found


def sizes_of(node: Node) -> tuple[tuple[int | None, ...], ...]:
    """Return the sizes of each tensor that a node returns, as they were exported."""
    value = node.meta.get("val")
    several = value if isinstance(value, (tuple, list)) else (value,)
    return tuple(shape_of(part) for part in several if isinstance(part, torch.Tensor))


def shape_of(tensor: torch.Tensor) -> tuple[int | None, ...]:
    """Return a tensor's sizes; None for open ones."""
    return tuple(size if type(size) is int else None for size in tensor.shape)


def _block_of(node: Node, blocks: Mapping[str, GraphModule]) -> tuple[bool | None, GraphModule, tuple[Any, ...]] | None:
    """Return, of an operator that stands for a block of code, whether gradients are recorded in it, its graph and its arguments."""
    kind = getattr(node.target, "__name__", "") if not isinstance(node.target, torch._ops.OpOverload) else ""
    args: Any = node.args
    if kind == "wrap_with_set_grad_enabled":
        return bool(args[0]), blocks[args[1].name], args[2:]
    if kind == "wrap_with_autocast":
        if args[2]:
            raise Unsupported(f"{path_of(node) or 'forward'} uses autocast, which is not understood{place_text(place_of(node))}")
        return None, blocks[args[4].name], args[5:]
    return None


def _nothing(*args: Any, **options: Any) -> None:
    """Placeholder for a function."""
