"""Masks that forward computes from inputs: which tokens are padding, which positions belong together."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from taskflow import operators as ops
from taskflow.graph import OperatorGraph
from taskflow.models.pytorch.registry import FUNCTIONS, Hides, array_of, constant, number_of, tensor_of
from taskflow.models.pytorch.site import Unsupported, require
from taskflow.models.pytorch.steps import Fixed, leaves
from taskflow.operators.tensor import Tensor


def lowest_score(dtype: np.dtype[Any]) -> float:
    """Return what stands for minus infinity in scores, whose exponential is 0 beside any real score's: a product with 0 is 0."""
    return -1e9 if dtype.itemsize > 2 or str(dtype) == "bfloat16" else -3e4


@dataclass(frozen=True, slots=True, eq=False)
class Mask:
    """Boolean tensor of PyTorch's, represented by floats: 1 for True and 0 for False."""

    tensor: Tensor


@dataclass(frozen=True, slots=True, eq=False)
class Side:
    """Boolean tensor of PyTorch's: where floats ``tensor`` are in a ``relation`` to a ``number``. Only `where` takes it."""

    tensor: Tensor
    relation: str
    number: float

    @property
    def shape(self) -> tuple[int, ...]:
        """Sizes."""
        return self.tensor.shape


Handler = Callable[..., Any]
OF_MASKS: dict[Any, Handler] = {}
"""What functions of torch do where an argument is a `Mask`, or where they make one."""


def _says(*names: str) -> Callable[[Handler], Handler]:
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
    sides = any(isinstance(leaf, Side) for leaf in leaves((args, kwargs)))
    require(not sides or OF_MASKS.get(target) is chosen, "which side of a number floats are on is only understood in where")
    if target in OF_MASKS:
        return OF_MASKS[target](graph, name, *args, **kwargs)
    if getattr(target, "__name__", "") in MOVING and args and isinstance(args[0], Mask):
        return Mask(FUNCTIONS[target](name, args[0].tensor, *args[1:], **kwargs))
    raise Unsupported("a mask that is computed from inputs is not understood here; make a float tensor of it (mask.to(x.dtype))")


def as_floats(graph: OperatorGraph, name: str, value: Any) -> Tensor | float:
    """Return a mask, a fixed tensor or a number as zeros and ones."""
    if isinstance(value, Mask):
        return value.tensor
    if isinstance(value, bool):
        return float(value)
    if isinstance(value, Fixed) and value.tensor.dtype is torch.bool:
        return constant(graph, array_of(value).astype(graph.dtype), f"{name}.constant")
    raise Unsupported(f"must be truth values, got {type(value).__name__}")


# ---- comparisons -----------------------------------------------------------------------------------------------------------


def _compared(relation: str) -> Handler:
    def built(graph: OperatorGraph, name: str, input: Any, other: Any) -> Mask | Side:
        number = number_of(other)
        if isinstance(other, Fixed) and number is None:
            other = tensor_of(other, graph, name)
        input = tensor_of(input, graph, name)
        if number is not None and isinstance(input, Tensor) and input.spec.differentiable:
            return Side(input, relation, number)
        both = [value for value in (input, other if number is None else None) if value is not None]
        require(
            all(isinstance(value, Tensor) and value.dtype.kind in "iu" for value in both)
            and (number is None or number == int(number)),
            "only integers are compared: of a float tensor the graph would hide which side a number is on",
        )
        return Mask(ops.compare(input, relation, other if number is None else int(number), name=name))

    return built


for _relation in ("eq", "ne", "lt", "le", "gt", "ge"):
    _says(_relation, f"__{_relation}__")(_compared(_relation))
for _name, _relation in (("not_equal", "ne"), ("less", "lt"), ("less_equal", "le"), ("greater", "gt"), ("greater_equal", "ge")):
    _says(_name)(_compared(_relation))


# ---- logic -----------------------------------------------------------------------------------------------------------------


