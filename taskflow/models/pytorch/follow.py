"""Follow a PyTorch module with torch.fx, and add the operators that compute the same."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import nn
from torch.fx import GraphModule, symbolic_trace
from torch.fx.node import map_arg

from taskflow import operators as ops
from taskflow.graph import OperatorGraph
from taskflow.models.pytorch.functions import METHODS, called, has_counterpart, is_tuple, takes_parameters
from taskflow.models.pytorch.modules import LAYERS
from taskflow.models.pytorch.site import Held, Site, require
from taskflow.operators.tensor import Parameter, Tensor

MOST_NAMED = 8  # of what has no counterpart


def follow(module: Any, examples: Sequence[Any], title: str) -> tuple[OperatorGraph, Any]:
    """The graph of a module, called ``title``, and what stands for its output; arguments and errors as `from_torch` has them."""
    if not isinstance(module, torch.nn.Module):
        raise ValueError(f"from_torch: module must be a torch.nn.Module, got {type(module).__name__}")
    try:
        traced = symbolic_trace(module)
    except Exception as error:  # whatever the module's code raises when it meets what is no tensor
        raise ValueError(
            f"from_torch: torch.fx cannot follow {title} ({type(error).__name__}: {str(error).splitlines()[0]}); its forward "
            "must not depend on numbers in tensors, only on shapes"
        ) from error
    dtype = next((p.dtype for p in module.parameters() if p.is_floating_point()), torch.float32)
    graph = OperatorGraph(str(dtype).removeprefix("torch."), title)
    return graph, _Following(graph, traced, examples).result()


class _Following:
    """One walk over what torch.fx saw."""

    def __init__(self, graph: OperatorGraph, traced: GraphModule, examples: Sequence[Any]) -> None:
        self.graph, self.traced, self.examples = graph, traced, list(examples)
        self.known: dict[int, Parameter] = {}
        self.values: dict[str, Any] = {}
        self.paths = {name for name, _ in (*traced.named_modules(), *traced.named_parameters())}

    def result(self) -> Any:
        """The module's output. Raises ValueError that lists what has no counterpart."""
        self._require_counterparts()
        for node in self.traced.graph.nodes:
            try:
                self.values[node.name] = self._value(node)
            except (ValueError, TypeError) as error:  # of what is not supported, of operators, of arguments that a function has not
                raise ValueError(f"from_torch: {self.graph.name}: {_where(node)}: {error}") from error
            if node.op == "output":
                return self.values[node.name]
        raise AssertionError("a traced module has an output")

    def _require_counterparts(self) -> None:
        missing: dict[tuple[str, str], list[str]] = {}  # what it is: where
        for node in self.traced.graph.nodes:
            where = _where(node)
            if node.op == "call_module":
                kind = type(self.traced.get_submodule(node.target))
                if kind not in LAYERS:
                    missing.setdefault((kind.__name__, ""), []).append(where)
            elif node.op == "call_method" and node.target not in METHODS:
                missing.setdefault(("a tensor's method", where), []).append(where)
            elif node.op == "call_function" and not has_counterpart(node.target):
                missing.setdefault(("a function", where), []).append(where)
            elif node.op == "get_attr" and not isinstance(_attribute(self.traced, where), nn.Parameter):
                missing.setdefault(("a buffer, used outside of a layer", where.rpartition(".")[2]), []).append(where)
        if missing:
            said = [
                f"{places[0]} ({what}{f', {len(places)} times' if len(places) > 1 else ''})"
                for (what, _), places in missing.items()
            ]
            more = f" and {len(said) - MOST_NAMED} more kinds" if len(said) > MOST_NAMED else ""
            raise ValueError(
                f"from_torch: {self.graph.name}: no counterpart for {', '.join(said[:MOST_NAMED])}{more}; replace it in the "
                "module by what docs/guide/pytorch.md lists, or build the network with taskflow's operators"
            )

    def _value(self, node: Any) -> Any:
        if node.op == "placeholder":
            return self._input(node)
        if node.op == "get_attr":
            return Held(Site(node.target, self.graph, self.known), _attribute(self.traced, node.target))
        args, options = map_arg((node.args, node.kwargs), lambda n: self.values[n.name])
        if node.op == "output":
            return args[0]
        if node.op == "call_module":
            module = self.traced.get_submodule(node.target)
            return LAYERS[type(module)](Site(node.target, self.graph, self.known), module, *args, **options)
        if not any_of((Tensor, Held), (args, options)) or is_tuple(node.target):  # sizes and the like, in plain numbers
            method = node.op == "call_method"
            return getattr(args[0], node.target)(*args[1:], **options) if method else node.target(*args, **options)
        if any_of(Held, (args, options)):
            require(takes_parameters(node.target), "does not take a parameter that is used outside of a layer")
        return called(node.target)(self._free(node.name), *args, **options)

    def _free(self, name: str) -> str:
        """A name for what is no layer: weights are found by the layers' names, which nothing else may take."""
        return f"{name}_in" if name in self.paths else name

    def _input(self, node: Any) -> Any:
        """An argument of ``forward``: an input of the graph, or its default."""
        if not self.examples:
            if node.args:
                return node.args[0]
            raise ValueError("there is no example for this argument; give its shape, or a tensor like those of the steps")
        example = self.examples.pop(0)
        if example is None:
            return None
        shape = tuple(getattr(example, "shape", example))
        dtype = str(example.dtype).removeprefix("torch.") if hasattr(example, "dtype") else None
        return ops.input(self.graph, shape, dtype, name=self._free(str(node.target)))


def any_of(kind: Any, value: Any) -> bool:
    """True if a value of this kind is in a nest of containers."""
    if isinstance(value, dict):
        return any(any_of(kind, part) for part in value.values())
    if isinstance(value, (tuple, list)):
        return any(any_of(kind, part) for part in value)
    return isinstance(value, kind)


def _attribute(traced: GraphModule, path: str) -> Any:
    """The parameter or buffer at a path."""
    module, _, name = path.rpartition(".")
    return getattr(traced.get_submodule(module), name)


def _where(node: Any) -> str:
    named = node.op in ("call_module", "call_method", "get_attr")
    return str(node.target) if named else str(getattr(node.target, "__name__", node.target))
