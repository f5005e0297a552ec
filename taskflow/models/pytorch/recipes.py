"""Recipes of fixed tensors: how a module computes masks and tables from nothing but shapes and buffers.

A mask of T x T numbers is never an array of that size: it stays what it was computed from, and `block` computes the part of it that
somebody looks at. A table that the module rounds to 16 bits is computed again without rounding by `exact`.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from taskflow.floats import float_type
from taskflow.models.pytorch.parts import MOVED, cut_dim, picks, same_order, sliced, source_dim
from taskflow.models.pytorch.site import Unsupported
from taskflow.models.pytorch.steps import leaves, mapped

LARGE = 1 << 20  # elements: what has more is kept as a recipe alone
MOST_WHOLE = 1 << 27  # elements of what has to be computed as a whole
ELEMENTWISE = {
    "add", "sub", "mul", "div", "true_divide", "truediv", "floor_divide", "floordiv", "remainder", "mod", "neg",
    "abs", "exp", "log", "sqrt", "rsqrt", "pow", "sin", "cos", "clamp", "clip", "minimum", "maximum", "eq", "ne",
    "lt", "le", "gt", "ge", "less", "less_equal", "greater", "greater_equal", "not_equal", "logical_and",
    "logical_or", "logical_not", "logical_xor", "bitwise_and", "bitwise_or", "bitwise_not", "and", "or", "xor",
    "invert", "radd", "rsub", "rmul", "rand", "ror", "iand", "ior", "iadd", "isub", "imul", "where", "masked_fill",
    "to", "float", "half", "bfloat16", "double", "bool", "int", "long", "type", "type_as", "contiguous", "clone",
    "detach", "cpu", "isnan", "isinf", "sign", "round", "floor",
}  # functions whose result at a place depends on their arguments at that place
LIKE = {"ones_like", "zeros_like", "full_like", "new_ones", "new_zeros", "new_full"}
CONSTANT = {"ones", "zeros", "full"} | LIKE
UNSET = {"empty", "empty_like", "new_empty", "empty_strided", "new_empty_strided"}
CASTS = {"to", "float", "half", "bfloat16", "double", "type", "type_as"}
SAME = CASTS | {"contiguous", "clone", "cpu", "cuda"}  # functions that return what they are given, in another type or place
RUNNING = {"cumsum", "cumprod"}  # functions whose result at a place depends on what stands before it along one dimension
RESHAPES = {"unsqueeze", "squeeze", "view", "reshape"}
Spans = Sequence[tuple[int, int]]


def plain_name(function: Any) -> str:
    """Return a function's name without underscores."""
    return str(getattr(function, "__name__", "")).strip("_")


def numbers_of(tensor: torch.Tensor) -> np.ndarray[Any, Any]:
    """Return the bytes of a tensor's numbers; what is expanded has them once."""
    plain = tensor.detach().cpu()
    for dim, stride in enumerate(plain.stride()):
        plain = plain.narrow(dim, 0, min(1, plain.shape[dim])) if stride == 0 else plain
    return np.asarray(plain.contiguous().reshape(-1).view(torch.uint8).numpy())


@dataclass(frozen=True, slots=True, eq=False)
class Recipe:
    """How a fixed tensor is computed. ``tensor``: itself, or a stand-in without numbers. Arguments are recipes where they have been
    computed, and tensors where they are given, such as buffers."""

    tensor: torch.Tensor
    function: Any
    args: tuple[Any, ...]
    kwargs: dict[str, Any]

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(self.tensor.shape)

    def digest(self) -> str:
        """Return a name of what it computes: equal recipes have the same."""
        return self._digest({})

    def _digest(self, known: dict[int, str]) -> str:
        if id(self) not in known:
            name = plain_name(self.function)
            checksum = hashlib.sha256(f"{name} {self.shape} {self.tensor.dtype}".encode())
            args, kwargs = self.args, self.kwargs
            if name in LIKE:  # the first gives shape and type, not its numbers: it may be a stand-in that nobody has written
                args, kwargs = args[1:], {key: value for key, value in kwargs.items() if key != "input"}
            for value in leaves((args, sorted(kwargs.items()))):
                if isinstance(value, Recipe):
                    checksum.update(value._digest(known).encode())
                elif isinstance(value, torch.Tensor):
                    checksum.update(f"{value.shape} {value.dtype}".encode())
                    checksum.update(numbers_of(value).data)
                else:
                    checksum.update(repr(value).encode())
            known[id(self)] = checksum.hexdigest()[:16]
        return known[id(self)]


