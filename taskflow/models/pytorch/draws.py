"""Random numbers that forward draws: operators that draw anew in each step, from one generator of the whole batch.

They are not PyTorch's numbers, as those of dropout are not. Verification gives both sides the same (`SameDraws`)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import torch
from torch.overrides import TorchFunctionMode

from taskflow import operators as ops
from taskflow.graph import OperatorGraph
from taskflow.kernels import NumpyKernels
from taskflow.models.pytorch.calls import all_arguments, tensors_of
from taskflow.models.pytorch.in_rows import samples_of
from taskflow.models.pytorch.registry import FUNCTIONS, RAW
from taskflow.models.pytorch.site import Unsupported, require
from taskflow.models.pytorch.steps import mapped
from taskflow.operators.tensor import Tensor


class Draw(NamedTuple):
    """How a function draws: by standard ``kind`` numbers, and what it makes of these with its arguments."""

    kind: str
    make: Callable[..., Any]


def _normal(z: Any, mean: Any = 0.0, std: Any = 1.0, *_: Any, **__: Any) -> Any:
    return z * std + mean


def _uniform(u: Any, input: Any, low: float = 0.0, high: float = 1.0, **_: Any) -> Any:
    return u * (high - low) + low


def _exponential(u: Any, input: Any, lambd: float = 1.0, **_: Any) -> Any:
    return (1 - u).log() / -lambd


def _bernoulli(u: Any, input: Any, p: Any = None, **_: Any) -> Any:
    return torch.where(u - (input if p is None else p) < 0, u * 0 + 1, u * 0)


def _bernoulli_in_place(u: Any, input: Any, p: Any = 0.5, **_: Any) -> Any:
    return _bernoulli(u, input, p)


def _integers(u: Any, *bounds: Any, low: int = 0, high: int | None = None, **_: Any) -> Any:
    numbers = [bound for bound in bounds if isinstance(bound, int)]
    low, high = (numbers[0], numbers[1]) if len(numbers) > 1 else (low, numbers[0] if high is None else high)
    return (u * (high - low)).long() + low


DRAWS: dict[Any, Draw] = {
    **{function: Draw("normal", lambda z, *_, **__: z) for function in (torch.randn, torch.randn_like)},
    **{function: Draw("uniform", lambda u, *_, **__: u) for function in (torch.rand, torch.rand_like)},
    torch.normal: Draw("normal", _normal),
    torch.Tensor.normal_: Draw("normal", lambda z, _, *args, **named: _normal(z, *args, **named)),
    torch.Tensor.uniform_: Draw("uniform", _uniform), torch.Tensor.exponential_: Draw("uniform", _exponential),
    torch.bernoulli: Draw("uniform", _bernoulli), torch.Tensor.bernoulli: Draw("uniform", _bernoulli),
    torch.Tensor.bernoulli_: Draw("uniform", _bernoulli_in_place),
    torch.randint: Draw("uniform", _integers), torch.randint_like: Draw("uniform", _integers),
}
NOT_BY_SAMPLES = {torch.randperm: "draws an order of all samples together", torch.multinomial: "chooses at random by weights"}


def standard(kind: str, shape: tuple[int, ...], dtype: str) -> Any:
    """Standard numbers of a kind, as a recording has them; here without numbers."""
    return torch.empty(shape, dtype=getattr(torch, dtype))


def drawn(recorder: Any, function: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    """Let a `TorchRecorder` record a function of `DRAWS`, and return its result. Raises Unsupported where its numbers have no
    samples."""
    where = recorder.inside or "forward"
    if function in NOT_BY_SAMPLES:
        raise Unsupported(f"{function.__name__} in {where} {NOT_BY_SAMPLES[function]}: give forward what it draws as an argument")
    in_place = function.__name__.endswith("_")
    with recorder.pause():
        given, named = mapped(recorder.in_shadow, args), mapped(recorder.in_shadow, kwargs)
        result = _without_numbers(function, given, named)
        what, shape, dtype = DRAWS[function].kind, tuple(result.shape), _type_of(result)
        with recorder.shadow.mode or torch.no_grad():
            numbers = torch.empty(shape, dtype=dtype) if recorder.shadow.fake else _alike(what, shape, dtype)
        recorder.add("function", standard, (what, shape, str(dtype).removeprefix("torch.")), {}, numbers)
    with recorder:
        value = DRAWS[function].make(numbers, *args, **kwargs)
        if not in_place:
            return value if value.dtype == result.dtype else value.to(result.dtype)
        args[0][...] = value
        return args[0]


def _without_numbers(function: Any, args: Any, kwargs: dict[str, Any]) -> torch.Tensor:
    """A tensor like the one that a function returns, without its numbers, and without drawing."""
    if function.__name__.endswith(("_", "_like")) or function in (torch.bernoulli, torch.Tensor.bernoulli):
        like = args[0] if args else kwargs["input"]
        return torch.empty(like.shape, dtype=kwargs.get("dtype") or like.dtype, device="meta")
    require(kwargs.get("out") is None, f"{function.__name__} with out is not understood")
    if function is torch.normal and (tensors := tensors_of((args, kwargs))):
        return torch.empty(torch.broadcast_shapes(*(t.shape for t in tensors)), dtype=tensors[0].dtype, device="meta")
    options = {key: value for key, value in kwargs.items() if key not in ("generator", "pin_memory")}
    return function(*args, **{**options, "device": "meta"})  # type: ignore[no-any-return]


def _drawn_again(name: str, graph: OperatorGraph, kind: str, shape: tuple[int, ...], dtype: str) -> Tensor:
    """Return the operator that draws numbers of a shape (N, ...) for the samples of a graph."""
    fits = bool(shape) and shape[0] == samples_of(graph)
    require(fits, f"draws random numbers {list(shape)}, whose first dimension is not that of the samples: give them to forward")
    like = next(node.outputs[0] for node in graph if node.operator.kind == "input")
    return ops.noise(like, shape[1:], kind, dtype, name=name)


FUNCTIONS[standard] = _drawn_again
RAW.add(_drawn_again)


def gumbel_softmax(logits: Any, tau: float = 1, hard: bool = False, eps: float = 1e-10, dim: int = -1) -> Any:
    """What PyTorch computes, by functions that have counterparts; ``eps`` has no effect there either."""
    drawn = -torch.empty_like(logits).exponential_().log()
    soft = ((logits + drawn) / tau).softmax(dim)
    if not hard:
        return soft
    place = soft.argmax(dim, keepdim=True)
    return torch.zeros_like(logits).scatter_(dim, place, 1.0) - soft.detach() + soft


DRAWN_IN_PARTS = {torch.nn.functional.gumbel_softmax: gumbel_softmax}
"""Functions that draw within, and what is recorded, and verified, in their place."""


class SameDraws(TorchFunctionMode):
    """Functions of `DRAWS` return the numbers of operators that are `alike`."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = all_arguments(func, dict(kwargs or {}))
        if func in DRAWN_IN_PARTS:
            with self:
                return DRAWN_IN_PARTS[func](*args, **kwargs)
        if func not in DRAWS:
            return func(*args, **kwargs)
        like = _without_numbers(func, args, kwargs)
        numbers = _alike(DRAWS[func].kind, tuple(like.shape), _type_of(like))
        value = DRAWS[func].make(numbers, *args, **kwargs).to(like.dtype)
        if not func.__name__.endswith("_"):
            return value
        with torch.no_grad():
            return args[0].copy_(value)


def _alike(kind: str, shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
    """The numbers of an operator that is `alike`."""
    numbers = np.empty(shape, str(dtype).removeprefix("torch."))
    draw = NumpyKernels().normal if kind == "normal" else NumpyKernels().uniform
    draw((0, 0), 0, shape, (0,) * len(shape), out=numbers)
    return torch.from_numpy(numbers)


def _type_of(like: torch.Tensor) -> torch.dtype:
    """The type of the standard numbers that others are made of."""
    return like.dtype if like.is_floating_point() else torch.float32
