"""Registry: which function of ours stands for a function of torch, and how its arguments become tensors of the graph."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, cast
from weakref import WeakKeyDictionary

import numpy as np
import torch
from torch.nn import functional as F

from taskflow import operators as ops
from taskflow.floats import float_type, is_float
from taskflow.graph import OperatorGraph
from taskflow.models.pytorch.recipes import (
    LARGE,
    ByParts,
    Recipe,
    block,
    derived,
    lacks_numbers,
    numpy_of,
    varies,
    whole,
)
from taskflow.models.pytorch.site import Held, Site, require, started
from taskflow.models.pytorch.steps import Fixed
from taskflow.models.pytorch.weight_norm import Normed
from taskflow.operators.constant import ConstantArray
from taskflow.operators.tensor import Builder, Tensor

Function = Callable[..., Any]
FUNCTIONS: dict[Any, Function] = {}
"""For each function of torch a function of the operator's name and the arguments. It names every argument that it understands:
others are refused as Python refuses them."""
SPACES = (torch, torch.Tensor, F, torch.special)
"""Where functions of one name do the same."""
RAW: set[Function] = set()
"""Those that are given parameters (`Held`) and fixed tensors (`Fixed`) as they are; others get tensors of the graph."""
SWAPPED: set[Function] = set()
"""Those of them that also take tensors that are to be swapped (`Later`)."""


def stands_for(*names: str, raw: bool = False, later: bool = False) -> Callable[[Function], Function]:
    """Decorator: the function stands for those of these names in `SPACES` (``.T``: a property). ``raw``: it is in
    `RAW`; ``later``: also in `SWAPPED`."""

    def add(function: Function) -> Function:
        for name in names:
            if name.startswith("."):
                FUNCTIONS[getattr(torch.Tensor, name[1:]).__get__] = function
                continue
            found = [getattr(space, name) for space in SPACES if hasattr(space, name)]
            if not found:
                raise AssertionError(f"torch has no {name}")
            FUNCTIONS.update(dict.fromkeys(found, function))
        if raw or later:
            RAW.add(function)
        if later:
            SWAPPED.add(function)
        return function

    return add


def graph_of(*values: Any) -> Builder:
    """Return the graph to which some of the values belong."""
    for value in values:
        if isinstance(value, (tuple, list)):
            value = next((part for part in value if isinstance(part, (Tensor, Held, Stacked, *Lazy))), None)
        value = origin_tensor(value.parts[0] if isinstance(value, Stacked) else value)
        if isinstance(value, Tensor):
            return value.graph
        if isinstance(value, Held):
            return value.site.graph
    raise AssertionError("one argument depends on inputs or parameters")


@dataclass(frozen=True, slots=True, eq=False)
class Stacked:
    """Tensors of one shape along a new first dimension, such as the last states of an LSTM's layers, or queries, keys and values of
    one product. They are only put together where they are used together."""

    parts: tuple[Tensor, ...]

    @property
    def shape(self) -> tuple[int, ...]:
        return (len(self.parts), *self.parts[0].shape)


@dataclass(slots=True, eq=False)
class Once(ABC):
    """What becomes an operator only where somebody needs it as one, and then is that operator for all."""

    cached: Tensor | None = field(default=None, init=False, repr=False)

    @abstractmethod
    def build(self) -> Tensor:
        """Build the operator."""

    def tensor(self) -> Tensor:
        """Return it as a tensor: one operator, however often it is asked for."""
        if self.cached is None:
            self.cached = self.build()
        return self.cached


@dataclass(slots=True, eq=False)
class Later(Once):
    """``base`` with two dimensions swapped, which is only done where somebody needs it so: attention has heads behind steps, and
    PyTorch's before them."""

    base: Tensor
    dims: tuple[int, int]
    name: str

    @property
    def shape(self) -> tuple[int, ...]:
        """Sizes after the swap."""
        sizes, (a, b) = list(self.base.shape), self.dims
        sizes[a], sizes[b] = sizes[b], sizes[a]
        return tuple(sizes)

    def build(self) -> Tensor:
        return ops.transpose(self.base, *self.dims, name=self.name)


@dataclass(slots=True, eq=False)
class Again(Once):
    """Keys or values (N, G, T, D), of which each head is for ``times`` heads of queries: they are only repeated where attention
    does not know groups."""

    base: Tensor | Later
    times: int
    name: str

    @property
    def shape(self) -> tuple[int, ...]:
        """Sizes with the heads repeated."""
        samples, groups, *rest = self.base.shape
        return (samples, groups * self.times, *rest)

    def build(self) -> Tensor:
        x = in_order(self.base)
        each = ops.reshape(x, (*x.shape[:2], 1, *x.shape[2:]), name=f"{self.name}.each")
        again = ops.expand(each, (*x.shape[:2], self.times, *x.shape[2:]), name=f"{self.name}.again")
        return ops.reshape(again, self.shape, name=self.name)