def is_large(function: Any, args: Any, kwargs: Any) -> bool:
    """True if a function of fixed tensors gives many numbers, found without computing them."""
    given = [value for value in leaves((args, kwargs)) if isinstance(value, torch.Tensor)]
    name = plain_name(function)
    if name in UNSET:  # it has no numbers anyway, and is written part by part
        return True
    if given and not (name in ELEMENTWISE or name in CONSTANT or name in ("expand", "repeat", "tile", "triu", "tril")):
        return False
    try:
        if given and name in ELEMENTWISE:
            return math.prod(torch.broadcast_shapes(*(value.shape for value in given))) > LARGE
        result = stand_in_of_call(function, mapped(_stand_in, args), mapped(_stand_in, kwargs))
    except Exception:  # what PyTorch says of wrong arguments is said where it is computed
        return False
    return isinstance(result, torch.Tensor) and result.numel() > LARGE and name not in ("arange", "linspace", "expand")


def stand_in_of_call(function: Any, args: Any, kwargs: Any) -> Any:
    """Return what a function returns, as stand-ins of its shape and type."""
    with FakeTensorMode(allow_non_fake_inputs=True):
        return function(*args, **{key: value for key, value in kwargs.items() if key != "out"})


# ---- numbers ----------------------------------------------------------------------------------------------------------


def numpy_of(tensor: torch.Tensor) -> np.ndarray[Any, Any]:
    """Return the numbers of a tensor; bfloat16 in the type that stands for it here."""
    plain = tensor.detach().cpu().resolve_conj().resolve_neg()
    return np.asarray(plain.float().numpy().astype(float_type("bfloat16")) if plain.dtype is torch.bfloat16 else plain.numpy())


def block(value: Any, spans: Spans) -> torch.Tensor:
    """Return the part of a recipe, or of a tensor, between these bounds in each dimension."""
    if isinstance(value, torch.Tensor):
        return value[tuple(slice(low, high) for low, high in spans)]
    name = plain_name(value.function)
    if not value.tensor.numel() > LARGE and not _needs_parts(value):
        return whole(value)[tuple(slice(low, high) for low, high in spans)]
    if name in CONSTANT:
        return _constant(value).expand([high - low for low, high in spans])
    first = value.args[0] if value.args else value.kwargs.get("input", value.kwargs.get("self"))
    if name in ELEMENTWISE:
        part = _Part(value.shape, spans)
        args, kwargs = mapped(part, value.args), mapped(part, value.kwargs)
        return _run(value.function, name, args, kwargs)
    if name in ("triu", "tril"):
        diagonal = value.args[1] if len(value.args) > 1 else value.kwargs.get("diagonal", 0)
        (top, _), (left, _) = spans[-2:]
        return getattr(torch, name)(block(first, spans), diagonal + top - left)
    if name in ("expand", "expand_as", "broadcast_to"):
        return _Part(value.shape, spans)(first).expand([high - low for low, high in spans])
    if name in RUNNING:
        along, behind = _along(value), list(spans)
        behind[along] = (0, spans[along][1])
        part = _run(value.function, name, (block(first, behind), along), {"dtype": value.tensor.dtype})
        return part.narrow(along, spans[along][0], spans[along][1] - spans[along][0])
    if name in ("transpose", "swapaxes") and all(isinstance(dim, int) for dim in value.args[1:3]):
        a, b = (dim % len(spans) for dim in value.args[1:3])
        turned = list(spans)
        turned[a], turned[b] = turned[b], turned[a]
        return block(first, turned).transpose(a, b)
    if name == "written":
        return _written(value, spans)
    if name == "getitem" and (indices := picks(value)) is not None:
        chosen = mapped(_Part(value.shape, spans), indices)
        ranges = [(int(index.min()), int(index.max()) + 1) for index in chosen]
        if all(low >= 0 for low, _ in ranges):
            return block(first, ranges)[tuple(index - low for index, (low, _) in zip(chosen, ranges))]
    if name == "getitem" and (parts := sliced(first, value.args[1], spans)) is not None:
        return block(first, parts[0])[parts[1]].reshape([high - low for low, high in spans])
    if name in RESHAPES and (found := same_order(value, first, spans)) is not None:
        return block(first, found).reshape([high - low for low, high in spans])
    if name in RESHAPES and (before := _before_reshapes(value)) is not None:
        origin, between = before
        part = block(origin, same_order(value, origin, spans) or ())
        for step in between:
            part = _run(step.function, plain_name(step.function), (part, *step.args[1:]), step.kwargs)
        return part.reshape([high - low for low, high in spans])
    return whole(value)[tuple(slice(low, high) for low, high in spans)]


