"""Complex numbers of PyTorch's, each as a pair of real tensors: such as rotary positions where no rule fits their tables."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from types import GetSetDescriptorType
from typing import Any

import numpy as np
import torch

from taskflow import operators as ops
from taskflow.graph import OperatorGraph
from taskflow.models.pytorch.masks import MOVING
from taskflow.models.pytorch.recipes import derived
from taskflow.models.pytorch.registry import FUNCTIONS, array_of, constant, fixed_of, number_of, tensor_of
from taskflow.models.pytorch.site import Site, Unsupported, require, started
from taskflow.models.pytorch.steps import Fixed, leaves
from taskflow.operators.tensor import Tensor

BY_PARTS = (MOVING - {"expand_as", "repeat_interleave"}) | {"neg", "__neg__", "negative", "sum", "mean", "cumsum", "flip"}
"""Functions that do the same to the real and the imaginary part."""


@dataclass(frozen=True, slots=True, eq=False)
class Complex:
    """Complex tensor of PyTorch's: its real and its imaginary parts."""

    real: Tensor
    imag: Tensor

    @property
    def shape(self) -> tuple[int, ...]:
        """Its sizes: those of each part."""
        return self.real.shape


Handler = Callable[..., Any]
OF_COMPLEX: dict[Any, Handler] = {}
"""What functions of torch do where an argument is `Complex`, or where they make one."""


def _says(*names: str) -> Callable[[Handler], Handler]:
    def add(handler: Handler) -> Handler:
        found = [getattr(space, name) for space in (torch, torch.Tensor) for name in names if hasattr(space, name)]
        found += [one.__get__ for one in found if isinstance(one, GetSetDescriptorType)]  # properties: the getter is recorded
        OF_COMPLEX.update(dict.fromkeys(found, handler))
        return handler

    return add


def is_complex_call(target: Any, args: Any, kwargs: Any) -> bool:
    """True for a call that involves complex numbers: an argument is of them, or the function makes them."""
    return (target in OF_COMPLEX and target not in FUNCTIONS) or any(
        isinstance(leaf, (Complex, complex)) or (isinstance(leaf, Fixed) and leaf.tensor.is_complex())
        for leaf in leaves((args, kwargs))
    )


def complex_call(target: Any, name: str, graph: OperatorGraph, args: Any, kwargs: Any) -> Any:
    """Return the result of a function of complex numbers. Raises Unsupported for functions that are not understood."""
    if target in OF_COMPLEX:
        return OF_COMPLEX[target](graph, name, *args, **kwargs)
    if getattr(target, "__name__", "") in BY_PARTS and args and isinstance(args[0], Complex):
        function = FUNCTIONS[target]
        each = [function(f"{name}.{at}", part, *args[1:], **kwargs) for at, part in _parts(args[0])]
        return Complex(*(tensor_of(part, graph, name) for part in each))
    raise Unsupported(
        "complex numbers are not understood here; only products, quotients, sums and differences of them, exp, their parts, conj, "
        "polar and changes of shape"
    )


def _parts(value: Complex) -> tuple[tuple[str, Tensor], ...]:
    return (("real", value.real), ("imag", value.imag))


def _as_pair(graph: OperatorGraph, name: str, value: Any) -> tuple[Tensor | float, Tensor | float]:
    """The real and the imaginary part of an operand; of a real one the second is 0."""
    if isinstance(value, Complex):
        return value.real, value.imag
    if isinstance(value, Fixed) and value.tensor.is_complex():
        array = array_of(value)
        real, imag = (
            constant(graph, np.ascontiguousarray(part), f"{name}.{at}") for at, part in (("real", array.real), ("imag", array.imag))
        )
        return real, imag
    if isinstance(value, complex):
        return value.real, value.imag
    number = number_of(value)
    if number is None and isinstance(value, Fixed) and not value.tensor.is_floating_point():
        value = fixed_of(derived(torch.Tensor.to, value.recipe or value.tensor, getattr(torch, str(graph.dtype))))
    found = tensor_of(value, graph, name) if number is None else number
    require(isinstance(found, (Tensor, float)), f"an operand must be a tensor or a number, got {type(value).__name__}")
    return found, 0.0


def _times(name: str, a: Tensor | float, b: Tensor | float) -> Tensor | float:
    if isinstance(a, float) and isinstance(b, float):
        return a * b
    x, y = (b, a) if isinstance(a, float) else (a, b)
    if isinstance(y, float):
        return ops.scale(x, y, name=name) if y else 0.0  # type: ignore[arg-type]
    return ops.mul(x, y, name=name)  # type: ignore[arg-type]


def _plus(name: str, a: Tensor | float, b: Tensor | float) -> Tensor | float:
    if isinstance(a, float) and isinstance(b, float):
        return a + b
    x, y = (b, a) if isinstance(a, float) else (a, b)
    if isinstance(y, float):
        return ops.shift(x, y, name=name) if y else x  # type: ignore[arg-type]
    return ops.add(x, y, name=name)  # type: ignore[arg-type]


