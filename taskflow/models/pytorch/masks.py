"""Masks that forward computes from inputs: which tokens are padding, which positions belong together."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

from taskflow import operators as ops
from taskflow.graph import OperatorGraph
from taskflow.models.pytorch.calls import TO_FLOAT
from taskflow.models.pytorch.recipes import derived
from taskflow.models.pytorch.registry import (
    FUNCTIONS,
    Hides,
    constant,
    constant_of,
    fixed_of,
    name_of_type,
    number_of,
    once_of,
    only_number,
    tensor_of,
)
from taskflow.models.pytorch.scattering import hits, scattered_entries
from taskflow.models.pytorch.site import Unsupported, require
from taskflow.models.pytorch.steps import Fixed, leaves, mapped
from taskflow.operators.tensor import Tensor


def lowest_score(dtype: np.dtype[Any]) -> float:
    """Return what stands for minus infinity in scores, whose exponential is 0 beside any real score's: a product with 0 is 0."""
    return -1e9 if dtype.itemsize > 2 or str(dtype) == "bfloat16" else -3e4


@dataclass(frozen=True, slots=True, eq=False)
class Mask:
    """Boolean tensor of PyTorch's, represented by floats: 1 for True and 0 for False."""

    tensor: Tensor


@dataclass(slots=True, eq=False)
class Side:
    """Boolean tensor of PyTorch's: where floats ``tensor`` are in a ``relation`` to a ``number``. `where` takes it as it is, all
    else takes its `Mask`, which is built when it is first asked for."""

    tensor: Tensor
    relation: str
    number: float
    name: str
    made: Mask | None = field(default=None, init=False, repr=False)

    @property
    def shape(self) -> tuple[int, ...]:
        """Sizes."""
        return self.tensor.shape

    def mask(self) -> Mask:
        """Return it as a mask: one operator, however often it is asked for."""
        if self.made is None:
            self.made = Mask(ops.compare(self.tensor, self.relation, self.number, name=self.name))
        return self.made


Handler = Callable[..., Any]
OF_MASKS: dict[Any, Handler] = {}
"""What functions of torch do where an argument is a `Mask`, or where they make one."""


def says(*names: str) -> Callable[[Handler], Handler]:
    """Let a handler stand for functions and methods of torch of these names where masks are among their arguments."""

    def add(handler: Handler) -> Handler:
        found = [getattr(space, name) for space in (torch, torch.Tensor) for name in names if hasattr(space, name)]
        OF_MASKS.update(dict.fromkeys(found, handler))
        return handler

    return add


def makes_mask(target: Any, args: Any, kwargs: Any) -> bool:
    """True for a call that involves masks: an argument is one, or the function returns one."""
    asked = torch.bool in [leaf for leaf in leaves((args, kwargs)) if isinstance(leaf, torch.dtype)]
    return any(isinstance(leaf, (Mask, Side)) for leaf in leaves((args, kwargs))) or target in MAKERS or (
        asked and target in (torch.Tensor.to, torch.Tensor.type)
    )


def masked_call(target: Any, name: str, graph: OperatorGraph, args: Any, kwargs: Any) -> Any:
    """Return the result of a function of masks: a mask, or a tensor. Raises Unsupported for functions that are not understood."""
    if OF_MASKS.get(target) not in (chosen, filled):
        args, kwargs = mapped(_as_mask, args), mapped(_as_mask, kwargs)
    if target in OF_MASKS:
        return OF_MASKS[target](graph, name, *args, **kwargs)
    if getattr(target, "__name__", "") in MOVING and args and isinstance(args[0], Mask):
        return mapped(Mask, FUNCTIONS[target](name, args[0].tensor, *args[1:], **kwargs))
    raise Unsupported("a mask that is computed from inputs is not understood here; make a float tensor of it (mask.to(x.dtype))")


def _as_mask(value: Any) -> Any:
    return value.mask() if isinstance(value, Side) else value


def as_floats(graph: OperatorGraph, name: str, value: Any) -> Tensor | float:
    """Return a mask, a fixed tensor or a number as zeros and ones."""
    if isinstance(value, Mask):
        return value.tensor
    if isinstance(value, bool):
        return float(value)
    if isinstance(value, Fixed) and value.tensor.dtype is torch.bool:
        numbers = derived(torch.Tensor.to, value.recipe or value.tensor, getattr(torch, str(graph.dtype)))
        return constant_of(fixed_of(numbers), graph, name)
    raise Unsupported(f"must be truth values, got {type(value).__name__}")


# ---- comparisons -----------------------------------------------------------------------------------------------------------


