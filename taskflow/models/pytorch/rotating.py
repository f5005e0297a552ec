"""Rotary positions as modules write them: with halves of the features or with complex numbers, by fixed tables, as `rotary`."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch

from taskflow import operators as ops
from taskflow.models.pytorch.look import Fusion, Look
from taskflow.models.pytorch.recipes import CASTS, exact, varies
from taskflow.models.pytorch.registry import Later, swapped
from taskflow.models.pytorch.steps import Fixed, Ref, TorchStep
from taskflow.operators.rotary import frequencies
from taskflow.operators.tensor import Tensor

MOST_EXACT = 1 << 25  # numbers of a table that are computed before it is known which dimensions repeat themselves
CHECKED = 64  # positions of a table that are all compared with the rule; of the others some
Table = np.ndarray[Any, Any]  # (positions, features)
Waves = tuple[Table, Table]  # cosines and sines of each pair of features
Rates = tuple[int, tuple[float, ...], float]
"""The dimension of the positions, the radians a position of each pair of features, and a factor of all."""


# ---- x cos + rotate_half(x) sin -----------------------------------------------------------------------------------------------


def _two_products(look: Look, step: TorchStep) -> tuple[set[int], tuple[Any, Any], tuple[Any, Any]] | None:
    """The numbers of a sum's steps, and of its two products what is multiplied and the table; None for any other step."""
    if step.kind != "function" or step.name != "add" or len(step.args) != 2 or step.kwargs:
        return None
    inside = {step.number}
    products = [product for arg in step.args if (product := look.step(look.source(arg, inside), "mul")) is not None]
    pairs = [pair for product in products if (pair := _with_table(product)) is not None]
    return ({*inside, *(product.number for product in products)}, pairs[0], pairs[1]) if len(pairs) == 2 else None


def by_halves(look: Look, step: TorchStep) -> Fusion | None:
    """Match ``x * cos + rotate_half(x) * sin``, with tables of all features."""
    if (found := _two_products(look, step)) is None:
        return None
    inside, (x, cosine), (turned, sine) = found
    x, joined = look.source(x, inside), look.step(look.source(turned, inside), "cat", "concat", "concatenate")
    if joined is None or not _along_last(joined, step):
        return None
    parts = joined.args[0]
    minus = look.step(parts[0], "neg") if len(parts) == 2 else None
    halves = [_half(look, part, x, inside) for part in (parts[1], minus.args[0])] if minus is not None else []
    if minus is None or halves != [0, 1]:
        return None
    inside |= {joined.number, minus.number}
    _cast_back(look, step, x, inside)
    return _rotating(look, inside, x, (cosine, sine), _doubled)


def _doubled(tables: Sequence[Table]) -> Waves | None:
    c, s = tables
    half = c.shape[-1] // 2
    if c.shape[-1] % 2 or (c[:, :half] != c[:, half:]).any() or (s[:, :half] != s[:, half:]).any():
        return None
    return c[:, :half], s[:, :half]


def by_neighbours(look: Look, step: TorchStep) -> Fusion | None:
    """Match ``x * cos + rotate_every_two(x) * sin`` (GPT-J), with tables that say each number twice."""
    if (found := _two_products(look, step)) is None:
        return None
    inside, (x, cosine), (turned, sine) = found
    x, flat = look.source(x, inside), look.step(look.source(turned, inside), "flatten", "reshape", "view")
    stacked = look.step(flat.args[0], "stack") if flat is not None else None
    if flat is None or stacked is None or tuple(flat.values[0].shape) != look.shape(x) or not _along_last(stacked, stacked):
        return None
    minus = look.step(stacked.args[0][0], "neg") if len(stacked.args[0]) == 2 else None
    if minus is None or [_every_other(look, part, x, inside) for part in (stacked.args[0][1], minus.args[0])] != [0, 1]:
        return None
    inside |= {flat.number, stacked.number, minus.number}
    _cast_back(look, step, x, inside)
    return _rotating(look, inside, x, (cosine, sine), _of_halves, neighbours=True)


def _of_halves(tables: Sequence[Table]) -> Waves | None:
    c, s = tables
    if c.shape[-1] % 2 or (c[:, ::2] != c[:, 1::2]).any() or (s[:, ::2] != s[:, 1::2]).any():
        return None
    return c[:, ::2], s[:, ::2]


# ---- (x1 cos - x2 sin, x2 cos + x1 sin) ---------------------------------------------------------------------------------------