@dataclass(frozen=True, slots=True, eq=False)
class Hides:
    """Zeros, and minus infinity where ``base``, zeros and ones, is 1: a mask that is added to scores. ``lowest`` stands for the
    infinity."""

    base: Tensor
    lowest: float
    name: str

    @property
    def shape(self) -> tuple[int, ...]:
        """Sizes of the mask."""
        return self.base.shape

    def tensor(self) -> Tensor:
        """Return the numbers to be added."""
        return ops.scale(self.base, self.lowest, name=self.name)


@dataclass(frozen=True, slots=True, eq=False)
class Patches:
    """An array of which parts along one dimension have been written: ``parts`` by where they begin. With a ``step`` each has every
    so-manieth element."""

    shape: tuple[int, ...]
    dim: int
    parts: dict[int, Tensor]
    name: str
    step: int = 1

    @property
    def base(self) -> Tensor:
        """Some part."""
        return next(iter(self.parts.values()))

    def tensor(self) -> Tensor:
        """Return the whole. Raises Unsupported if some of it has never been written."""
        if self.step > 1:
            return self._in_turn()
        at = 0
        for start in sorted(self.parts):
            require(start == at, f"elements {at} to {start} of dimension {self.dim} are read, but never written")
            at = start + self.parts[start].shape[self.dim]
        require(at == self.shape[self.dim], f"elements from {at} on of dimension {self.dim} are read, but never written")
        each = [self.parts[start] for start in sorted(self.parts)]
        return each[0] if len(each) == 1 else ops.concat(each, self.dim, name=self.name)

    def _in_turn(self) -> Tensor:
        """The whole of parts that take turns along the dimension."""
        dim, count = self.dim, -(-self.shape[self.dim] // self.step)
        whole = all(
            start in self.parts and self.parts[start].shape[dim] == len(range(start, self.shape[dim], self.step))
            for start in range(self.step)
        )
        require(whole, f"some of every {self.step} elements of dimension {dim} are read, but never written")
        rows = []
        for start in range(self.step):
            one = self.parts[start]
            if one.shape[dim] < count:  # the last row is not whole
                one = ops.pad(one, (*[0] * (2 * (one.ndim - 1 - dim)), 0, 1), name=f"{self.name}.longer{start}")
            rows.append(ops.reshape(one, (*one.shape[:dim], count, 1, *one.shape[dim + 1 :]), name=f"{self.name}.each{start}"))
        joined = ops.concat(rows, dim + 1, name=f"{self.name}.rows")
        longer = (*self.shape[:dim], count * self.step, *self.shape[dim + 1 :])
        result = ops.reshape(joined, longer, name=self.name)
        return result if longer == self.shape else ops.narrow(result, dim, 0, self.shape[dim], name=f"{self.name}.first")


@dataclass(slots=True, eq=False)
class TurnedWeight(Once):
    """``base``, a parameter of two dimensions, with these swapped. A product with it is a linear layer."""

    base: Held
    name: str

    @property
    def shape(self) -> tuple[int, ...]:
        """Sizes after the swap."""
        return self.base.shape[::-1]

    def build(self) -> Tensor:
        return ops.transpose(tensor_of(self.base, self.base.site.graph, self.name), 0, 1, name=self.name)


Lazy = (Later, Again, Hides, Patches, Normed, TurnedWeight)


def origin_tensor(value: Any) -> Any:
    """Return the tensor that a value is made of, if it is made later."""
    while isinstance(value, Lazy):
        value = value.base
    return value


def in_order(value: Any) -> Any:
    """Return what is to be swapped or repeated as a tensor; other values are unchanged."""
    return value.tensor() if isinstance(value, Lazy) else value


def swapped(value: Any, dim0: int, dim1: int, name: str) -> Tensor:
    """Return a value with two dimensions swapped; what was swapped so is as it was."""
    if isinstance(value, Later) and {dim0 % len(value.shape), dim1 % len(value.shape)} == {*value.dims}:
        return value.base
    return ops.transpose(in_order(value), dim0, dim1, name=name)


def tensor_of(value: Any, graph: Builder, name: str) -> Any:
    """Return a parameter, a fixed tensor, or what is stacked or swapped, as a tensor of the graph; other values are unchanged."""
    value = in_order(value)
    if isinstance(value, Stacked):
        each = [ops.reshape(tensor, (1, *tensor.shape), name=f"{name}.each") for tensor in value.parts]
        return each[0] if len(each) == 1 else ops.concat(each, 0, name=f"{name}.stacked")
    if isinstance(value, Held):
        given = value.kept or value.shape
        held = value.site.build(ops.expand_weight, [value.tensor], graph, given, given or (1,), init=started(value.tensor))
        return held if given == value.shape != () else ops.reshape(held, value.shape, name=f"{value.site.name}.value")
    return constant_of(value, graph, name) if isinstance(value, Fixed) else value


def constant_of(value: Fixed, graph: Builder, name: str) -> Tensor:
    """Return a fixed tensor as an operator of the graph. A large one stays as it is computed."""
    known = _FIXED.setdefault(graph, {})
    if id(value) not in known:
        known[id(value)] = value, _constant_of(value, graph, name)
    return known[id(value)][1]


def _constant_of(value: Fixed, graph: Builder, name: str) -> Tensor:
    if is_recipe(value) and value.tensor.numel() > LARGE:
        dtype = float_type(name_of_type(value.tensor.dtype)) if value.tensor.is_floating_point() else np.dtype(np.int64)
        return constant_by_parts(graph, value.recipe, dtype, f"{name}.constant")
    array = array_of(value)
    array = array.astype(np.int64) if array.dtype.kind in "iu" else array  # as inputs beside which it stands
    result = constant(graph, array, value.name or f"{name}.constant")
    return result if array.shape else ops.reshape(result, (), name=f"{result.name}.value")


def constant(graph: Builder, array: Any, name: str) -> Tensor:
    """Return an array as an operator of the graph, which is reused if it exists; a single number as (1,)."""
    return _once(graph, ConstantArray.of(array.reshape(array.shape or (1,))), name)


def constant_by_parts(graph: Builder, recipe: Recipe, dtype: np.dtype[Any], name: str) -> Tensor:
    """Return what a recipe computes as an operator of the graph, which computes each part when it is needed."""
    return _once(graph, ConstantArray(recipe.shape, dtype, f"{recipe.digest()}", ByParts(recipe, dtype)), name)


def _once(graph: Builder, operator: ConstantArray, name: str) -> Tensor:
    known = _CONSTANTS.setdefault(graph, {})
    if operator not in known:
        known[operator] = graph.apply(operator, (), name=name)[0]
    return known[operator]


_FIXED: WeakKeyDictionary[Any, dict[int, tuple[Fixed, Tensor]]] = WeakKeyDictionary()
_CONSTANTS: WeakKeyDictionary[Any, dict[ConstantArray, Tensor]] = WeakKeyDictionary()


def once_of(value: Fixed) -> Any:
    """Return a fixed tensor, or its recipe, with one element in each dimension but the last two along which it repeats itself, such
    as a mask that is the same for all samples."""
    source: Any = value.recipe or value.tensor
    dims = len(source.shape)
    for dim in range(dims - 2):
        if source.shape[dim] > 1 and not varies(source, dim - dims):
            source = derived(torch.Tensor.__getitem__, source, (slice(None),) * dim + (slice(0, 1),))
    return source


def fixed_of(source: Any) -> Fixed:
    """Return a recipe, or a tensor, as a fixed tensor."""
    return Fixed(source.tensor, 0, "", source) if isinstance(source, Recipe) else Fixed(source, 0)


def is_recipe(value: Fixed) -> bool:
    """True for a fixed tensor of which there are no numbers, but how they are computed."""
    return value.recipe is not None and lacks_numbers(value.tensor)


def array_of(value: Fixed) -> np.ndarray[Any, Any]:
    """Return the numbers of a fixed tensor."""
    if is_recipe(value):
        return numpy_of(whole(value.recipe))
    require(not value.tensor.is_meta, f"{value.name or 'a fixed tensor'} is on the device meta, which keeps no numbers")
    return numpy_of(value.tensor)


def only_number(value: Any) -> Any:
    """Return the number that a fixed tensor has everywhere, which a large one need not be computed for; None for anything else."""
    if not isinstance(value, Fixed) or not value.tensor.numel():
        return None
    if is_recipe(value):
        rank = value.tensor.ndim
        alike = not any(varies(value.recipe, -dim) for dim in range(1, rank + 1))
        return block(value.recipe, [(0, 1)] * rank).item() if alike else None
    array = array_of(value)
    return array.flat[0].item() if bool((array == array.flat[0]).all()) else None


def name_of_type(dtype: torch.dtype) -> str:
    """Return the name that numpy has for a type of PyTorch's."""
    return str(dtype).removeprefix("torch.")


def lowest_of(dtype: np.dtype[Any]) -> float:
    """Return the lowest finite number of a float type; 0 for others."""
    return float(torch.finfo(getattr(torch, str(dtype))).min) if is_float(dtype) else 0.0


def least_step(dtype: np.dtype[Any]) -> float:
    """Return a float type's distance from 1 to the next number: the eps of PyTorch's layers that are given none."""
    return float(torch.finfo(getattr(torch, str(dtype))).eps)


def number_of(value: Any) -> float | None:
    """Return a number, possibly from a fixed tensor without dimensions; None for anything else."""
    if isinstance(value, Fixed) and value.tensor.ndim == 0 and not value.tensor.is_complex():
        require(not value.tensor.is_meta, f"{value.name or 'a fixed tensor'} is on the device meta, which keeps no numbers")
        return float(value.tensor)
    return float(value) if isinstance(value, (int, float)) else None


def layer_site(name: str, x: Tensor) -> Site:
    """Return the site of a function that is turned into operators like a layer."""
    return Site(name, cast(OperatorGraph, x.graph))
