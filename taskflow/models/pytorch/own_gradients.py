"""Custom autograd.Functions: those whose backward is the derivative of their forward are recorded by what forward computes; those
whose backward multiplies the gradient by numbers, place by place, by forward and these numbers (straight-through estimates).

Which of both holds is tried on small random tensors, at sizes at which a whole network could not be verified.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from math import prod
from typing import Any

import torch

from taskflow.models.pytorch.calls import tensors_of
from taskflow.models.pytorch.site import Unsupported
from taskflow.models.pytorch.steps import leaves, mapped

MOST_TRIED = 1 << 12  # elements of a tensor with which a function is tried; of a larger one the first in each dimension
SPREADS = ((0.3, 1e-6), (1.0, 1.0), (10.0, 1e6), (0.0, 1.0))  # of the numbers with which it is tried, and of the gradients
NO_DERIVATIVE = "whose backward is not the derivative of its forward"
MULTIPLIES = "whose backward multiplies the gradient by numbers"
CLOSE = 1e-5  # of the largest gradient: constants in a backward are rounded


class _Context:
    """What a forward is given as ``ctx`` where backward is not needed."""

    def __init__(self, given: Sequence[Any]) -> None:
        self.needs_input_grad = tuple(isinstance(value, torch.Tensor) and value.requires_grad for value in given)
        self.saved_tensors: tuple[Any, ...] = ()

    def save_for_backward(self, *tensors: Any) -> None:
        self.saved_tensors = tensors

    def save_for_forward(self, *tensors: Any) -> None:
        pass

    def mark_dirty(self, *tensors: Any) -> None:
        raise Unsupported("a custom autograd.Function that changes its arguments in place")

    def mark_non_differentiable(self, *tensors: Any) -> None:
        pass  # a result with a gradient here and without there is found when it is tried

    def set_materialize_grads(self, value: bool) -> None:
        pass


@contextmanager
def functions_followed(recorder: Any) -> Iterator[None]:
    """Have custom autograd.Functions that a `TorchRecorder` meets in the block run as what their forward computes. Raises
    Unsupported for one whose backward is neither the derivative of that nor a product of the gradient with other numbers."""
    plain, tried = torch.autograd.Function.__dict__["apply"], dict[Any, str | None]()

    def apply(cls: Any, *args: Any, **kwargs: Any) -> Any:
        followed = not recorder.paused and not cls.__module__.startswith("torch.") and not kwargs
        if not followed or not any(map(recorder.tracked, tensors_of(args))):
            return plain.__get__(None, cls)(*args, **kwargs)
        key = (cls, *map(_said, leaves(args)))
        if key not in tried:
            with recorder.pause():
                tried[key] = _difference(cls, plain.__get__(None, cls), args)
                if tried[key] == NO_DERIVATIVE and _multiplies(plain.__get__(None, cls), args):
                    tried[key] = MULTIPLIES
        if tried[key] == MULTIPLIES:
            return _forward_and_factors(cls, args)
        if tried[key] is not None:
            raise Unsupported(
                f"{recorder.inside or 'forward'} calls {cls.__name__}, a custom autograd.Function, {tried[key]}; a graph has the "
                "gradients of what is computed forward, or these times numbers of each place: write it with functions of torch"
            )
        return _forward(cls, args)

    torch.autograd.Function.apply = classmethod(apply)  # type: ignore[assignment,method-assign]
    try:
        yield
    finally:
        torch.autograd.Function.apply = plain  # type: ignore[method-assign]


def _said(value: Any) -> Any:
    """What an argument has in common with those that are tried alike."""
    if isinstance(value, torch.Tensor):
        return (tuple(value.shape), value.dtype, value.requires_grad)
    return (type(value), value) if isinstance(value, (bool, int, float, str, type(None))) else id(value)


def _forward(cls: Any, args: tuple[Any, ...]) -> Any:
    """What a function's forward returns, with the gradients of what it computes."""
    with torch.enable_grad():
        if cls.setup_context is not torch.autograd.Function.setup_context:
            return cls.forward(*args)
        return cls.forward(_Context(args), *args)


def _difference(cls: Any, apply: Callable[..., Any], args: tuple[Any, ...]) -> str | None:
    """The end of a sentence about a function whose backward is not the derivative of its forward; None if it is."""
    longest = _longest_sides(args)
    for number, (spread, push) in enumerate(SPREADS):
        drawn = mapped(partial(_drawn, longest, spread, torch.Generator().manual_seed(number)), args)
        runs = []
        for run in (apply, lambda *given: _forward(cls, given)):
            given = mapped(lambda value: value.clone().requires_grad_(value.requires_grad) if _is(value) else value, drawn)
            with torch.random.fork_rng(devices=[]), torch.enable_grad():
                torch.manual_seed(0)
                try:
                    runs.append(_results(run, given, push))
                except Exception as error:  # whatever it raises
                    why = (str(error).splitlines() or [type(error).__name__])[0]
                    return f"which cannot be tried on small numbers ({why})"
        for what, (theirs, ours) in zip(("results", "gradients"), zip(*runs)):
            if len(theirs) != len(ours) or not all(map(_close, theirs, ours)):
                return f"whose {what} are not those of its forward's functions" if what == "results" else NO_DERIVATIVE
    return None


