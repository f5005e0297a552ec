"""Registry: which function of ours stands for a function of torch, and how its arguments become tensors of the graph."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, cast

import numpy as np
import torch
from torch.nn import functional as F

from taskflow import operators as ops
from taskflow.graph import OperatorGraph
from taskflow.models.pytorch.site import Held, Site, Unsupported, require, started
from taskflow.models.pytorch.steps import Fixed
from taskflow.operators.constant import ConstantArray
from taskflow.operators.tensor import Builder, Tensor

Function = Callable[..., Any]
FUNCTIONS: dict[Any, Function] = {}
"""For each function of torch a function of the operator's name and the arguments. It names every argument that it understands:
others are refused as Python refuses them."""
RAW: set[Function] = set()
"""Those that are given parameters (`Held`) and fixed tensors (`Fixed`) as they are; others get tensors of the graph."""


def stands_for(*names: str, raw: bool = False) -> Callable[[Function], Function]:
    """Decorator: the function stands for those of these names in torch, torch.Tensor and torch.nn.functional (``.T``: a
    property)."""

    def add(function: Function) -> Function:
        for name in names:
            if name.startswith("."):
                FUNCTIONS[getattr(torch.Tensor, name[1:]).__get__] = function
                continue
            found = [getattr(space, name) for space in (torch, torch.Tensor, F) if hasattr(space, name)]
            if not found:
                raise AssertionError(f"torch has no {name}")
            FUNCTIONS.update(dict.fromkeys(found, function))
        if raw:
            RAW.add(function)
        return function

    return add


def graph_of(*values: Any) -> Builder:
    """Return the graph to which some of the values belong."""
    for value in values:
        if isinstance(value, (tuple, list)):
            value = next((part for part in value if isinstance(part, (Tensor, Held, Stacked))), None)
        if isinstance(value, Stacked):
            value = value.parts[0]
        if isinstance(value, Tensor):
            return value.graph
        if isinstance(value, Held):
            return value.site.graph
    raise AssertionError("one argument depends on inputs or parameters")


@dataclass(frozen=True, slots=True, eq=False)
class Stacked:
    """Tensors of one shape along a new first dimension, such as the last states of an LSTM's layers, or queries, keys and values of
    one product. They are only put together where they are used together: the result has samples in its second dimension, so that
    no micro-batches can go on from it."""

    parts: tuple[Tensor, ...]

    @property
    def shape(self) -> tuple[int, ...]:
        return (len(self.parts), *self.parts[0].shape)


def tensor_of(value: Any, graph: Builder, name: str) -> Any:
    """Return a parameter, a fixed tensor, or what is stacked, as a tensor of the graph; other values are unchanged. Fixed floats
    get the graph's type."""
    if isinstance(value, Stacked):
        each = [ops.reshape(tensor, (1, *tensor.shape), name=f"{name}.each") for tensor in value.parts]
        return each[0] if len(each) == 1 else ops.concat(each, 0, name=f"{name}.stacked")
    if isinstance(value, Held):
        at = value.site
        whole = value.shape or (1,)
        made = ops.expand_weight(
            graph, value.shape, whole, init=started(value.tensor), name=at.name, parameters=at.shared(value.tensor)
        )
        return ops.reshape(at.own(made, value.tensor), value.shape, name=f"{at.name}.value") if not value.shape else (
            at.own(made, value.tensor)
        )
    return constant_of(value, graph, name) if isinstance(value, Fixed) else value


def constant_of(value: Fixed, graph: Builder, name: str) -> Tensor:
    """Return a fixed tensor as an operator of the graph."""
    array = array_of(value)
    array = array.astype(graph.dtype) if array.dtype.kind == "f" else array
    made = constant(graph, array, value.name or f"{name}.constant")
    return made if array.shape else ops.reshape(made, (), name=f"{made.name}.value")


def constant(graph: Builder, array: Any, name: str) -> Tensor:
    """Return an array as an operator of the graph, which is reused if it exists; a single number as (1,)."""
    operator = ConstantArray.of(array.reshape(array.shape or (1,)))
    for node in cast(OperatorGraph, graph).nodes:
        if node.operator == operator:
            return node.outputs[0]
    return graph.apply(operator, (), name=name)[0]


def array_of(value: Fixed) -> np.ndarray[Any, Any]:
    """Return the numbers of a fixed tensor."""
    require(not value.tensor.is_meta, f"{value.name or 'a fixed tensor'} is on the device meta, which keeps no numbers")
    if value.tensor.dtype is torch.bfloat16:
        raise Unsupported(f"{value.name or 'a fixed tensor'} is bfloat16, which numpy does not have")
    return np.asarray(value.tensor.detach().cpu().resolve_conj().resolve_neg().numpy())


def number_of(value: Any) -> float | None:
    """Return a number, possibly from a fixed tensor without dimensions; None for anything else."""
    if isinstance(value, Fixed) and value.tensor.ndim == 0 and not value.tensor.is_complex():
        require(not value.tensor.is_meta, f"{value.name or 'a fixed tensor'} is on the device meta, which keeps no numbers")
        return float(value.tensor)
    return float(value) if isinstance(value, (int, float)) else None


def layer_site(name: str, x: Tensor) -> Site:
    """Return the site of a function that is turned into operators like a layer."""
    return Site(name, cast(OperatorGraph, x.graph))
