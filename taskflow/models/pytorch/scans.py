"""Functions of packages that scan a sequence step by step or chunk by chunk: each is one operator, or a few.

transformers gives each network a copy of such a function, for which GPUs have kernels of flash-linear-attention and mamba_ssm
(`use_kernel_func_from_hub_with_fallback`). A function stands for an operator if it has one of the names below, and returns on small
random numbers what the definition here returns; another one is followed line by line, as any code.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch.nn import functional as F

from taskflow import operators as ops
from taskflow.models.pytorch.arithmetic import add, mul
from taskflow.models.pytorch.calls import tensors_of
from taskflow.models.pytorch.registry import FUNCTIONS, RAW, tensor_of
from taskflow.models.pytorch.site import require
from taskflow.operators.tensor import Tensor

PACKAGE = "transformers.models."
EPS = 1e-6  # of norms within the delta rules
CLOSE = 1e-4  # they compute in float32
KEPT = "with states that are kept, which only generating needs"
_KNOWN: dict[Any, bool] = {}  # functions that were tried: whether they are as defined here


# ---- definitions, in PyTorch -------------------------------------------------------------------------------------------


def gated_delta_rule(
    query: Any, key: Any, value: Any, g: Any, beta: Any, chunk_size: int = 64, initial_state: Any = None,
    output_final_state: bool = False, use_qk_l2norm_in_kernel: bool = False, **_: Any,
) -> tuple[Any, None]:
    """Return what `linear_attention` with ``beta`` makes of query, key (N, T, G, K), value (N, T, H, V), g (N, T, H) or
    (N, T, H, K)."""
    query, key = (x.repeat_interleave(value.shape[2] // x.shape[2], 2) for x in (query, key))
    if use_qk_l2norm_in_kernel:
        query, key = (x * torch.rsqrt(x.square().sum(-1, True) + EPS) for x in (query, key))
    return _scanned(query * query.shape[-1] ** -0.5, key, value, g, beta), None


def state_space_scan(
    hidden_states: Any, dt: Any, A: Any, B: Any, C: Any, chunk_size: int, D: Any = None, dt_bias: Any = None,
    initial_states: Any = None, dt_softplus: bool = False, dt_limit: tuple[float, float] = (0.0, float("inf")),
    return_final_states: bool = False, z: Any = None, **_: Any,
) -> Any:
    """Return the scan of Mamba 2: x (N, T, H, P), dt (N, T, H), A, D, dt_bias (H), B, C (N, T, G, S) -> (N, T, H, P). Dao and Gu,
    "Transformers are SSMs", arXiv 2405.21060."""
    dt = dt if dt_bias is None else dt + dt_bias
    dt = torch.clamp(F.softplus(dt) if dt_softplus else dt, *dt_limit)
    b, c = (x.repeat_interleave(hidden_states.shape[2] // x.shape[2], 2) for x in (B, C))
    output = _scanned(c, b, hidden_states * dt[..., None], A * dt, None)
    return output if D is None else output + D[:, None] * hidden_states


def _scanned(query: Any, key: Any, value: Any, g: Any, beta: Any) -> Any:
    state, each = torch.zeros(*value.shape[::2], key.shape[-1], value.shape[-1]), []
    for t in range(value.shape[1]):
        left = g[:, t].exp()
        state = state * (left[..., None] if left.ndim == 3 else left[..., None, None])
        new = value[:, t]
        if beta is not None:
            new = beta[:, t, :, None] * (new - torch.einsum("nhkv,nhk->nhv", state, key[:, t]))
        state = state + key[:, t, ..., None] * new[:, :, None]
        each.append(torch.einsum("nhkv,nhk->nhv", state, query[:, t]))
    return torch.stack(each, 1)


# ---- operators ---------------------------------------------------------------------------------------------------------


def _delta(name: str, *args: Any, **kwargs: Any) -> tuple[Tensor, None]:
    called = _arguments(gated_delta_rule, args, kwargs)
    require(called["initial_state"] is None and not called["output_final_state"], KEPT)
    value = called["value"]
    given = [_of_type(name, called[key], key, value) for key in ("query", "key", "value", "g", "beta")]
    return ops.linear_attention(*given, eps=EPS if called["use_qk_l2norm_in_kernel"] else None, name=name), None


def _state_space(name: str, *args: Any, **kwargs: Any) -> Tensor:
    called = _arguments(state_space_scan, args, kwargs)
    plain = called["initial_states"] is None and not called["return_final_states"] and called["z"] is None
    require(plain, KEPT)
    x, dt, bias, skip = (called[key] for key in ("hidden_states", "dt", "dt_bias", "D"))
    samples, steps, heads = x.shape[:3]
    dt = dt if bias is None else add(f"{name}.biased", dt, bias)
    dt = ops.softplus(dt, name=f"{name}.steps") if called["dt_softplus"] else dt
    low, high = called["dt_limit"]
    if (low > 0 or not called["dt_softplus"]) or high != float("inf"):  # softplus is above 0
        dt = ops.clamp(dt, low, high, name=f"{name}.limited")
    decay = mul(f"{name}.decay", dt, _of_type(name, called["A"], "A", dt))
    each = ops.reshape(_of_type(name, dt, "dt", x), (samples, steps, heads, 1), name=f"{name}.of_each")
    value = ops.mul(x, each, name=f"{name}.entering")
    given = [_of_type(name, part, key, x) for key, part in (("C", called["C"]), ("B", called["B"]), ("v", value), ("g", decay))]
    output = ops.linear_attention(*given, scale=1.0, name=name)
    if skip is None:
        return output
    rows = tensor_of(skip, x.graph, f"{name}.D")
    rows = _of_type(name, ops.reshape(rows, (1, 1, heads, 1), name=f"{name}.D.rows"), "D", x)
    return ops.add(output, ops.mul(x, rows, name=f"{name}.passing"), name=f"{name}.with_D")


def _of_type(name: str, value: Any, part: str, like: Tensor) -> Tensor:
    value = tensor_of(value, like.graph, f"{name}.{part}")
    return value if value.dtype == like.dtype else ops.cast(value, like.dtype, name=f"{name}.{part}.{like.dtype}")


def _arguments(function: Callable[..., Any], args: Any, kwargs: Any) -> dict[str, Any]:
    bound = inspect.signature(function).bind(*args, **kwargs)
    bound.apply_defaults()
    return bound.arguments


FUNCTIONS[gated_delta_rule], FUNCTIONS[state_space_scan] = _delta, _state_space
RAW.update((_delta, _state_space))
SCANS: dict[str, Callable[..., Any]] = {
    "torch_chunk_gated_delta_rule": gated_delta_rule, "chunk_kimi_delta_attention": gated_delta_rule,
    "mamba2_chunk_scan": state_space_scan,
}
"""What functions of networks are to be, by their names."""
TARGETS = frozenset(SCANS.values())
"""Functions of recordings that compute in their arguments' types, and within in float32."""