@_says("logical_and", "bitwise_and", "__and__", "__rand__", "__iand__")
def both(graph: OperatorGraph, name: str, input: Any, other: Any) -> Mask:
    """Logical and."""
    a, b = as_floats(graph, name, input), as_floats(graph, name, other)
    if isinstance(a, float) or isinstance(b, float):
        x, number = (b, a) if isinstance(a, float) else (a, b)
        return Mask(ops.scale(x, number, name=name))  # type: ignore[arg-type]
    return Mask(ops.mul(a, b, name=name))


@_says("mul", "multiply", "__mul__", "__rmul__")
def product(graph: OperatorGraph, name: str, input: Any, other: Any) -> Any:
    """Numbers where a mask is True, else 0; of two masks, both."""
    if not any(isinstance(value, Tensor) for value in (input, other)):
        return both(graph, name, input, other)
    mask, x = (input, other) if isinstance(input, Mask) else (other, input)
    own = ops.cast(mask.tensor, x.dtype, name=f"{name}.mask") if x.spec.differentiable else counted(graph, f"{name}.mask", mask)
    return ops.mul(x, own, name=name)


@_says("logical_not", "bitwise_not", "__invert__")
def opposite(graph: OperatorGraph, name: str, input: Any) -> Mask:
    """Logical not."""
    return Mask(ops.shift(ops.scale(input.tensor, -1.0, name=f"{name}.minus"), 1.0, name=name))


@_says("logical_or", "bitwise_or", "__or__", "__ror__", "__ior__")
def either(graph: OperatorGraph, name: str, input: Any, other: Any) -> Mask:
    """Logical or: not both are false."""
    turned = [_opposite_of(graph, f"{name}.{at}", value) for at, value in (("first", input), ("second", other))]
    result: Mask = opposite(graph, name, both(graph, f"{name}.neither", *turned))
    return result


def _opposite_of(graph: OperatorGraph, name: str, value: Any) -> Any:
    if isinstance(value, Fixed):
        require(value.tensor.dtype is torch.bool, "must be truth values")
        return Fixed(~value.tensor, 0)
    return not value if isinstance(value, bool) else opposite(graph, name, value)


# ---- types -----------------------------------------------------------------------------------------------------------------


@_says("to", "type")
def converted(graph: OperatorGraph, name: str, input: Any, *args: Any, **options: Any) -> Any:
    """Convert integers to truth values, or truth values to zeros and ones; the result's type is compared with PyTorch's."""
    kinds = [value for value in (*args, *options.values()) if isinstance(value, torch.dtype)]
    if isinstance(input, Mask):
        if kinds and not kinds[0].is_floating_point and kinds[0] is not torch.bool:
            return counted(graph, name, input)
        return input if not kinds or kinds[0] is torch.bool else input.tensor
    require(input.dtype.kind in "iu", "truth values of floats")
    return Mask(ops.compare(input, "ne", 0, name=name))


@_says("bool")
def truth(graph: OperatorGraph, name: str, input: Any) -> Any:
    """Return truth values of integers: True for those that are not 0."""
    return converted(graph, name, input, torch.bool)


@_says("int", "long")
def counted(graph: OperatorGraph, name: str, input: Any) -> Any:
    """Return truth values as integers, 1 and 0."""
    return ops.to_integer(input.tensor, name=name)


@_says("cumsum")
def counts(graph: OperatorGraph, name: str, input: Any, dim: int, *, dtype: Any = None) -> Any:
    """Return how many there are up to each one."""
    return ops.cumsum(counted(graph, f"{name}.integers", input), dim, name=name)


@_says("float", "double", "type_as")
def numbers(graph: OperatorGraph, name: str, input: Any, *args: Any) -> Any:
    """Return zeros and ones for truth values."""
    return input.tensor


@_says("contiguous", "clone", "detach", "cpu", "cuda")
def unchanged(graph: OperatorGraph, name: str, input: Any, *args: Any, **options: Any) -> Any:
    """Return the same truth values."""
    return input