def by_parts(look: Look, step: TorchStep) -> Fusion | None:
    """Match ``cat((x1 * cos - x2 * sin, x2 * cos + x1 * sin), -1)``, with tables of half the features."""
    if step.kind != "function" or step.name not in ("cat", "concat", "concatenate") or not _along_last(step, step):
        return None
    parts = step.args[0]
    both = [look.step(parts[0], "sub"), look.step(parts[1], "add")] if len(parts) == 2 else []
    inside, found = {step.number}, []
    for one in both:
        for arg in one.args if one is not None and len(one.args) == 2 and not one.kwargs else ():
            product = look.step(look.source(arg, inside), "mul")
            pair = None if product is None else _with_table(product)
            if one is None or product is None or pair is None:
                return None
            inside |= {one.number, product.number}
            found.append(pair)
    if len(found) != 4 or found[0][1] is not found[2][1] or found[1][1] is not found[3][1]:
        return None
    of = [look.step(look.source(x, set()), "chunk", "split", "getitem") for x, _ in found]
    x = of[0].args[0] if of[0] is not None else None
    if not isinstance(x, Ref) or [_half(look, each, x, inside) for each, _ in found] != [0, 1, 1, 0]:
        return None
    _cast_back(look, step, x, inside)
    return _rotating(look, inside, x, (found[0][1], found[1][1]), lambda tables: (tables[0], tables[1]))


# ---- (x1 + i x2) (cos + i sin) ------------------------------------------------------------------------------------------------