def _compared(relation: str) -> Handler:
    def built(graph: OperatorGraph, name: str, input: Any, other: Any) -> Mask | Side:
        if isinstance(input, Mask) or isinstance(other, Mask):
            input, other = (value if number_of(value) is not None else as_floats(graph, name, value) for value in (input, other))
        number = number_of(other)
        x = tensor_of(input, graph, name)
        if number is not None:
            require(x.spec.differentiable or number == int(number), "integers are compared with whole numbers only")
            side = Side(x, relation, number, name)
            return side if x.spec.differentiable else side.mask()
        both = [x, tensor_of(other, graph, name)]
        floats = [value.dtype for value in both if value.spec.differentiable]
        if floats:
            widest = max(floats, key=lambda dtype: dtype.itemsize)
            both = [as_type(value, widest, f"{name}.{at}") for at, value in zip(("first", "second"), both)]
        return Mask(ops.compare(both[0], relation, both[1], name=name))

    return built


def as_type(x: Tensor, dtype: np.dtype[Any], name: str) -> Tensor:
    """Return floats or integers as floats of a type; what has it is unchanged."""
    return ops.cast(x, dtype, name=name) if x.spec.differentiable else ops.to_float(x, str(dtype), name=name)


for _relation in ("eq", "ne", "lt", "le", "gt", "ge"):
    says(_relation, f"__{_relation}__")(_compared(_relation))
for _name, _relation in (("not_equal", "ne"), ("less", "lt"), ("less_equal", "le"), ("greater", "gt"), ("greater_equal", "ge")):
    says(_name)(_compared(_relation))


# ---- logic -----------------------------------------------------------------------------------------------------------------


@says("logical_and", "bitwise_and", "__and__", "__rand__", "__iand__")
def both(graph: OperatorGraph, name: str, input: Any, other: Any) -> Mask:
    """Logical and."""
    shapes = [tuple(getattr(value, "tensor", value).shape) for value in (input, other) if not isinstance(value, bool)]
    input, other = (fixed_of(once_of(value)) if isinstance(value, Fixed) else value for value in (input, other))
    a, b = as_floats(graph, name, input), as_floats(graph, name, other)
    if isinstance(a, float) or isinstance(b, float):
        x, number = (b, a) if isinstance(a, float) else (a, b)
        return Mask(ops.scale(x, number, name=name))  # type: ignore[arg-type]
    result, shape = ops.mul(a, b, name=name), np.broadcast_shapes(*shapes)
    return Mask(result if result.shape == shape else ops.expand(result, shape, name=f"{name}.all"))


@says("logical_not", "bitwise_not", "__invert__")
def opposite(graph: OperatorGraph, name: str, input: Any) -> Mask:
    """Logical not."""
    return Mask(ops.shift(ops.scale(input.tensor, -1.0, name=f"{name}.minus"), 1.0, name=name))


@says("logical_or", "bitwise_or", "__or__", "__ror__", "__ior__")
def either(graph: OperatorGraph, name: str, input: Any, other: Any) -> Mask:
    """Logical or: not both are false."""
    turned = [opposite_of(graph, f"{name}.{at}", value) for at, value in (("first", input), ("second", other))]
    result: Mask = opposite(graph, name, both(graph, f"{name}.neither", *turned))
    return result


def opposite_of(graph: OperatorGraph, name: str, value: Any) -> Any:
    """Return what is True where a mask, fixed truth values or one of them is not."""
    if isinstance(value, Fixed):
        require(value.tensor.dtype is torch.bool, "must be truth values")
        return Fixed(~value.tensor, 0)
    return not value if isinstance(value, bool) else opposite(graph, name, value)


# ---- types -----------------------------------------------------------------------------------------------------------------


@says("to", "type")
def converted(graph: OperatorGraph, name: str, input: Any, *args: Any, **options: Any) -> Any:
    """Convert integers to truth values, or truth values to zeros and ones; the result's type is compared with PyTorch's."""
    kinds = [value for value in (*args, *options.values()) if isinstance(value, torch.dtype)]
    if isinstance(input, Mask):
        if kinds and not kinds[0].is_floating_point and kinds[0] is not torch.bool:
            return counted(graph, name, input)
        return input if not kinds or kinds[0] is torch.bool else ops.cast(input.tensor, name_of_type(kinds[0]), name=name)
    return Side(input, "ne", 0, name) if input.spec.differentiable else Mask(ops.compare(input, "ne", 0, name=name))


@says("bool")
def truth(graph: OperatorGraph, name: str, input: Any) -> Any:
    """Return truth values of integers: True for those that are not 0."""
    return converted(graph, name, input, torch.bool)


@says("int", "long")
def counted(graph: OperatorGraph, name: str, input: Any) -> Any:
    """Return truth values as integers, 1 and 0."""
    return ops.to_integer(input.tensor, name=name)


@says("cumsum")
def counts(graph: OperatorGraph, name: str, input: Any, dim: int, *, dtype: Any = None) -> Any:
    """Return how many there are up to each one."""
    return ops.cumsum(counted(graph, f"{name}.integers", input), dim, name=name)


