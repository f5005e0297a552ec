"""Example inputs for trying forward: those that a caller gives, or tensors without data if only shapes are known."""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import nn
from torch._dynamo.eval_frame import OptimizedModule
from torch.export import ExportedProgram

from taskflow.models.pytorch.exported import ExportedModule, exported_module, title_of


def module_and_name(module: Any, name: str | None) -> tuple[Any, str]:
    """Return a module (made from an exported program if that is given, or the one that was compiled) and the graph's name."""
    if isinstance(module, ExportedProgram):
        return exported_module(module), name or title_of(module)
    module = module._orig_mod if isinstance(module, OptimizedModule) else module
    return module, name or type(module).__name__


def examples_of(module: Any, examples: Sequence[Any], keywords: Mapping[str, Any] | None = None) -> list[Any]:
    """Return the examples as tensors (a shape: on the meta device, of the module's type), with those given by name at their
    positions. Those in dicts and lists are, too. Numbers, strings, None and lists of lists of numbers are unchanged. Raises
    ValueError if ``module`` is no module, or for an example of any other type."""
    if not isinstance(module, nn.Module):
        raise ValueError(f"from_torch: module must be a torch.nn.Module, got {type(module).__name__}")
    if isinstance(module, ExportedModule) and not examples:
        own = dict(module.examples_)
        keywords = own | dict(keywords or {})
    dtype = next((p.dtype for p in module.parameters() if p.is_floating_point()), torch.get_default_dtype())
    return [_example(value, number, dtype) for number, value in enumerate(_placed(module, examples, keywords or {}))]


def _example(value: Any, number: int, dtype: torch.dtype) -> Any:
    if is_plain(value) or (_dense(value) and value.ndim):
        return value
    if isinstance(value, (tuple, list)) and value and all(isinstance(size, int) and size > 0 for size in value):
        return torch.empty(tuple(value), dtype=dtype, device="meta")
    if isinstance(value, dict) and all(isinstance(key, str) for key in value):
        return {key: _example(part, number, dtype) for key, part in value.items()}
    if isinstance(value, (tuple, list)) and any(isinstance(part, (torch.Tensor, tuple, list)) for part in value):
        return type(value)(_sizes(part) or _example(part, number, dtype) for part in value)
    if hasattr(value, "shape") and hasattr(value, "dtype") and not isinstance(value, torch.Tensor):
        return torch.empty(tuple(value.shape), dtype=getattr(torch, str(value.dtype)), device="meta")
    if _dense(value):
        raise ValueError(
            f"from_torch: example {number} is one number for all samples; hand it over as a Python number, which is part of "
            "the network, or as one for each sample, (N,)"
        )
    raise ValueError(
        f"from_torch: example {number} must be a shape, a dense real tensor, a number, a text, None, or a dict or list of such, "
        f"got {type(value).__name__} {str(value)[:60]}"
    )


def _sizes(value: Any) -> Any:
    """Numbers within a list of lists, which are no shape but part of the network, such as sizes of images; None for others."""
    if isinstance(value, (tuple, list)):
        parts = [_sizes(part) for part in value]
        return None if None in parts else type(value)(parts)
    return value if isinstance(value, (bool, int, float)) else None


def _placed(module: nn.Module, examples: Sequence[Any], keywords: Mapping[str, Any]) -> list[Any]:
    """One example for each argument of forward up to the last that is given; defaults between them."""
    found, left = list(examples), dict(keywords)
    parameters = [*inspect.signature(type(module).forward).parameters.values()][1:]
    named = [p for p in parameters if p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)]
    for parameter in named[len(found) :]:
        if not left:
            break
        if parameter.name not in left and parameter.default is parameter.empty:
            raise ValueError(f"from_torch: {type(module).__name__}: there is no example for its argument {parameter.name}")
        found.append(left.pop(parameter.name, parameter.default))
    if left:
        there_are = ", ".join(p.name for p in named[len(examples) :]) or "none"
        raise ValueError(
            f"from_torch: {type(module).__name__}: forward has no further argument {', '.join(left)}; examples by name may be "
            f"given for {there_are}"
        )
    return found


def is_plain(example: Any) -> bool:
    """True for a number, a text, None, or a dict of such."""
    if isinstance(example, dict):
        return all(isinstance(key, str) and is_plain(value) for key, value in example.items())
    return example is None or isinstance(example, (bool, int, float, str))


def _dense(example: Any) -> bool:
    return isinstance(example, torch.Tensor) and example.layout is torch.strided and not example.is_complex()