def written(table: torch.Tensor, index: Any, value: Any) -> torch.Tensor:
    """Return a table in which a range of one dimension is ``value``."""
    result = table.clone()
    result[index] = value
    return result


def _written(value: Recipe, spans: Spans) -> torch.Tensor:
    table, index, new = value.args
    cut = cut_dim(index, len(value.shape))
    assert cut is not None, "others are refused"
    dim, size = cut[0], value.shape[cut[0]]
    most = len(range(*cut[1].indices(size)))
    given, of = ([*spans[:dim], (0, count), *spans[dim + 1 :]] for count in (size, most))
    part = _Part((*value.shape[:dim], most, *value.shape[dim + 1 :]), of)(new)
    return written(block(table, given), index, part).narrow(dim, spans[dim][0], spans[dim][1] - spans[dim][0])


def whole(value: Any) -> torch.Tensor:
    """Return all numbers of a recipe. Raises Unsupported if these are too many."""
    if not isinstance(value, Recipe):
        return value  # type: ignore[no-any-return]
    if not lacks_numbers(value.tensor):
        return value.tensor
    if value.tensor.numel() > MOST_WHOLE:
        raise Unsupported(
            f"{plain_name(value.function)} makes {value.tensor.numel():,} fixed numbers {list(value.shape)}, which is more than an "
            "import holds; compute such a table from positions, element by element"
        )
    return _run(value.function, plain_name(value.function), mapped(_whole, value.args), mapped(_whole, value.kwargs))


def exact(value: Any, known: dict[int, torch.Tensor] | None = None) -> torch.Tensor:
    """Return all numbers of a recipe without the roundings to narrower floats in it. ``known``: what has been computed already."""
    if not isinstance(value, Recipe):
        return value  # type: ignore[no-any-return]
    known = {} if known is None else known
    if id(value) not in known:
        known[id(value)] = _exactly(value, known)
    return known[id(value)]


def _exactly(value: Recipe, known: dict[int, torch.Tensor]) -> torch.Tensor:
    name = plain_name(value.function)
    given = value.args[0] if value.args else None
    source = given.tensor if isinstance(given, Recipe) else given
    floats = isinstance(source, torch.Tensor) and source.is_floating_point() and value.tensor.is_floating_point()
    if name in CASTS and floats and source.element_size() >= value.tensor.element_size():  # type: ignore[union-attr]
        return exact(given, known)

    def change(part: Any) -> Any:
        return exact(part, known) if isinstance(part, Recipe) else part

    return _run(value.function, name, mapped(change, value.args), mapped(change, value.kwargs))


def _whole(value: Any) -> Any:
    return whole(value) if isinstance(value, Recipe) else value


def _run(function: Any, name: str, args: Any, kwargs: Any) -> torch.Tensor:
    checksum = str(getattr(function, "__name__", ""))
    if checksum.endswith("_") and (checksum.startswith("__i") or not checksum.endswith("__")):  # in place: of a copy
        args = (args[0].clone(), *args[1:])
    with torch.no_grad():
        return function(*args, **kwargs)  # type: ignore[no-any-return]


def lacks_numbers(tensor: torch.Tensor) -> bool:
    """True for a stand-in."""
    return tensor.is_meta or type(tensor) is not torch.Tensor


def _along(value: Recipe) -> int:
    """The dimension that a function works along."""
    return int(value.args[1] if len(value.args) > 1 else value.kwargs["dim"]) % len(value.shape)


def _needs_parts(value: Recipe) -> bool:
    given = (leaf.tensor for leaf in leaves(value.args) if isinstance(leaf, Recipe))
    return lacks_numbers(value.tensor) and any(map(lacks_numbers, given))


def _constant(value: Recipe) -> torch.Tensor:
    """The only number of a tensor that is the same everywhere."""
    name = plain_name(value.function)
    if "full" in name:
        at = 1
        number = value.args[at] if len(value.args) > at else value.kwargs["fill_value"]
    else:
        number = 1 if "ones" in name else 0
    return torch.tensor(number, dtype=value.tensor.dtype)