def _minus(name: str, a: Tensor | float, b: Tensor | float) -> Tensor | float:
    if isinstance(a, Tensor) and isinstance(b, Tensor):
        return ops.sub(a, b, name=name)
    return _plus(name, a, _times(f"{name}.minus", b, -1.0))


def _made(real: Tensor | float, imag: Tensor | float) -> Complex:
    """A result, one of whose parts may be 0 everywhere."""
    known = next((part for part in (real, imag) if isinstance(part, Tensor)), None)
    if known is None:
        raise Unsupported("a complex number that depends on no input")
    parts = [
        part if isinstance(part, Tensor) else ops.full_like(known, part, name=f"{known.name}.alone") for part in (real, imag)
    ]
    return Complex(parts[0], parts[1])


def held_pair(site: Site, held: Any) -> Complex:
    """A complex parameter: one of the graph's with the pairs of its numbers in a last dimension, as `view_as_real` has them."""
    pairs = torch.view_as_real(held)
    shape = tuple(pairs.shape)
    each = site.build(ops.expand_weight, [held], site.graph, shape, shape, init=started(pairs))
    return Complex(*(ops.select(each, -1, i, name=f"{site.name}.{at}") for i, at in enumerate(("real", "imag"))))


@_says("__setitem__")
def assigned(graph: OperatorGraph, name: str, input: Any, index: Any, value: Any) -> Complex:
    """Complex numbers with others in a part of them, as spectra have it of which only some waves are kept."""
    parts = []
    for at, into, new in zip(("real", "imag"), _apart(input), _as_pair(graph, f"{name}.value", value)):
        found = FUNCTIONS[torch.Tensor.__setitem__](f"{name}.{at}", into, index, new)
        parts.append(tensor_of(found, graph, f"{name}.{at}"))
    return Complex(parts[0], parts[1])


def _apart(value: Any) -> tuple[Any, Any]:
    """The two parts of complex numbers, fixed ones as fixed ones."""
    if isinstance(value, Complex):
        return value.real, value.imag
    require(isinstance(value, Fixed), "writes into what is not computed in this step")
    source = value.recipe or value.tensor
    real, imag = (fixed_of(derived(part, source)) for part in (torch.real, torch.imag))
    return real, imag


@_says("view_as_complex")
def of_pairs(graph: OperatorGraph, name: str, input: Any) -> Complex:
    """Read pairs of numbers in the last dimension as complex numbers."""
    x = tensor_of(input, graph, name)
    require(x.shape[-1] == 2, "needs pairs in the last dimension")
    return Complex(ops.select(x, -1, 0, name=f"{name}.real"), ops.select(x, -1, 1, name=f"{name}.imag"))


@_says("complex")
def of_parts(graph: OperatorGraph, name: str, real: Any, imag: Any) -> Complex:
    """Join real and imaginary parts."""
    parts = [tensor_of(part, graph, f"{name}.{at}") for at, part in (("real", real), ("imag", imag))]
    return Complex(parts[0], parts[1])


@_says("polar")
def of_angles(graph: OperatorGraph, name: str, abs: Any, angle: Any) -> Complex:
    """Join lengths and angles."""
    length, turned = (tensor_of(part, graph, f"{name}.{at}") for at, part in (("abs", abs), ("angle", angle)))
    real, imag = (
        ops.mul(length, wave(turned, name=f"{name}.{at}_wave"), name=f"{name}.{at}")
        for at, wave in (("real", ops.cos), ("imag", ops.sin))
    )
    return Complex(real, imag)


@_says("view_as_real")
def pairs(graph: OperatorGraph, name: str, input: Any) -> Tensor:
    """Write complex numbers as pairs in a new last dimension."""
    require(isinstance(input, Complex), "of what is not complex")
    each = [ops.reshape(part, (*input.shape, 1), name=f"{name}.{at}") for at, part in _parts(input)]
    return ops.concat(each, len(input.shape), name=name)


@_says("real")
def real_part(graph: OperatorGraph, name: str, input: Any) -> Any:
    """The real part."""
    return input.real if isinstance(input, Complex) else tensor_of(input, graph, name)


@_says("imag")
def imaginary_part(graph: OperatorGraph, name: str, input: Any) -> Any:
    """The imaginary part."""
    require(isinstance(input, Complex), "of what is not complex")
    return input.imag


@_says("conj", "conj_physical")
def conjugate(graph: OperatorGraph, name: str, input: Any) -> Any:
    """The number with the opposite angle."""
    if not isinstance(input, Complex):
        return tensor_of(input, graph, name)
    return Complex(input.real, ops.scale(input.imag, -1.0, name=name))