# ---- use -------------------------------------------------------------------------------------------------------------------


@_says("masked_fill", "masked_fill_")
def filled(graph: OperatorGraph, name: str, input: Any, mask: Any, value: Any) -> Any:
    """Fill with ``value`` where the mask is True."""
    number = number_of(value)
    require(number is not None, "value must be a number where the mask comes from inputs")
    if number == -math.inf and isinstance(mask, Mask) and _is_zeros(input, mask.tensor.shape):
        return Hides(mask.tensor, lowest_score(mask.tensor.dtype), name)
    return chosen(graph, name, mask, number, input)


def _is_zeros(value: Any, shape: tuple[int, ...]) -> bool:
    return isinstance(value, Fixed) and tuple(value.tensor.shape) == shape and not bool(array_of(value).any())


@_says("masked_scatter")
def scattered_rows(graph: OperatorGraph, name: str, *args: Any) -> Any:
    """Raise Unsupported: what is understood is one operator with the comparison, and is built by `placing`."""
    raise Unsupported("masked_scatter is understood where a mask says which integers of an input are one number, for all features")


@_says("where")
def chosen(graph: OperatorGraph, name: str, condition: Any, input: Any, other: Any) -> Any:
    """Take input where the condition is True, else other."""
    if isinstance(condition, Side):
        return _of_sides(graph, name, condition, input, other)
    require(isinstance(condition, Mask), "the condition must be a mask")
    others = opposite(graph, f"{name}.other", condition)
    if all(isinstance(value, (Mask, bool)) or _is_truth(value) for value in (input, other)):
        first, second = both(graph, f"{name}.first", condition, input), both(graph, f"{name}.second", others, other)
        return Mask(ops.add(first.tensor, second.tensor, name=name))
    parts = []
    for at, mask, value in (("first", condition.tensor, input), ("second", others.tensor, other)):
        require(not isinstance(value, (Mask, bool)) and not _is_truth(value), "where of truth values and numbers")
        number = number_of(value)
        if number is None:
            x = tensor_of(value, graph, name)
            own = ops.cast(mask, x.dtype, name=f"{name}.{at}_mask") if x.spec.differentiable else (
                ops.to_integer(mask, name=f"{name}.{at}_mask")
            )
            parts.append(ops.mul(x, own, name=f"{name}.{at}"))
            continue
        require(number < math.inf, "infinity is not understood where the mask comes from inputs")
        if number and all(map(_is_integer, (input, other))):
            whole = constant(graph, np.full((1,) * mask.ndim, int(number)), f"{name}.{at}_number")
            parts.append(ops.mul(ops.to_integer(mask, name=f"{name}.{at}_mask"), whole, name=f"{name}.{at}"))
            continue
        if number:
            parts.append(ops.scale(mask, max(number, lowest_score(mask.dtype)), name=f"{name}.{at}"))
    widest = max((part.dtype for part in parts), key=lambda dtype: dtype.itemsize, default=graph.dtype)
    parts = [ops.cast(part, widest, name=f"{part.name}.cast") if part.spec.differentiable else part for part in parts]
    if not parts:
        return ops.scale(condition.tensor, 0.0, name=name)
    return parts[0] if len(parts) == 1 else ops.add(parts[0], parts[1], name=name)


def clamped_integers(name: str, x: Tensor, least: Any, most: Any) -> Tensor:
    """Integers between two bounds, of which one may be None. Raises Unsupported for bounds that are no integers."""
    for bound, relation, at in ((least, "lt", "least"), (most, "gt", "most")):
        if bound is not None:
            require(bound == int(bound), "bounds of integers must be integers")
            beyond = Mask(ops.compare(x, relation, int(bound), name=f"{name}.beyond_{at}"))
            x = chosen(x.graph, f"{name}.{at}", beyond, int(bound), x)
    return x


