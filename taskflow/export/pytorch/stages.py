"""Stages of a module as code: the code of its forward at the level where stages meet, traced by torch.fx.

Modules within one stage are unchanged. Only the code around them is rewritten, as one function for each stage.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from math import isfinite
from typing import Any
from weakref import WeakKeyDictionary

from taskflow.mapper import Pipeline
from taskflow.models.pytorch import OperatorSite, graph_around, quietly

PLAIN = (bool, int, float, str, type(None))


@dataclass(frozen=True, slots=True)
class StageText:
    """Code of a stage. ``code``: of a function of ``part`` (which has the stage's modules), of the values that arrive from the
    previous stage, and of ``inputs``, the arguments of the module's forward that it reads itself. ``parts``: paths of modules,
    parameters and buffers."""

    code: str
    parts: tuple[str, ...]
    inputs: tuple[str, ...]
    arrives: tuple[str, ...]


def stages_of_module(
    module: Any, examples: Sequence[Any], rows: int, pipeline: Pipeline, sites: Mapping[str, OperatorSite]
) -> tuple[tuple[StageText, ...], bool]:
    """Return the stages of a module whose forward is called with arguments like ``examples``, of which a micro-batch on one replica
    has so many ``rows``, and whether their code has these sizes as numbers. Raises ValueError if its code cannot be divided."""
    import torch.fx

    found: dict[str, set[int]] = {}
    for name, site in sites.items():
        if site.kind == "input":
            continue
        parts = site.path.split(".") if site.path else []
        for depth in range(len(parts) + 1):
            found.setdefault(".".join(parts[:depth]), set()).add(pipeline.stage(name))

    returned = _returned(module, examples, found)

    class AroundStages(torch.fx.Tracer):
        def is_leaf_module(self, m: Any, module_qualified_name: str) -> bool:
            return len(found.get(module_qualified_name, ())) <= 1

        def call_module(self, m: Any, forward: Any, args: Any, kwargs: Any) -> Any:
            result = super().call_module(m, forward, args, kwargs)
            calls = returned.get(id(m))
            return _as_returned(result, calls.pop(0)) if calls and isinstance(result, torch.fx.Proxy) else result

    names = list(inspect.signature(module.forward).parameters.values())
    fixed = {p.name: value for p, value in zip(names, examples) if not isinstance(value, torch.Tensor)}
    fixed |= {p.name: p.default for p in names[len(examples) :] if p.default is not inspect.Parameter.empty}
    recorded = False
    try:
        graph = AroundStages().trace(module, concrete_args=fixed or None)
        _require_sendable(next(node for node in graph.nodes if node.op == "output").args[0])
    except Exception:  # whatever the module's code does with what has no numbers
        graph, recorded = _recorded(module, examples, rows, found), True
    stage_of = _stages(graph, found)
    writers = [_Writer(graph, stage_of, number, pipeline.count) for number in range(pipeline.count)]
    texts = tuple(writer.stage() for writer in writers)
    trained = [path for path, _ in module.named_parameters(remove_duplicate=False)]
    for number, text in enumerate(texts):
        if not any(path == part or path.startswith(f"{part}.") for path in trained for part in text.parts):
            raise ValueError(
                f"stage {number} of {len(texts)} has no parameters in the code of {type(module).__name__}: a layer that several "
                "stages use is computed by the last of them; take fewer stages, or others (stages=N,N,...)"
            )
    return texts, recorded


def _returned(module: Any, examples: Sequence[Any], found: Mapping[str, set[int]]) -> dict[int, list[Any]]:
    """What each call of a module within one stage returns, without numbers, by the module's identity. A tracer sees no difference
    between a tensor and None, for which code may ask. Empty if forward asks for numbers."""
    if module not in _CALLS:  # a search asks for many ways to divide one module
        _CALLS[module] = _calls_of_parts(module, examples)
    paths = {id(part): path for path, part in reversed([*module.named_modules()])}
    return {part: [*calls] for part, calls in _CALLS[module].items() if len(found.get(paths[part], ())) <= 1}


_CALLS: WeakKeyDictionary[Any, dict[int, list[Any]]] = WeakKeyDictionary()


def _calls_of_parts(module: Any, examples: Sequence[Any]) -> dict[int, list[Any]]:
    """The same of all modules."""
    import torch
    from torch._subclasses.fake_tensor import FakeTensorMode

    from taskflow.export.pytorch.without_numbers import OnZeros, without_numbers

    calls: dict[int, list[Any]] = {}
    with FakeTensorMode(allow_non_fake_inputs=True), quietly(), OnZeros():
        try:
            copied = without_numbers(module)
            for part, other in zip(module.modules(), copied.modules()):
                other.register_forward_hook(partial(_note, calls.setdefault(id(part), [])))
            copied(*(torch.empty(e.shape, dtype=e.dtype) if isinstance(e, torch.Tensor) else e for e in examples))
        except Exception:
            return {}
    return calls


def _require_sendable(result: Any) -> None:
    """Raise TypeError for a result that no stage of PyTorch's returns: only tensors, and tuples and lists of them."""
    if isinstance(result, dict):
        raise TypeError("a stage returns tensors, or tuples and lists of them, not a dictionary")


def _note(results: list[Any], part: Any, args: Any, result: Any) -> None:
    results.append(result)


def _as_returned(proxy: Any, value: Any) -> Any:
    """A tracer's value for a module's result, in the form of that result: a tuple or list with what is no tensor as it is."""
    import torch

    if not isinstance(value, (tuple, list)) or type(value) not in (tuple, list):
        return proxy
    if not all(isinstance(part, (torch.Tensor, tuple, list, *PLAIN)) for part in value):
        return proxy
    return type(value)(part if isinstance(part, PLAIN) else _as_returned(proxy[i], part) for i, part in enumerate(value))


def _recorded(module: Any, examples: Sequence[Any], rows: int, found: Mapping[str, set[int]]) -> Any:
    """The graph of what runs around modules that are within one stage, for a micro-batch of so many rows."""
    import torch

    paths = {id(part): path for path, part in reversed([*module.named_modules()])}
    most = max((len(value) for value in examples if isinstance(value, torch.Tensor) and value.ndim), default=0)
    few = [value[:rows] if isinstance(value, torch.Tensor) and value.shape[:1] == (most,) else value for value in examples]
    try:
        return graph_around(module, few, lambda part: len(found.get(paths.get(id(part), ""), ())) == 1)
    except ValueError as error:
        raise ValueError(
            f"the code of {type(module).__name__} around its layers cannot be divided into stages ({error}); put this into the "
            "layers, or export a plan without a pipeline"
        ) from error


def _stages(graph: Any, found: Mapping[str, set[int]]) -> dict[Any, int | None]:
    """The stage of each node; None for nodes that depend on no module, which every stage that needs them computes."""
    stage_of: dict[Any, int | None] = {}
    for node in graph.nodes:
        known = [stage for before in node.all_input_nodes if (stage := stage_of[before]) is not None]
        if node.op == "call_module" and found.get(node.target):
            (own,) = found[node.target]
            if known and max(known) > own:
                raise ValueError(f"{node.target} is in stage {own}, but reads what stage {max(known)} makes")
            stage_of[node] = own
        else:
            stage_of[node] = max(known, default=None)
    return stage_of


def _sizes(nodes: Iterable[Any]) -> set[Any]:
    """Nodes that are not tensors but shapes, or numbers computed from them."""
    found: set[Any] = set()
    for node in nodes:
        shape = node.op == "call_function" and node.target is getattr and node.args[1] in ("shape", "ndim")
        if shape or (node.op == "call_method" and node.target in ("size", "dim", "numel")) or (
            node.op == "call_function" and getattr(node.target, "__module__", "") in ("_operator", "builtins", "math")
            and node.all_input_nodes and found.issuperset(node.all_input_nodes)
        ):
            found.add(node)
    return found


class _Writer:
    """Writes one stage."""

    def __init__(self, graph: Any, stage_of: Mapping[Any, int | None], number: int, count: int) -> None:
        self.nodes, self.stage_of, self.number, self.count = list(graph.nodes), stage_of, number, count
        self.result = self.nodes[-1]
        self.lines: list[str] = []
        self.parts: list[str] = []
        self.inputs: list[str] = []
        self.written: set[Any] = set()
        self.sizes = _sizes(self.nodes)

    def arrives(self, number: int) -> list[Any]:
        """Return the values that go from the stages before ``number`` to it and to later ones."""
        found = [
            node for node in self.nodes
            if (stage := self.stage_of[node]) is not None and stage < number
            and any(user.op == "output" or (self.stage_of[user] or 0) >= number for user in node.users)
        ]
        for node in found:
            if node in self.sizes:
                users = ", ".join(user.name for user in node.users if (self.stage_of[user] or 0) >= number)
                raise ValueError(
                    f"stage {number} begins where the module's code ({users}) needs a size of a tensor of an earlier stage, and "
                    "stages give each other tensors alone; take fewer stages a rank or another number of stages, so that they "
                    "begin between blocks"
                )
        return found

    def stage(self) -> StageText:
        arriving = self.arrives(self.number)
        self.written.update(arriving)
        for node in self.nodes:
            if self.stage_of[node] == self.number and node.op != "output":
                self._write(node)
        if self.number == self.count - 1:
            for node in self.result.all_input_nodes:
                self._write(node)
            returned = _text(self.result.args[0])
        else:
            leaving = self.arrives(self.number + 1)
            returned = ", ".join(node.name for node in leaving)
        taken = ", ".join(["part", *(node.name for node in arriving), *self.inputs])
        body = "\n    ".join([*self.lines, f"return {returned}"])
        return StageText(
            f"def stage_{self.number}({taken}):\n    {body}\n", tuple(dict.fromkeys(self.parts)), tuple(self.inputs),
            tuple(node.name for node in arriving),
        )

    def _write(self, node: Any) -> None:
        if node in self.written:
            return
        self.written.add(node)
        for before in node.all_input_nodes:
            self._write(before)
        if node.op == "placeholder":
            self.inputs.append(node.name)
            return
        arguments = [_text(value) for value in node.args] + [f"{key}={_text(value)}" for key, value in node.kwargs.items()]
        if node.op == "call_module":
            self.parts.append(node.target)
            called = f'part.get_submodule("{node.target}")({", ".join(arguments)})'
        elif node.op == "get_attr":
            self.parts.append(node.target)
            called = f'held(part, "{node.target}")'
        elif node.op == "call_method":
            called = f"{arguments[0]}.{node.target}({', '.join(arguments[1:])})"
        else:
            called = f"{_function(node.target)}({', '.join(arguments)})"
        self.lines.append(f"{node.name} = {called}")


def _function(target: Callable[..., Any]) -> str:
    from torch.fx.node import _get_qualified_name

    if getattr(target, "__module__", "") == "builtins" or target is getattr:
        return target.__name__
    return _get_qualified_name(target).removeprefix("_")


class _Name:
    def __init__(self, name: str) -> None:
        self.name = name

    def __repr__(self) -> str:
        return self.name


def _text(value: Any) -> str:
    """An argument as code."""
    import torch
    from torch.fx.node import map_aggregate

    def named(leaf: Any) -> Any:
        if isinstance(leaf, torch.fx.Node):
            return _Name(leaf.name)
        if isinstance(leaf, torch.device):  # that of the module when it was looked at
            return _Name("here(part)")
        return _Name(f'float("{leaf}")') if isinstance(leaf, float) and not isfinite(leaf) else leaf

    every: Any = map_aggregate
    return repr(every(value, named))
