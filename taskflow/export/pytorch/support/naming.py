"""Names in PyTorch's profiler: of a step, of each module of the network, of sums that are no unit's."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

PREFIX = "taskflow::"  # taskflow profile --torch finds them by it


def name_modules(part: nn.Module) -> None:
    """Let every module's forward be named by its path while a profiler runs."""
    for path, module in part.named_modules():
        if path:
            module.forward = functools.partial(_forward, PREFIX + path, module.forward)


def _forward(name: str, forward: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    if not torch.autograd._profiler_enabled():
        return forward(*args, **kwargs)
    with torch.profiler.record_function(name):
        return forward(*args, **kwargs)


def named(what: str) -> Any:
    """Return a context that is named so while a profiler runs, and nothing else."""
    return torch.profiler.record_function(PREFIX + what) if torch.autograd._profiler_enabled() else contextlib.nullcontext()