@says("type_as")
def like(graph: OperatorGraph, name: str, input: Any, other: Any) -> Any:
    """Return truth values as zeros and ones in the type of another tensor."""
    own = tensor_of(other, graph, name)
    return ops.cast(input.tensor, own.dtype, name=name) if own.spec.differentiable else counted(graph, name, input)


@says("sum")
def number_of_true(
    graph: OperatorGraph, name: str, input: Any, dim: Any = None, keepdim: bool = False, *, dtype: Any = None
) -> Any:
    """Return how many are True along some dimensions, as integers unless another type is asked for."""
    total = ops.sum(input.tensor, None if dim in ((), []) else dim, keepdim, name=f"{name}.floats")
    floats = dtype is not None and dtype.is_floating_point
    return ops.cast(total, name_of_type(dtype), name=name) if floats else ops.to_integer(total, name=name)


@says("any")
def any_true(graph: OperatorGraph, name: str, input: Any, dim: Any = None, keepdim: bool = False) -> Mask:
    """Return whether some are True along some dimensions."""
    return Mask(ops.amax(input.tensor, dim, keepdim, name=name))


@says("all")
def all_true(graph: OperatorGraph, name: str, input: Any, dim: Any = None, keepdim: bool = False) -> Mask:
    """Return whether all are True along some dimensions."""
    return Mask(ops.amax(input.tensor, dim, keepdim, least=True, name=name))


@says(*TO_FLOAT)
def numbers(graph: OperatorGraph, name: str, input: Any) -> Any:
    """Return zeros and ones for truth values, in the type that the function is named by."""
    asked = next(kind for what, kind in TO_FLOAT.items() if name.rpartition(".")[2].rstrip("0123456789_") == what)
    return ops.cast(input.tensor, name_of_type(asked), name=name)


@says("contiguous", "clone", "detach", "cpu", "cuda")
def unchanged(graph: OperatorGraph, name: str, input: Any, *args: Any, **options: Any) -> Any:
    """Return the same truth values."""
    return input


# ---- use -------------------------------------------------------------------------------------------------------------------


@says("masked_fill", "masked_fill_")
def filled(graph: OperatorGraph, name: str, input: Any, mask: Any, value: Any) -> Any:
    """Fill with ``value`` where the mask is True."""
    number = number_of(value)
    require(number is not None, "value must be a number")
    if number == -math.inf and isinstance(mask, Mask) and _is_zeros(input, mask.tensor.shape):
        return Hides(mask.tensor, lowest_score(mask.tensor.dtype), name)
    return chosen(graph, name, mask, value, input)


@says("__setitem__")
def assigned_where(graph: OperatorGraph, name: str, input: Any, index: Any, value: Any) -> Any:
    """Take a number, or what repeats itself everywhere, where truth values of the first dimensions say, ``x[mask] = 0``; or a truth
    value in a part of a mask, ``mask[..., 0] = True``."""
    mask = index.mask() if isinstance(index, Side) else index
    if isinstance(input, Mask) and not isinstance(mask, (Mask, Fixed)):
        there, yes = _places(input.tensor.shape, index), number_of(value)
        require(yes is not None, "only True or False can be written into a part of a mask")
        return either(graph, name, input, Fixed(there, 0)) if yes else both(graph, name, input, Fixed(~there, 0))
    require(isinstance(mask, (Mask, Fixed)), "a mask must stand alone as an index that is written to")
    shape, own = input.shape if isinstance(input, Tensor) else tuple(input.tensor.shape), _condition(graph, f"{name}.where", mask)
    own = ops.reshape(own, (*own.shape, *(1,) * (len(shape) - own.ndim)), name=f"{name}.led") if own.ndim < len(shape) else own
    require(number_of(value) is not None or not value.shape, "only a number can be written where a mask says: use torch.where")
    return chosen(graph, name, Mask(own) if isinstance(mask, Mask) else Side(own, "ne", 0.0, name), value, input)


def _places(shape: tuple[int, ...], index: Any) -> torch.Tensor:
    """True where slices and whole numbers point; dimensions that they do not cut have one element."""
    wanted = list(index) if isinstance(index, tuple) else [index]
    at = wanted.index(Ellipsis) if Ellipsis in wanted else len(wanted)
    wanted[at : at + 1] = [slice(None)] * (len(shape) - len(wanted) + (at < len(wanted)))
    require(all(isinstance(part, slice) or type(part) is int for part in wanted), "a mask must stand alone as an index to write to")
    table = torch.zeros([1 if part == slice(None) else size for part, size in zip(wanted, shape)], dtype=torch.bool)
    table[tuple(wanted)] = True
    return table