@_says("mul", "multiply", "__rmul__")
def product(graph: OperatorGraph, name: str, input: Any, other: Any) -> Complex:
    """(a + i b) (c + i d) = a c - b d + i (a d + b c)."""
    (a, b), (c, d) = (_as_pair(graph, f"{name}.{at}", value) for at, value in (("first", input), ("second", other)))
    real = _minus(f"{name}.real", _times(f"{name}.ac", a, c), _times(f"{name}.bd", b, d))
    imag = _plus(f"{name}.imag", _times(f"{name}.ad", a, d), _times(f"{name}.bc", b, c))
    return _made(real, imag)


@_says("add", "__radd__")
def total(graph: OperatorGraph, name: str, input: Any, other: Any) -> Complex:
    """The sum."""
    (a, b), (c, d) = (_as_pair(graph, f"{name}.{at}", value) for at, value in (("first", input), ("second", other)))
    return _made(_plus(f"{name}.real", a, c), _plus(f"{name}.imag", b, d))


@_says("sub", "subtract")
def difference(graph: OperatorGraph, name: str, input: Any, other: Any) -> Complex:
    """The difference."""
    (a, b), (c, d) = (_as_pair(graph, f"{name}.{at}", value) for at, value in (("first", input), ("second", other)))
    return _made(_minus(f"{name}.real", a, c), _minus(f"{name}.imag", b, d))


@_says("__rsub__", "rsub")
def difference_from(graph: OperatorGraph, name: str, input: Any, other: Any) -> Complex:
    """The difference the other way round."""
    found: Complex = difference(graph, name, other, input)
    return found


@_says("div", "true_divide")
def quotient(graph: OperatorGraph, name: str, input: Any, other: Any) -> Complex:
    """The quotient: by complex numbers the product with what they are mirrored, by the squares of their lengths."""
    by = other
    if isinstance(other, (Complex, complex)) or (isinstance(other, Fixed) and other.tensor.is_complex()):
        c, d = _as_pair(graph, f"{name}.by", other)
        squares = [_times(f"{name}.{at}_square", part, part) for at, part in (("real", c), ("imag", d))]
        input = product(graph, f"{name}.turned", input, _made(c, _times(f"{name}.minus", d, -1.0)))
        by = _plus(f"{name}.squares", squares[0], squares[1])
    require(isinstance(input, Complex), "only complex numbers divided by real ones")
    each = [FUNCTIONS[torch.div](f"{name}.{at}", part, by) for at, part in _parts(input)]
    return Complex(each[0], each[1])


@_says("__rtruediv__", "__rdiv__")
def quotient_of(graph: OperatorGraph, name: str, input: Any, other: Any) -> Complex:
    """The quotient the other way round."""
    found: Complex = quotient(graph, name, other, input)
    return found


@_says("exp")
def exponential(graph: OperatorGraph, name: str, input: Any) -> Complex:
    """The number whose length is the exponential of the real part, and whose angle is the imaginary part."""
    found: Complex = of_angles(graph, name, ops.exp(input.real, name=f"{name}.length"), input.imag)
    return found


@_says("abs", "absolute")
def length(graph: OperatorGraph, name: str, input: Any) -> Any:
    """The distance from 0, whose gradient is 0 there."""
    first, second = (ops.pow(part, 2.0, name=f"{name}.{at}") for at, part in _parts(input))
    return root(name, ops.add(first, second, name=f"{name}.sum"))


def root(name: str, squares: Tensor) -> Tensor:
    """The square root, with the gradient 0 where it is 0: of distances."""
    none, one = (constant(squares.graph, np.full(1, number, squares.dtype), f"{name}.{number}") for number in (0, 1))
    above = ops.where(squares, "le", 0.0, one, squares, name=f"{name}.above")
    return ops.where(squares, "le", 0.0, none, ops.sqrt(above, name=f"{name}.root"), name=name)


@_says("einsum", "matmul", "bmm", "mm")
def contraction(graph: OperatorGraph, name: str, *given: Any) -> Any:
    """Sums of products of two operands: four real ones."""
    text = [value for value in given if isinstance(value, str)]
    operands = given[1:] if text else given
    require(len(operands) == 2, "of two operands")
    (a, b), (c, d) = (_as_pair(graph, f"{name}.{at}", value) for at, value in zip(("first", "second"), operands))

    def times(at: str, x: Any, y: Any) -> Any:
        if isinstance(x, float) or isinstance(y, float):
            return 0.0
        return FUNCTIONS[torch.einsum if text else torch.matmul](f"{name}.{at}", *text, x, y)

    real = _minus(f"{name}.real", times("ac", a, c), times("bd", b, d))
    return _made(real, _plus(f"{name}.imag", times("ad", a, d), times("bc", b, c)))


@_says("to", "contiguous", "clone", "resolve_conj", "cpu", "cuda")
def unchanged(graph: OperatorGraph, name: str, input: Any, *args: Any, **options: Any) -> Complex:
    """Return the same numbers."""
    wanted = [value for value in (*args, *options.values()) if isinstance(value, torch.dtype)]
    require(all(dtype.is_complex for dtype in wanted), "complex numbers as real ones; take .real")
    return input  # type: ignore[no-any-return]