@dataclass(frozen=True, slots=True)
class _Part:
    """The part of an argument that the part ``spans`` of a result of this shape comes from. Dimensions are matched from the
    last."""

    shape: tuple[int, ...]
    spans: Spans

    def __call__(self, value: Any) -> Any:
        if not isinstance(value, (torch.Tensor, Recipe)):
            return value
        skip = len(self.shape) - len(value.shape)
        wanted = [(0, 1) if size == 1 else self.spans[skip + i] for i, size in enumerate(value.shape)]
        return block(value, wanted)


def _before_reshapes(value: Recipe) -> tuple[Any, list[Recipe]] | None:
    """What is reshaped several times, with conversions between, until it has its own dimensions again but for some of size 1, and
    these conversions in order; None for other recipes."""
    between: list[Recipe] = []
    origin: Any = value
    while isinstance(origin, Recipe) and (plain_name(origin.function) in RESHAPES or _converts(origin)):
        if _converts(origin):
            between.insert(0, origin)
        origin = origin.args[0]
        if origin is not value.args[0] and same_order(value, origin, [(0, size) for size in value.shape]) is not None:
            return origin, between
    return None


def _converts(value: Recipe) -> bool:
    others = (*value.args[1:], *value.kwargs.values())
    return plain_name(value.function) in SAME and not any(hasattr(other, "shape") for other in others)


def varies(value: Any, dim: int) -> bool:
    """True unless a recipe, or a tensor, is known to be the same all along a dimension, which is counted from the last (-1)."""
    if not hasattr(value, "shape") or len(value.shape) < -dim or value.shape[dim] == 1:
        return False
    if isinstance(value, torch.Tensor):
        return not bool((value == value.narrow(dim, 0, 1)).all())
    name = plain_name(value.function)
    if name in CONSTANT:
        return False
    if name in ELEMENTWISE or name in ("expand", "expand_as", "broadcast_to"):
        given = value.args if name in ELEMENTWISE else value.args[:1]
        return any(varies(leaf, dim) for leaf in leaves((given, value.kwargs)))
    if name in RUNNING and _along(value) != len(value.shape) + dim:
        return varies(value.args[0] if value.args else value.kwargs["input"], dim)
    if name in RESHAPES:
        origin = (_before_reshapes(value) or (value.args[0],))[0]
        spans = [(0, 1) if i == len(value.shape) + dim else (0, size) for i, size in enumerate(value.shape)]
        if (theirs := same_order(value, origin, spans)) is not None:
            alone = next(i for i, (span, size) in enumerate(zip(theirs, origin.shape)) if span != (0, size))
            return varies(origin, alone - len(theirs))
    if name == "getitem" and (indices := picks(value)) is not None:
        return any(varies(index, dim) and varies(value.args[0], at - len(indices)) for at, index in enumerate(indices))
    if name == "written":
        cut = cut_dim(value.args[1], rank := len(value.shape))
        return cut is None or cut[0] == rank + dim or any(varies(one, dim) for one in value.args[::2])
    if name in MOVED and (found := source_dim(value, dim)) is not None:
        of, at = found
        return any(varies(one, at) for one in of) if at is not None else False
    return lacks_numbers(value.tensor) or varies(value.tensor, dim)


def derived(function: Any, *args: Any) -> Recipe:
    """Return what a function makes of recipes and tensors as a recipe."""
    return Recipe(function(*mapped(_stand_in, args)), function, args, {})


def _stand_in(value: Any) -> Any:
    return torch.empty(value.shape, dtype=_dtype(value), device="meta") if hasattr(value, "shape") else value


def _dtype(value: Any) -> torch.dtype:
    return value.tensor.dtype if isinstance(value, Recipe) else value.dtype  # type: ignore[no-any-return]


@dataclass(frozen=True, slots=True, eq=False)
class ByParts:
    """A recipe as an array of which parts are read (`ConstantArray.values`): ``array[slices]``."""

    recipe: Recipe
    dtype: np.dtype[Any]

    def __getitem__(self, index: Any) -> Any:
        spans = [part.indices(size)[:2] for part, size in zip(index, self.recipe.shape)]
        return numpy_of(block(self.recipe, spans)).astype(self.dtype)