def _forward_and_factors(cls: Any, args: tuple[Any, ...]) -> Any:
    """What a function's forward returns, without gradients, and zeros whose gradients are what backward makes of ones."""
    context = _Context(args)
    with torch.no_grad():
        if cls.setup_context is not torch.autograd.Function.setup_context:
            result = cls.forward(*args)
            cls.setup_context(context, args, result)
        else:
            result = cls.forward(context, *args)
        result = result.detach()
        factors = cls.backward(context, torch.ones_like(result))
    for value, factor in zip(args, factors if isinstance(factors, tuple) else (factors,)):
        if _is(value) and value.requires_grad and factor is not None:
            flow = factor * (value - value.detach())
            more = [i for i in range(-flow.ndim, 0) if i < -result.ndim or result.shape[i] != flow.shape[i]]
            result = result + (flow.sum(more, keepdim=True).reshape(result.shape) if more else flow)
    return result


def _multiplies(apply: Callable[..., Any], args: tuple[Any, ...]) -> bool:
    """True if a function returns one tensor, and the gradient of each argument is that of the result, repeated to the argument's
    shape, times what backward makes of ones."""
    longest = _longest_sides(args)
    for number, (spread, push) in enumerate(SPREADS):
        drawn = mapped(partial(_drawn, longest, spread, torch.Generator().manual_seed(number)), args)
        given = [value for value in leaves(drawn) if _is(value) and value.requires_grad]
        with torch.random.fork_rng(devices=[]), torch.enable_grad():
            torch.manual_seed(0)
            result = apply(*drawn)
        if not _is(result) or not all(_fits(result.shape, value.shape) for value in given):
            return False
        for push_by in (push, -push):
            by = push_by * torch.randn(result.shape, generator=torch.Generator().manual_seed(number + 9), dtype=result.dtype)
            found, ones = (
                torch.autograd.grad(result, given, each, allow_unused=True, retain_graph=True) for each in (by, torch.ones_like(by))
            )
            if any((a is None) != (b is None) or (a is not None and not _close(a, b * by)) for a, b in zip(found, ones)):
                return False
    return True


def _fits(own: Sequence[int], other: Sequence[int]) -> bool:
    """True if an array of the first shape can be repeated to the second."""
    return len(own) <= len(other) and all(a in (1, b) for a, b in zip(reversed(own), reversed(other)))


def _is(value: Any) -> bool:
    return isinstance(value, torch.Tensor)


def _longest_sides(args: tuple[Any, ...]) -> int:
    """The length to which sides of all arguments are cut, so that none has too many elements, and equal sides stay equal."""
    shapes = [tuple(value.shape) for value in tensors_of(args)]
    longest = max((max(shape, default=1) for shape in shapes), default=1)
    while longest > 1 and any(prod(min(side, longest) for side in shape) > MOST_TRIED for shape in shapes):
        longest //= 2
    return longest


def _drawn(longest: int, spread: float, generator: torch.Generator, value: Any) -> Any:
    """An argument to try a function with: a small random tensor of its kind, in double precision; another value as it is."""
    if not _is(value):
        return value
    sides = [min(side, longest) for side in value.shape]
    if value.is_floating_point():
        result = torch.randn(sides, generator=generator, dtype=torch.float64) * spread
        return result.requires_grad_(value.requires_grad)
    if value.dtype is torch.bool:
        return torch.rand(sides, generator=generator) < 0.5
    return torch.randint(0, 2, sides, generator=generator).to(value.dtype)


def _results(run: Callable[..., Any], given: tuple[Any, ...], push: float) -> tuple[list[Any], list[Any]]:
    """What a function returns, and the gradients of random products of it."""
    result = [value for value in leaves(run(*given)) if _is(value)]
    generator = torch.Generator().manual_seed(1)
    trained = [value for value in leaves(given) if _is(value) and value.requires_grad]
    flows = [value for value in result if value.requires_grad]
    products = [torch.randn(y.shape, generator=generator, dtype=torch.float64).to(y.dtype) * push for y in flows]
    none = [None] * len(trained)
    found = torch.autograd.grad(flows, trained, products, allow_unused=True) if flows and trained else none
    gradients = [torch.zeros_like(value) if gradient is None else gradient for gradient, value in zip(found, trained)]
    return [value.detach() for value in result], gradients


def _close(theirs: torch.Tensor, ours: torch.Tensor) -> bool:
    if theirs.shape != ours.shape or theirs.dtype is not ours.dtype:
        return False
    if not theirs.is_floating_point():
        return torch.equal(theirs, ours)
    least = CLOSE * float(ours.nan_to_num().abs().max()) if ours.numel() else 0.0
    return torch.allclose(theirs, ours, CLOSE, least, equal_nan=True)
