"""Functions of torch that move, cut and repeat elements, as operators."""

from __future__ import annotations

import math
from collections.abc import Sequence
from operator import index as whole_number
from typing import Any

from taskflow import operators as ops
from taskflow.models.pytorch.registry import (
    Later,
    Stacked,
    TurnedWeight,
    graph_of,
    number_of,
    stands_for,
    swapped,
    tensor_of,
)
from taskflow.models.pytorch.site import Held, Unsupported, require, started
from taskflow.models.pytorch.steps import Fixed
from taskflow.operators.tensor import Tensor

MOST_PARTS = 4  # such as queries, keys and values of one product, that are kept apart
MOST_COPIES = 64  # of a tensor that is repeated by joining it with itself


def _sizes(sizes: Sequence[Any]) -> tuple[int, ...]:
    """Sizes that are given one by one or in a sequence."""
    given = sizes[0] if len(sizes) == 1 and isinstance(sizes[0], (tuple, list)) else sizes
    return tuple(whole_number(int(number_of(size) or 0) if isinstance(size, Fixed) else size) for size in given)


@stands_for("reshape", "view", later=True)
def reshape(name: str, input: Any, *sizes_or_shape: Any, shape: Any = None, size: Any = None) -> Any:
    """Reshape."""
    named = shape if size is None else size
    sizes = _sizes(sizes_or_shape if named is None else (named,))
    if -1 in sizes and 0 not in sizes:
        rest = -math.prod(sizes)
        sizes = tuple(math.prod(input.shape) // rest if size == -1 else size for size in sizes)
    return input if sizes == tuple(input.shape) else ops.reshape(tensor_of(input, graph_of(input), name), sizes, name=name)


@stands_for("view_as", "reshape_as")
def reshape_as(name: str, input: Tensor, other: Any) -> Any:
    """Reshape to another tensor's shape."""
    return ops.reshape(input, _shape(other), name=name)


def _shape(value: Any) -> tuple[int, ...]:
    return tuple(value.tensor.shape) if isinstance(value, Fixed) else tuple(value.shape)


@stands_for("flatten")
def flatten(name: str, input: Tensor, start_dim: int = 0, end_dim: int = -1) -> Any:
    """Flatten dimensions from ``start_dim`` to ``end_dim`` into one."""
    if not input.ndim:
        return ops.reshape(input, (1,), name=name)
    first, last = start_dim % input.ndim, end_dim % input.ndim
    return ops.reshape(input, (*input.shape[:first], -1, *input.shape[last + 1 :]), name=name)


@stands_for("ravel")
def ravel(name: str, input: Tensor) -> Any:
    """Flatten all dimensions into one."""
    return flatten(name, input)


@stands_for("unflatten")
def unflatten(name: str, input: Tensor, dim: int, sizes: Sequence[int]) -> Any:
    """Divide one dimension into several."""
    at = dim % input.ndim
    known = math.prod(size for size in sizes if size != -1)
    parts = [input.shape[at] // known if size == -1 else size for size in sizes]
    return ops.reshape(input, (*input.shape[:at], *parts, *input.shape[at + 1 :]), name=name)


@stands_for("unsqueeze", later=True)
def unsqueeze(name: str, input: Any, dim: int) -> Any:
    """Add a dimension of size 1."""
    at = dim % (len(input.shape) + 1)
    if isinstance(input, Later) and at == 0:
        base = ops.reshape(input.base, (1, *input.base.shape), name=name)
        return Later(base, (input.dims[0] + 1, input.dims[1] + 1), input.name)
    input = tensor_of(input, graph_of(input), name)
    return ops.reshape(input, (*input.shape[:at], 1, *input.shape[at:]), name=name)


@stands_for("squeeze")
def squeeze(name: str, input: Tensor, dim: Any = None) -> Any:
    """Remove dimensions of size 1."""
    dims = range(input.ndim) if dim is None else (dim,) if isinstance(dim, int) else dim
    gone = {d % input.ndim for d in dims if input.ndim}
    return ops.reshape(input, [size for i, size in enumerate(input.shape) if i not in gone or size != 1], name=name)


@stands_for("transpose", "swapaxes", "swapdims", later=True)
def transpose(name: str, input: Any, dim0: int, dim1: int) -> Any:
    """Swap two dimensions. Steps and heads, or samples and steps, are only swapped where that matters (`Later`)."""
    dims = (dim0 % len(input.shape), dim1 % len(input.shape))
    if isinstance(input, Held) and len(input.shape) == 2 and dims[0] != dims[1]:
        return TurnedWeight(input, name)
    x = input if isinstance(input, Later) else tensor_of(input, graph_of(input), name)
    if isinstance(x, Tensor) and (len(x.shape), {*dims}) in ((4, {1, 2}), (3, {0, 1})):
        return Later(x, (min(dims), max(dims)), name)
    return swapped(x, *dims, name)


@stands_for("t", ".T", ".mT", raw=True)
def turned(name: str, input: Any) -> Any:
    """Swap the last two dimensions (there must be two: PyTorch refuses ``t`` of more)."""
    require(len(input.shape) == 2 or name.rpartition(".")[2].startswith("mT"), "of a tensor of two dimensions")
    return transpose(name, input, -2, -1)


@stands_for("permute")
def permute(name: str, input: Tensor, *dims: Any) -> Any:
    """Permute dimensions. A few queries, keys and values that come before the samples stay apart (`Stacked`): whoever takes one of
    them has samples first."""
    wanted = [d % input.ndim for d in _sizes(dims)]
    first = wanted[0] if wanted else 0
    if not first or not 1 < input.shape[first] <= MOST_PARTS or input.ndim < 4:
        return permuted(name, input, wanted)
    rest = [dim - (dim > first) for dim in wanted[1:]]
    parts = range(input.shape[first])
    return Stacked(tuple(permuted(name, ops.select(input, first, i, name=f"{name}.part"), rest) for i in parts))


def permuted(name: str, input: Tensor, wanted: Sequence[int]) -> Tensor:
    """Return a tensor whose dimensions are those ``wanted`` of it, in this order."""
    now = list(range(input.ndim))
    for i, dim in enumerate(wanted):
        j = now.index(dim)
        if i != j:
            input = ops.transpose(input, i, j, name=name)
            now[i], now[j] = now[j], now[i]
    return input


@stands_for("movedim", "moveaxis")
def movedim(name: str, input: Tensor, source: Any, destination: Any) -> Any:
    """Move some dimensions to other places; the others keep their order."""
    sources = [d % input.ndim for d in ([source] if isinstance(source, int) else source)]
    places = [d % input.ndim for d in ([destination] if isinstance(destination, int) else destination)]
    rest = iter(d for d in range(input.ndim) if d not in sources)
    return permute(name, input, [sources[places.index(i)] if i in places else next(rest) for i in range(input.ndim)])


# ---- parts -----------------------------------------------------------------------------------------------------------------


@stands_for("chunk")
def chunk(name: str, input: Tensor, chunks: int, dim: int = 0) -> Any:
    """Divide into parts of one size; the last may be smaller."""
    return ops.split(input, math.ceil(input.shape[dim] / chunks), dim, name=name)


@stands_for("split")
def split(name: str, input: Tensor, split_size_or_sections: Any, dim: int = 0) -> Any:
    """Parts of given sizes."""
    sizes = split_size_or_sections
    return ops.split(input, sizes if isinstance(sizes, int) else [whole_number(size) for size in sizes], dim, name=name)


@stands_for("unbind", raw=True)
def unbind(name: str, input: Any, dim: int = 0) -> Any:
    """Every element of a dimension by itself."""
    if isinstance(input, Stacked) and dim in (0, -len(input.shape)):
        return input.parts
    input = tensor_of(input, graph_of(input), name)
    at = dim % input.ndim
    shape = (*input.shape[:at], *input.shape[at + 1 :])
    return tuple(ops.reshape(part, shape, name=f"{name}.one") for part in ops.split(input, 1, at, name=name))


@stands_for("narrow")
def narrow(name: str, input: Tensor, dim: int, start: int, length: int) -> Any:
    """A range of a dimension."""
    return ops.narrow(input, dim, start, length, name=name)


@stands_for("select", raw=True)
def select(name: str, input: Any, dim: int, index: int) -> Any:
    """One element of a dimension."""
    if isinstance(input, Stacked) and dim in (0, -len(input.shape)):
        return input.parts[index]
    input = tensor_of(input, graph_of(input), name)
    if input.shape[dim] == 1:
        return squeeze(name, input, dim)
    return ops.select(input, dim, index, name=name)


# ---- several, and several times ----------------------------------------------------------------------------------------------


@stands_for("cat", "concat", "concatenate", raw=True)
def concat(name: str, tensors: Sequence[Any], dim: int = 0) -> Any:
    """Concatenate tensors. PyTorch ignores those of shape (0,), and tensors without elements add nothing."""
    some = [tensor for tensor in tensors if not (isinstance(tensor, Fixed) and not tensor.tensor.numel())]
    graph = graph_of(some)
    tensors = [tensor_of(tensor, graph, name) for tensor in some]
    if len(tensors) == 1:
        return tensors[0]
    return ops.concat(tensors, dim, name=name)


@stands_for("stack")
def stack(name: str, tensors: Sequence[Tensor], dim: int = 0) -> Any:
    """Stack tensors along a new dimension."""
    each = [unsqueeze(f"{name}.each", tensor, dim) for tensor in tensors]
    return ops.concat(each, dim % each[0].ndim, name=name)


def repeated(name: str, x: Tensor, dim: int, times: int) -> Tensor:
    """Repeat a tensor this many times along a dimension."""
    if x.shape[dim] == 1:
        return x if times == 1 else ops.expand(x, (*x.shape[:dim], times, *x.shape[dim + 1 :]), name=name)
    if times <= MOST_COPIES:
        return x if times == 1 else ops.concat([x] * times, dim, name=name)
    before, size, after = x.shape[:dim], x.shape[dim], x.shape[dim + 1 :]
    one = ops.reshape(x, (*before, 1, size, *after), name=f"{name}.one")
    each = ops.expand(one, (*before, times, size, *after), name=f"{name}.each")
    return ops.reshape(each, (*before, times * size, *after), name=name)


@stands_for("repeat_interleave")
def repeat_interleave(name: str, input: Tensor, repeats: int, dim: int | None = None, *, output_size: Any = None) -> Any:
    """Repeat every element this many times."""
    require(isinstance(repeats, int), "repeats must be one number")  # the result's size is compared with PyTorch's
    x = flatten(f"{name}.flat", input) if dim is None else input
    at = (dim or 0) % x.ndim
    alone = ops.reshape(x, (*x.shape[: at + 1], 1, *x.shape[at + 1 :]), name=f"{name}.each")
    again = repeated(f"{name}.again", alone, at + 1, repeats)
    return ops.reshape(again, (*x.shape[:at], x.shape[at] * repeats, *x.shape[at + 1 :]), name=name)


@stands_for("repeat", "tile")
def repeat(name: str, input: Tensor, *repeats: Any) -> Any:
    """Repeat the whole tensor this many times along every dimension."""
    times = _sizes(repeats)
    times = (1,) * (input.ndim - len(times)) + times
    x = ops.reshape(input, (1,) * (len(times) - input.ndim) + input.shape, name=f"{name}.led") if len(times) > input.ndim else input
    for dim, count in enumerate(times):
        x = repeated(name, x, dim, count)
    return x


@stands_for("expand", "broadcast_to", raw=True)
def expand(name: str, input: Any, *sizes: Any, implicit: bool = False) -> Any:
    """Repeat dimensions of size 1."""
    wanted = _sizes(sizes)
    require(not isinstance(input, Fixed), "of a fixed tensor")
    skip = len(wanted) - len(input.shape)
    whole = [input.shape[i - skip] if size == -1 else size for i, size in enumerate(wanted)]
    if isinstance(input, Held) and input.kept:
        input = tensor_of(input, input.site.graph, name)
    if isinstance(input, Held):
        own = (input.site.graph, input.shape, whole)
        return input.site.build(ops.expand_weight, [input.tensor], *own, init=started(input.tensor))
    if tuple(whole) == input.shape:
        return input
    return ops.expand(input, whole, name=name)


@stands_for("expand_as")
def expand_as(name: str, input: Any, other: Any) -> Any:
    """Repeat dimensions of size 1, to another tensor's shape."""
    return expand(name, input, *_shape(other))


@stands_for("roll")
def roll(name: str, input: Tensor, shifts: Any, dims: Any = None) -> Any:
    """Shift elements along dimensions; those that leave at the end come back at the start."""
    if dims is None or dims == ():
        raise Unsupported("needs dims")
    pairs = zip(*(([value] if isinstance(value, int) else value) for value in (shifts, dims)))
    for shift, dim in pairs:
        size = input.shape[dim]
        if cut := -shift % size:
            parts = ops.split(input, (cut, size - cut), dim, name=f"{name}.parts")
            input = ops.concat(parts[::-1], dim, name=name)
    return input