def _is_truth(value: Any) -> bool:
    return isinstance(value, Fixed) and value.tensor.dtype is torch.bool


def _is_integer(value: Any) -> bool:
    """True for integers: of the graph, fixed or a number."""
    if isinstance(value, Fixed):
        return not value.tensor.is_floating_point()
    return not value.spec.differentiable if isinstance(value, Tensor) else isinstance(value, int)


def _of_sides(graph: OperatorGraph, name: str, condition: Side, *values: Any) -> Tensor:
    """Take the first value where floats are on a side of a number, else the second."""
    shape = np.broadcast_shapes(condition.shape, *(getattr(value, "shape", ()) for value in values))
    tensors = [value if isinstance(value, Tensor) else tensor_of(value, graph, name) for value in values]
    dtype = next((value.dtype for value in tensors if isinstance(value, Tensor)), condition.tensor.dtype)
    given = []
    for at, value in zip(("first", "second"), tensors):
        number = number_of(value)
        value = constant(graph, np.full((1,) * len(shape), number, dtype), f"{name}.{at}") if number is not None else value
        require(isinstance(value, Tensor), "where of truth values")
        given.append(ops.cast(_spread(f"{name}.{at}", value, shape), dtype, name=f"{name}.{at}.{dtype}"))
    x = ops.cast(_spread(f"{name}.of", condition.tensor, shape), dtype, name=f"{name}.of.{dtype}")
    return ops.where(x, condition.relation, condition.number, *given, name=name)


def _spread(name: str, x: Tensor, shape: tuple[int, ...]) -> Tensor:
    if x.shape == shape:
        return x
    led = x if x.ndim == len(shape) else ops.reshape(x, (1,) * (len(shape) - x.ndim) + x.shape, name=f"{name}.led")
    return ops.expand(led, shape, name=f"{name}.expanded")


@_says("scatter")
def scattered(graph: OperatorGraph, name: str, input: Any, dim: int, index: Any, value: Any = None) -> Mask:
    """Ones in a tensor of zeros, or zeros in one of ones, where distinct indices of the last dimension say."""
    number, shape = number_of(value), tuple(input.tensor.shape) if isinstance(input, Fixed) else ()
    ones = shape != () and number == 0 and bool((array_of(input) == 1).all())
    require(ones or (_is_zeros(input, shape) and number == 1), "only of the number 1 into zeros, or of 0 into ones")
    last = len(shape) - 1
    require(isinstance(index, Tensor) and dim % len(shape) == last, "only along the last dimension")
    if index.shape[-1] * shape[-1] <= FEW_PAIRS:
        places = constant(graph, np.arange(shape[-1]).reshape((1,) * len(shape) + (-1,)), f"{name}.places")
        alone = ops.reshape(index, (*index.shape, 1), name=f"{name}.alone")
        result = ops.sum(ops.compare(alone, "eq", places, name=f"{name}.each"), last, name=name)
    else:
        rows = ops.reshape(index, (math.prod(shape[:-1]), index.shape[-1]), name=f"{name}.rows")
        each = constant(graph, np.broadcast_to(np.ones((), graph.dtype), rows.shape), f"{name}.ones")
        result = ops.reshape(ops.scatter_add(each, rows, shape[-1], name=f"{name}.each"), shape, name=name)
    return opposite(graph, f"{name}.others", Mask(result)) if ones else Mask(result)


FEW_PAIRS = 65536  # of an index and a place in a row that are compared with each other

MAKERS = {
    target for target, handler in OF_MASKS.items()
    if handler in (truth, scattered) or handler.__qualname__.startswith("_compared")
}
MOVING = {
    "view", "reshape", "unsqueeze", "squeeze", "expand", "expand_as", "broadcast_to", "transpose", "permute", "__getitem__",
    "flatten", "unflatten", "repeat", "repeat_interleave", "narrow", "select", "swapaxes", "movedim", "roll",
}
"""Functions that move elements, whichever they are."""