def _is_zeros(value: Any, shape: tuple[int, ...]) -> bool:
    return isinstance(value, Fixed) and tuple(value.tensor.shape) == shape and only_number(value) == 0


@says("masked_scatter")
def scattered_rows(graph: OperatorGraph, name: str, *args: Any) -> Any:
    """Raise Unsupported: what is understood is one operator with the comparison, and is built by `placing`."""
    raise Unsupported("masked_scatter is understood where a mask says which integers of an input are one number, for all features")


@says("where")
def chosen(graph: OperatorGraph, name: str, condition: Any, input: Any, other: Any) -> Any:
    """Take input where the condition is True, else other: tensors, numbers or truth values. What is not taken does not count."""
    of = condition if isinstance(condition, Side) else Side(_condition(graph, f"{name}.condition", condition), "ne", 0.0, name)
    truths = [isinstance(value, (Mask, Side, bool)) or _is_truth(value) for value in (input, other)]
    require(truths[0] == truths[1], "where of truth values and numbers")
    if truths[0]:
        values = [as_floats(graph, f"{name}.{at}", _as_mask(value)) for at, value in (("first", input), ("second", other))]
    else:
        values = [value if number_of(value) is not None else tensor_of(value, graph, name) for value in (input, other)]
    shape = np.broadcast_shapes(of.shape, *(getattr(value, "shape", ()) for value in values if isinstance(value, Tensor)))
    floats = [value.dtype for value in values if isinstance(value, Tensor) and value.spec.differentiable]
    whole = not floats and not truths[0] and all(map(_is_integer, (input, other)))
    dtype = np.dtype(np.int64) if whole else max(floats, key=lambda dtype: dtype.itemsize, default=np.dtype(graph.dtype))
    least = lowest_score(dtype) if isinstance(condition, Mask) else -math.inf
    first, second = (_of_type(graph, f"{name}.{at}", value, dtype, least) for at, value in zip(("first", "second"), values))
    result = ops.where(of.tensor, of.relation, of.number, first, second, name=name)
    result = result if result.shape == shape else ops.reshape(result, shape, name=f"{name}.value")
    return Mask(result) if truths[0] else result


def _condition(graph: OperatorGraph, name: str, condition: Any) -> Tensor:
    """A mask, or fixed truth values, as zeros and ones; those of a large fixed one are computed part by part."""
    if isinstance(condition, Mask):
        return condition.tensor
    require(isinstance(condition, Fixed), "the condition must be a mask")
    return as_floats(graph, name, fixed_of(derived(torch.Tensor.to, once_of(condition), torch.bool)))  # type: ignore[return-value]


def _of_type(graph: OperatorGraph, name: str, value: Any, dtype: np.dtype[Any], least: float) -> Tensor:
    """A tensor in a type; a number, of at least so much, as a constant."""
    if isinstance(value, Tensor):
        return value if value.dtype == dtype else as_type(value, dtype, f"{name}.{dtype}")
    number = number_of(value)
    assert number is not None, "it is a tensor or a number"
    return constant(graph, np.full((1,), max(number, least), dtype), name)


def _is_truth(value: Any) -> bool:
    return isinstance(value, Fixed) and value.tensor.dtype is torch.bool


def _is_integer(value: Any) -> bool:
    """True for integers: of the graph, fixed or a number."""
    if isinstance(value, Fixed):
        return not value.tensor.is_floating_point()
    return not value.spec.differentiable if isinstance(value, Tensor) else isinstance(value, int)


@says("scatter", "scatter_")
def scattered(graph: OperatorGraph, name: str, input: Any, dim: int, index: Any, value: Any = None, *, src: Any = None) -> Any:
    """A number, or entries, put where computed indices say; of truth values ones into zeros, or zeros into ones."""
    value = src if value is None else value
    if not _is_truth(input) or not isinstance(index, Tensor):
        return scattered_entries(graph, name, input, dim, index, value)
    number, shape = number_of(value), tuple(input.tensor.shape)
    ones = number == 0 and only_number(input) == 1
    require(ones or (_is_zeros(input, shape) and number == 1), "of truth values only True into what is False, or False into True")
    return Mask(ops.compare(hits(name, graph, shape, dim, index), "eq" if ones else "ne", 0.0, name=f"{name}.truth"))


MAKERS = {
    target for target, handler in OF_MASKS.items()
    if handler in (truth, scattered) or handler.__qualname__.startswith("_compared")
}
MOVING = {
    "view", "reshape", "unsqueeze", "squeeze", "expand", "expand_as", "broadcast_to", "transpose", "permute", "__getitem__",
    "flatten", "unflatten", "repeat", "repeat_interleave", "narrow", "select", "swapaxes", "movedim", "roll", "chunk", "split",
    "tensor_split", "unbind", "gather", "index_select", "pad",
}
"""Functions that move elements, whichever they are."""
