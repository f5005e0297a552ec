"""Functions of torch that take elements by their indices, as operators."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from string import ascii_lowercase
from typing import Any

import numpy as np
import torch

from taskflow import operators as ops
from taskflow.models.pytorch.in_rows import samples_of
from taskflow.models.pytorch.registry import (
    FUNCTIONS,
    RAW,
    Stacked,
    array_of,
    constant,
    fixed_of,
    graph_of,
    number_of,
    once_of,
    stands_for,
    tensor_of,
)
from taskflow.models.pytorch.scattering import Along
from taskflow.models.pytorch.shaping import permuted
from taskflow.models.pytorch.site import require
from taskflow.models.pytorch.steps import Fixed
from taskflow.operators.tensor import Tensor

MOST_CHOSEN = 4_000_000  # zeros and ones of an index by numbers


def _chosen(name: str, x: Tensor, wanted: Sequence[Any]) -> Tensor:
    """x[:, ..., numbers]: the elements of one dimension that fixed integers name, as a product with zeros and ones."""
    places = [i for i, part in enumerate(wanted) if isinstance(part, (Fixed, list))]
    if len(places) > 1 and places == [*range(places[0], places[-1] + 1)]:
        return _pairs(name, x, wanted, places)
    others = [part for i, part in enumerate(wanted) if i not in places]
    fine = len(places) == 1 and all(isinstance(part, slice) and part == slice(None) for part in others)
    require(fine, "an index by numbers must stand alone, or beside full slices")
    dim = places[0]
    numbers = array_of(wanted[dim]) if isinstance(wanted[dim], Fixed) else np.asarray(wanted[dim])
    require(numbers.dtype.kind in "iu", "an index by numbers must be of integers")
    if numbers.ndim == 2 and len(numbers) > 1 and dim == 0 and bool((numbers == numbers[0]).all()):  # positions of all samples
        one = _chosen(f"{name}.one", x, [numbers[0].tolist(), *others])
        return ops.expand(ops.reshape(one, (1, *one.shape), name=f"{name}.led"), (len(numbers), *one.shape), name=name)
    size = x.shape[dim]
    if dim == 0 and numbers.ndim == 1 and (rows := _rows_within(x, numbers)) is not None:
        each = ops.reshape(x, (size // rows.shape[1], rows.shape[1], *x.shape[1:]), name=f"{name}.samples")
        result = _chosen(f"{name}.each", each, [slice(None), rows[0].tolist(), *others])
        return ops.reshape(result, (numbers.size, *x.shape[1:]), name=name)
    one_way = numbers.ndim == 1 and numbers.size > 0 and (numbers[0] < 0) == (numbers[-1] < 0)
    if one_way and bool((numbers - numbers[0] == np.arange(numbers.size)).all()):  # a range
        return ops.narrow(x, dim, int(numbers[0]) % size, numbers.size, name=name) if numbers.size < size else x
    if numbers.size * size > MOST_CHOSEN or x.dtype.kind in "iu":
        return _gathered(name, x, dim, numbers)
    table = np.zeros((numbers.size, size), x.dtype)
    table[np.arange(numbers.size), numbers.reshape(-1)] = 1
    letters = ascii_lowercase[: x.ndim]
    out = letters.replace(letters[dim], "z")
    result = ops.einsum(f"{letters},z{letters[dim]}->{out}", x, constant(x.graph, table, f"{name}.chosen"), name=name)
    shape = (*x.shape[:dim], *numbers.shape, *x.shape[dim + 1 :])
    return result if result.shape == shape else ops.reshape(result, shape, name=f"{name}.shaped")


def _pairs(name: str, x: Tensor, wanted: Sequence[Any], places: Sequence[int]) -> Tensor:
    """x[:, i, j, ...]: elements of neighbouring dimensions that fixed integers of one shape name together."""
    arrays = [array_of(part) if isinstance(part, Fixed) else np.asarray(part) for part in (wanted[i] for i in places)]
    require(all(a.dtype.kind in "iu" for a in arrays), "an index by numbers must be of integers")
    sizes = x.shape[places[0] : places[-1] + 1]
    at = np.ravel_multi_index([a % size for a, size in zip(np.broadcast_arrays(*arrays), sizes)], sizes)
    flat = ops.reshape(x, (*x.shape[: places[0]], prod(sizes), *x.shape[places[-1] + 1 :]), name=f"{name}.flat")
    index = Fixed(torch.from_numpy(np.asarray(at)), 0)
    return _chosen(name, flat, [*wanted[: places[0]], index, *wanted[places[-1] + 1 :]])


def _rows_within(x: Tensor, numbers: Any) -> Any:
    """For each sample the rows of its own that fixed integers name, if these are the same for each: (N, R); None for others."""
    samples = samples_of(x.graph)
    if samples < 2 or x.shape[0] == samples or numbers.size != x.shape[0] or numbers.size % samples:
        return None
    each = (numbers % x.shape[0]).reshape(samples, -1)
    each = each - np.arange(samples)[:, None] * each.shape[1]
    return each if bool((each == each[:1]).all() and (each >= 0).all() and (each < each.shape[1]).all()) else None


def _gathered(name: str, x: Tensor, dim: int, numbers: Any) -> Tensor:
    """The elements of one dimension that many fixed integers name, such as a bias for each distance of two places."""
    first = permuted(f"{name}.first", x, [dim, *(i for i in range(x.ndim) if i != dim)])
    rest = first.shape[1:]
    rows = ops.reshape(first, (1, *first.shape), name=f"{name}.rows")
    index = constant(x.graph, (numbers.reshape(1, -1) % x.shape[dim]).astype(np.int64), f"{name}.index")
    result = ops.gather(rows, index, name=f"{name}.gathered")
    result = ops.reshape(result, (*numbers.shape, *rest), name=f"{name}.shaped")
    count = numbers.ndim
    order = [*range(count, count + dim), *range(count), *range(count + dim, result.ndim)]
    return permuted(f"{name}.turned", result, order)


@stands_for("gather", raw=True)
def gather(name: str, input: Any, dim: int, index: Any, *, sparse_grad: bool = False) -> Any:
    """Elements of each row at computed indices, such as the weights of chosen experts; of a fixed tensor whose numbers are all the
    same these numbers. Or at fixed indices."""
    if isinstance(input, Fixed) and isinstance(index, Tensor) and input.tensor.numel():
        numbers = array_of(input)
        if bool((numbers == numbers.flat[0]).all()):
            return constant(index.graph, np.broadcast_to(numbers.flat[0], index.shape), f"{name}.constant")
    if isinstance(index, Fixed) and not isinstance(input, Fixed):
        taken = _at_places(name, tensor_of(input, graph_of(input), name), dim, index)
        if taken is not None:
            return taken
    x, at = (tensor_of(value, graph_of(input, index), name) for value in (input, index))
    if x.ndim == at.ndim == 1:
        return _rows_of(name, x, at)
    dim %= x.ndim
    require(x.ndim == at.ndim and all(a >= b for i, (a, b) in enumerate(zip(x.shape, at.shape)) if i != dim), "of fewer elements")
    for i, size in enumerate(at.shape):
        x = ops.narrow(x, i, 0, size, name=f"{name}.first{i}") if i != dim and size < x.shape[i] else x
    along = Along.of(f"{name}.index", at, dim)
    return along.back(name, ops.gather(along.given(f"{name}.rows", x), along.index, name=f"{name}.taken"))


def _at_places(name: str, x: Tensor, dim: int, index: Fixed) -> Tensor | None:
    """x[..., i, index[i, j]]: such as scores of distances, at the distance of each two places; None where rows differ."""
    places = array_of(fixed_of(once_of(index)))
    *led, rows, width = x.shape
    alike = tuple(index.tensor.shape[:-1]) == x.shape[:-1] and places.size == rows * index.tensor.shape[-1]
    last = x.ndim > 2 and dim % x.ndim == x.ndim - 1
    if not last or not alike:
        return None
    flat = (places.reshape(rows, -1) + np.arange(rows)[:, None] * width).reshape(1, -1)
    one = ops.reshape(x, (int(np.prod(led)), rows * width), name=f"{name}.rows")
    result = ops.gather(one, constant(x.graph, flat.astype(np.int64), f"{name}.places"), name=f"{name}.taken")
    return ops.reshape(result, (*led, rows, flat.size // rows), name=name)


@stands_for("index_select", raw=True)
def index_select(name: str, input: Any, dim: int, index: Any) -> Any:
    """Elements of a dimension at fixed or computed integer indices."""
    if isinstance(index, Tensor):
        table = tensor_of(input, index.graph, name)
        return _computed(name, table, [*[slice(None)] * (dim % table.ndim), index])
    require(isinstance(index, Fixed), "the index must be a buffer, or be computed from shapes and buffers")
    x = tensor_of(input, graph_of(input), name)
    return _chosen(name, x, [slice(None)] * (dim % x.ndim) + [index])


def _rows_of(name: str, table: Tensor, index: Tensor) -> Tensor:
    """Rows of a table (B, ...) at computed indices of any shape."""
    require(index.dtype.kind in "iu", "an index by numbers must be of integers")
    rows = ops.gather(
        ops.reshape(table, (1, *table.shape), name=f"{name}.table"),
        ops.reshape(index, (prod(index.shape), 1), name=f"{name}.index"), name=f"{name}.rows",
    )
    return ops.reshape(rows, (*index.shape, *table.shape[1:]), name=name)


def _at_computed(name: str, x: Tensor, indices: Sequence[Any]) -> Tensor:
    """x[i, j, ...]: what stands where computed integers, or some that are fixed, say in the first dimensions. The step refuses
    those below 0 or beyond their dimension."""
    if len(indices) == 2 and _is_count(indices[0], x.shape[0]) and indices[1].shape[:1] == x.shape[:1]:  # one of each row
        rows = ops.reshape(indices[1], (x.shape[0], prod(indices[1].shape[1:])), name=f"{name}.index")
        taken = ops.gather(x, rows, name=f"{name}.taken")
        return ops.reshape(taken, (*indices[1].shape, *x.shape[2:]), name=name)
    given = [tensor_of(index, x.graph, f"{name}.fixed") for index in indices]
    require(all(index.dtype.kind in "iu" for index in given), "an index by numbers must be of integers")
    if (count := len(given)) == 1:
        return _rows_of(name, x, given[0])
    at, *others = (
        _within(f"{name}.index{dim}", index, size) for dim, (index, size) in enumerate(zip(given, x.shape))
    )
    for size, index in zip(x.shape[1:], others):
        wide = ops.mul(at, constant(x.graph, np.array([size]), f"{name}.sizes"), name=f"{name}.before")
        at = ops.add(wide, index, name=f"{name}.at")
    return _rows_of(name, ops.reshape(x, (prod(x.shape[:count]), *x.shape[count:]), name=f"{name}.flat"), at)


def _is_count(index: Any, size: int) -> bool:
    """True for the fixed integers 0, 1, 2, ... to ``size``, alone or as a column."""
    if not isinstance(index, Fixed) or index.tensor.numel() != size or index.tensor.shape[0] != size:
        return False
    return bool((array_of(index).reshape(-1) == np.arange(size)).all())


def _within(name: str, index: Tensor, size: int) -> Tensor:
    """An index as it is, whose step checks it: one that is beyond its dimension would take what stands elsewhere."""
    return _rows_of(name, constant(index.graph, np.arange(size), f"{name}.places"), index)


def _unfold(name: str, input: Any, dimension: int, size: int, step: int) -> Any:
    """All ranges of ``size`` elements of a dimension that begin ``step`` apart, as a new last dimension."""
    x = tensor_of(input, graph_of(input), name)
    dim = dimension % x.ndim
    places = np.arange(0, x.shape[dim] - size + 1, step)[:, None] + np.arange(size)
    if step == size:  # side by side
        x = x if places.size == x.shape[dim] else ops.narrow(x, dim, 0, places.size, name=f"{name}.range")
        result = ops.reshape(x, (*x.shape[:dim], *places.shape, *x.shape[dim + 1 :]), name=f"{name}.windows")
    else:
        result = _chosen(f"{name}.windows", x, [slice(None)] * dim + [Fixed(torch.from_numpy(places), 0)])
    order = [i for i in range(result.ndim) if i != dim + 1]
    return permuted(name, result, [*order, dim + 1])


FUNCTIONS[torch.Tensor.unfold] = _unfold
RAW.add(_unfold)


def _mesh(name: str, x: Tensor, wanted: Sequence[Any]) -> Tensor:
    """x[rows, columns, ...] by fixed integers of which each vary along a dimension of their own (an open mesh, numpy's ``ix_``)."""
    arrays = [array_of(part) for part in wanted]
    require(all(array.dtype.kind in "iu" for array in arrays), "an index by numbers must be of integers")
    whole = np.broadcast_shapes(*(array.shape for array in arrays))
    axes: list[int] = []  # for each index the dimension of the result that it varies along
    for array in arrays:
        along = [len(whole) - array.ndim + i for i, size in enumerate(array.shape) if size > 1]
        require(len(along) <= 1, "several indices by numbers must each vary along one dimension")
        axes.append(along[0] if along else next(i for i in range(len(whole)) if whole[i] == 1 and i not in axes))
    require(len(set(axes)) == len(axes), "several indices by numbers must vary along different dimensions")
    for dim, array in enumerate(arrays):
        numbers = array.reshape(-1) % x.shape[dim]
        if numbers.size != x.shape[dim] or (numbers != np.arange(numbers.size)).any():
            x = _chosen(f"{name}.{dim}", x, [slice(None)] * dim + [Fixed(torch.from_numpy(numbers), 0)])
    rest = list(range(len(axes), x.ndim))
    x = permuted(f"{name}.turned", x, [*sorted(range(len(axes)), key=axes.__getitem__), *rest])
    return ops.reshape(x, (*whole, *x.shape[len(axes) :]), name=name)


def _sliced(wanted: Sequence[Any], shape: tuple[int, ...]) -> list[tuple[Any, int]]:
    """The parts of an index that take up a dimension, each with its size."""
    return list(zip((part for part in wanted if part is not None), shape))


def _plain(part: Any) -> Any:
    """A slice with numbers in place of tensors without dimensions; other parts of an index as they are."""
    if not isinstance(part, slice):
        return part
    return slice(*(int(number_of(at) or 0) if isinstance(at, Fixed) else at for at in (part.start, part.stop, part.step)))


@stands_for("diagonal")
def diagonal_of(name: str, input: Tensor, offset: int = 0, dim1: int = 0, dim2: int = 1) -> Any:
    """The elements whose places in two dimensions are the same, or ``offset`` apart, as the last dimension."""
    first, second = dim1 % input.ndim, dim2 % input.ndim
    rest = [i for i in range(input.ndim) if i not in (first, second)]
    x = permuted(f"{name}.first", input, [first, second, *rest])
    count = min(x.shape[0], x.shape[1] - offset) if offset >= 0 else min(x.shape[0] + offset, x.shape[1])
    require(count > 0, "of a diagonal without elements")
    along = torch.arange(count)
    taken = _pairs(f"{name}.taken", x, [Fixed(along - min(0, offset), 0), Fixed(along + max(0, offset), 0)], (0, 1))
    return permuted(name, taken, [*range(1, taken.ndim), 0])


@stands_for("diag")
def diag(name: str, input: Tensor, diagonal_: int = 0, *, diagonal: int = 0) -> Any:
    """The diagonal of a matrix, or the matrix of one."""
    offset = diagonal_ or diagonal
    if input.ndim == 2:
        return diagonal_of(name, input, offset)
    require(offset == 0, "a matrix of a diagonal beside the middle")
    eye = constant(input.graph, np.eye(input.shape[0], dtype=input.dtype), f"{name}.eye")
    return ops.mul(ops.reshape(input, (1, *input.shape), name=f"{name}.row"), eye, name=name)


def _computed(name: str, x: Tensor, wanted: Sequence[Any]) -> Tensor:
    """x[1, :, i, j]: computed integers next to each other, behind integers and full slices."""
    first = next(at for at, part in enumerate(wanted) if isinstance(part, (Tensor, Fixed)))
    indices = [part for part in wanted[first:] if part != slice(None) and part is not Ellipsis]
    fine = all(isinstance(part, (Tensor, Fixed)) for part in indices) and all(
        part == slice(None) or isinstance(part, int) for part in wanted[:first]
    ) and list(wanted[first : first + len(indices)]) == indices
    require(fine, "computed indices must be next to each other, behind integers and full slices")
    if first:
        x = item(f"{name}.before", x, (*wanted[:first],))
    dim = sum(part == slice(None) for part in wanted[:first])
    if dim == 0:
        return _at_computed(name, x, indices)
    turned = permuted(f"{name}.first", x, [*range(dim, x.ndim), *range(dim)])
    result = _at_computed(f"{name}.taken", turned, indices)
    return permuted(name, result, [*range(result.ndim - dim, result.ndim), *range(result.ndim - dim)])


@stands_for("__getitem__", raw=True)
def item(name: str, input: Any, index: Any) -> Any:
    """Index x[index]: integers, slices, ``...`` and None; or fixed integers for one dimension."""
    wanted = [_plain(part) for part in (index if isinstance(index, tuple) else [index])]
    if isinstance(input, Stacked) and isinstance(wanted[0], int):
        input = input.parts[wanted.pop(0)]
        if not wanted:
            return input
    input = tensor_of(input, graph_of(input, *wanted), name)
    if any(isinstance(part, Tensor) for part in wanted):
        return _computed(name, input, wanted)
    if any(part is Ellipsis for part in wanted):
        at = next(i for i, part in enumerate(wanted) if part is Ellipsis)
        missing = input.ndim - sum(part is not None for part in wanted) + 1
        wanted[at : at + 1] = [slice(None)] * missing
    if any(isinstance(part, (Fixed, list)) for part in wanted):
        require(all(part is not None for part in wanted), "an index by numbers beside None")
        shapes = {tuple(part.tensor.shape) if isinstance(part, Fixed) else None for part in wanted}
        if len(wanted) > 1 and None not in shapes and (len(shapes) > 1 or prod(min(shapes)) == 1):  # type: ignore[type-var, arg-type]
            return _mesh(name, input, wanted)
        return _chosen(name, input, wanted)
    shape: list[int] = []
    x, dim = input, 0
    if any(isinstance(part, slice) and not range(*part.indices(size)) for part, size in _sliced(wanted, input.shape)):
        none = torch.empty(input.shape, device="meta")[index].shape  # no elements: joined with others, it adds none
        return Fixed(torch.empty(none), 0)
    for part in wanted:
        if part is None:
            shape.append(1)
            continue
        whole = isinstance(part, (int, np.integer)) and not isinstance(part, bool)
        require(whole or isinstance(part, slice), f"an index must be an integer or a slice, got {type(part).__name__}")
        size = x.shape[dim]
        low, high, step = (int(part), int(part) + 1, 1) if whole else part.indices(size)
        low, high = (low + size, high + size) if low < 0 else (low, high)
        require(low < high, "a slice must have elements")
        if step > 1:  # every so-manieth: the first column of rows of so many
            count = -(-(high - low) // step)
            start = min(low, size - count * step)
            if start < 0 or low - start >= step:  # the last row is not whole
                edges = (*[0] * (2 * (x.ndim - 1 - dim)), 0, low + count * step - size)
                x, size, start = ops.pad(x, edges, name=f"{name}.longer"), low + count * step, low
            x = ops.narrow(x, dim, start, count * step, name=f"{name}.range") if count * step < size else x
            x = ops.reshape(x, (*x.shape[:dim], count, step, *x.shape[dim + 1 :]), name=f"{name}.steps")
            x = ops.select(x, dim + 1, low - start, name=f"{name}.first")
            high = low + count
        elif (low, high) != (0, size):
            x = ops.narrow(x, dim, low, high - low, name=name)
        if not whole:
            shape.append(high - low)
        dim += 1
    shape.extend(x.shape[dim:])
    return x if tuple(shape) == x.shape else ops.reshape(x, shape, name=name)