def by_complex_numbers(look: Look, step: TorchStep) -> Fusion | None:
    """Match ``view_as_real(view_as_complex(x.reshape(..., -1, 2)) * table).flatten(-2)``, with a table of complex numbers."""
    if step.kind != "function" or step.name != "view_as_real" or len(step.args) != 1:
        return None
    product = look.step(step.args[0], "mul")
    pair = None if product is None else _with_table(product)
    if product is None or pair is None or not pair[1].tensor.is_complex():
        return None
    number = look.step(pair[0], "view_as_complex")
    divided = look.step(number.args[0], "reshape", "view", "unflatten") if number is not None else None
    flat = look.reader(step)
    x = divided.args[0] if divided is not None else None
    if number is None or divided is None or flat is None or flat.name not in ("flatten", "reshape", "view"):
        return None
    if not isinstance(x, Ref) or look.shape(x) != tuple(flat.values[0].shape) or flat.args[0] != Ref(step.number):
        return None
    if tuple(divided.values[0].shape) != (*look.shape(x)[:-1], look.shape(x)[-1] // 2, 2):
        return None
    inside = {step.number, product.number, number.number, divided.number, flat.number}
    wide, casts = x, set(inside)
    x = look.source(x, casts)
    if _cast_back(look, flat, x, casts) or look.type(x) is flat.values[0].dtype:
        inside = casts
    else:
        x = wide
    return _rotating(look, inside, x, (pair[1],), lambda tables: (tables[0].real, tables[0].imag), neighbours=True)


# ---- tables -------------------------------------------------------------------------------------------------------------------


def _rotating(
    look: Look, inside: set[int], x: Ref, tables: tuple[Fixed, ...], waves: Callable[[Sequence[Table]], Waves | None],
    neighbours: bool = False,
) -> Fusion:
    """The fusion that rotates x by what ``waves`` says of the tables."""

    def build(name: str, value: Any) -> Any:
        key = (*map(id, tables), len(value.shape))  # the recording holds them
        if key not in look.known:
            look.known[key] = _rates(tables, len(value.shape), waves)
        return _rotated(name, value, look.known[key], neighbours)

    return Fusion(frozenset(inside), (x,), build, True)


def _cast_back(look: Look, last: TorchStep, x: Ref, inside: set[int]) -> bool:
    """Whether the only reader of the last step converts its result to the type of x; then it is inside."""
    back = look.reader(last)
    found = back is not None and back.name in CASTS and look.type(x) is back.values[0].dtype is not last.values[0].dtype
    if back is not None and found:
        inside.add(back.number)
    return found


def _with_table(product: TorchStep) -> tuple[Ref, Fixed] | None:
    if len(product.args) != 2 or product.kwargs:
        return None
    x, table = product.args if isinstance(product.args[0], Ref) else product.args[::-1]
    return (x, table) if isinstance(x, Ref) and isinstance(table, Fixed) else None


def _along_last(joined: TorchStep, like: TorchStep) -> bool:
    return (joined.args[1:] or (joined.kwargs.get("dim"),)) in ((-1,), (like.values[0].ndim - 1,))


def _half(look: Look, value: Any, x: Ref, inside: set[int]) -> int:
    """0 for the first half of the last dimension of x, 1 for the second, -1 for anything else. Its steps are ``inside``."""
    value = look.source(value, inside)
    step = look.step(value, "getitem", "chunk", "split")
    if step is None or look.source(step.args[0], inside) != x:
        return -1
    inside.add(step.number)
    half = look.shape(x)[-1] // 2
    if step.name != "getitem":
        last = step.kwargs.get("dim", step.args[2] if len(step.args) > 2 else 0) in (-1, len(look.shape(x)) - 1)
        halves = len(step.values) == 2 and all(one.shape[-1] == half for one in step.values)
        return value.index if last and halves else -1  # type: ignore[no-any-return]
    index = step.args[1]
    if not isinstance(index, tuple) or len(index) != 2 or index[0] is not Ellipsis or not isinstance(index[1], slice):
        return -1
    return {(0, half, 1): 0, (half, 2 * half, 1): 1}.get(index[1].indices(2 * half), -1)


def _every_other(look: Look, value: Any, x: Ref, inside: set[int]) -> int:
    """0 for the first elements of all pairs of x, 1 for the second, -1 for anything else. Its steps are ``inside``."""
    step = look.step(look.source(value, inside), "getitem")
    index = step.args[1] if step is not None else None
    if step is None or not isinstance(index, tuple) or look.source(step.args[0], inside) != x:
        return -1
    inside.add(step.number)
    before = all(part is Ellipsis or part == slice(None) for part in index[:-1])
    whole = len(index) == len(look.shape(x)) or Ellipsis in index[:-1]
    if not before or not whole or not isinstance(index[-1], slice):
        return -1
    return {(None, None, 2): 0, (0, None, 2): 0, (1, None, 2): 1}.get((index[-1].start, index[-1].stop, index[-1].step), -1)


def _rotated(name: str, value: Any, found: Rates | None, neighbours: bool) -> Any:
    """The rotated tensor, or None if the tables are no rotation by positions along one dimension."""
    if found is None or len(value.shape) != 4:
        return None
    dim, rates, factor = found
    if dim == 1 and isinstance(value, Tensor):
        return ops.rotary(value, rates=rates, factor=factor, neighbours=neighbours, name=name)
    if dim != 2:
        return None
    base = swapped(value, 1, 2, f"{name}.turned")
    result = ops.rotary(base, rates=rates, factor=factor, neighbours=neighbours, name=name)
    return Later(result, (1, 2), f"{name}.back")


def _rates(tables: Sequence[Fixed], dims: int, waves: Callable[[Sequence[Table]], Waves | None]) -> Rates | None:
    """What tables say of rotary positions; None for other tables."""
    sources = [table.recipe or table.tensor for table in tables]
    if any(len(source.shape) > dims or source.shape != sources[0].shape for source in sources):
        return None
    sources = [exact(source) if math.prod(source.shape) <= MOST_EXACT else source for source in sources]
    along = [dim for dim in range(-len(sources[0].shape), -1) if any(varies(source, dim) for source in sources)]
    if len(along) != 1:
        return None
    index = tuple(slice(None) if dim in (along[0], -1) else 0 for dim in range(-len(sources[0].shape), 0))
    found = waves([_numbers(exact(source)[index]) for source in sources])
    if found is None:
        return None
    c, s = found
    factor = float(np.hypot(c[0, 0], s[0, 0]))
    if factor == 0:
        return None
    rates = _exact_rates(np.arctan2(s[1], c[1]), 2 * c.shape[-1])
    at = np.unique(np.concatenate([np.arange(min(CHECKED, len(c))), np.linspace(0, len(c) - 1, CHECKED).astype(int)]))
    angles = at[:, None] * rates
    off = np.maximum(abs(np.cos(angles) * factor - c[at]), abs(np.sin(angles) * factor - s[at]))
    fits = (off <= factor * (1e-5 + 1e-6 * at[:, None])).all()  # angles of float32 are off by as many ulps as they are large
    return (dims + along[0], tuple(float(rate) for rate in rates), _rounded(factor)) if fits else None


def _numbers(table: torch.Tensor) -> Table:
    return table.to(torch.complex128 if table.is_complex() else torch.float64).resolve_conj().numpy()


def _exact_rates(rates: Table, features: int) -> Table:
    """The rates without the rounding of tables, if they follow from one base."""
    if len(rates) < 2 or not 0 < rates[1] < 1:
        return rates
    theta = float(rates[1] ** (-features / 2))
    for base in (round(theta), round(theta, -int(np.log10(theta)) + 4) if theta >= 1e5 else theta, theta):
        expected = frequencies(features, base)
        if base > 1 and np.allclose(expected, rates, rtol=1e-4, atol=0):
            return expected
    return rates


def _rounded(factor: float) -> float:
    return 1.0 if abs(factor - 1) < 1e-6 else factor