# ---- recording ---------------------------------------------------------------------------------------------------------


@contextmanager
def scans_followed(recorder: Any) -> Iterator[None]:
    """Have the functions of `SCANS` that a module's code calls in the block be one step each of a `TorchRecorder`."""
    spaces = {type(part).__module__ for part in recorder.module.modules()}
    found = [
        (space, name, plain) for kind in sorted(spaces) if kind.startswith(PACKAGE) and (space := sys.modules.get(kind))
        for name in SCANS if callable(plain := getattr(space, name, None))
    ]
    for space, name, plain in found:
        setattr(space, name, _followed(recorder, SCANS[name], plain))
    try:
        yield
    finally:
        for space, name, plain in found:
            setattr(space, name, plain)


def _followed(recorder: Any, target: Callable[..., Any], plain: Callable[..., Any]) -> Callable[..., Any]:
    def call(*args: Any, **kwargs: Any) -> Any:
        follows = recorder.paused or not any(map(recorder.tracked, tensors_of((args, kwargs))))
        if follows or not _is_as_defined(recorder, target, plain):
            return plain(*args, **kwargs)
        run = partial(_without_numbers, target) if recorder.shadow.fake else plain
        return recorder._called("function", target, args, kwargs, run)

    return call


def _is_as_defined(recorder: Any, target: Callable[..., Any], plain: Callable[..., Any]) -> bool:
    """True if a function returns on small random numbers what the definition of its name returns."""
    if plain not in _KNOWN:
        with recorder.pause(), torch.random.fork_rng(devices=[]), torch.no_grad():
            torch.manual_seed(0)
            try:
                args, kwargs = _tried(target, plain)
                theirs, ours = (_first(function(*args, **kwargs)) for function in (plain, target))
                _KNOWN[plain] = theirs.shape == ours.shape and torch.allclose(theirs, ours, CLOSE, CLOSE)
            except Exception:  # whatever it raises, it is another function
                _KNOWN[plain] = False
    return _KNOWN[plain]


def _tried(target: Callable[..., Any], plain: Callable[..., Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Small arguments: several samples, chunks and heads, and heads that share."""
    samples, steps, heads, width, value = 2, 70, 4, 5, 3
    by_feature = plain.__name__ == "chunk_kimi_delta_attention"
    shared = [torch.randn(samples, steps, heads if by_feature else 2, width) for _ in range(2)]
    x, dt = torch.randn(samples, steps, heads, value), torch.rand(samples, steps, heads)
    if target is state_space_scan:
        more = dict(D=torch.randn(heads), dt_bias=torch.randn(heads), dt_softplus=True, dt_limit=(0.1, 0.9))
        return (x, dt, -torch.rand(heads), *shared), dict(chunk_size=16, **more)
    g = -torch.rand(samples, steps, heads, *([width] if by_feature else []))
    return (*shared, x), dict(g=g, beta=dt, use_qk_l2norm_in_kernel=True)


def _first(result: Any) -> Any:
    return result[0] if isinstance(result, tuple) else result


def _without_numbers(target: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """A tensor of the result's shape that depends on all arguments, for tensors without numbers."""
    output = _arguments(target, args, kwargs)["value" if target is gated_delta_rule else "hidden_states"]
    kept = output.dtype
    for value in tensors_of((args, kwargs)):
        output = output * value.sum().to(kept)
    return (output, None) if target is gated_delta_rule else output
