"""Modules by their paths, and their preparation before they are divided."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractContextManager
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.utils.checkpoint import checkpoint, set_checkpoint_early_stop

from taskflow.export.pytorch.support.plan import LayerPlan, ParallelPlan


def named_layer(layers: Mapping[str, LayerPlan], path: str) -> LayerPlan | None:
    """Return the plan of the layer at a path; None if it is not cut."""
    return next((layer for pattern, layer in layers.items() if _is(path, pattern)), None)


def matching(module: nn.Module, patterns: Iterable[str]) -> list[str]:
    """Return the paths of the modules that match."""
    return [path for path, _ in module.named_modules() if path and any(_is(path, pattern) for pattern in patterns)]


def _is(path: str, pattern: str) -> bool:
    return re.fullmatch(re.escape(pattern).replace("\\#", r"\d+"), path) is not None


def require_planned(module: nn.Module, plan: ParallelPlan) -> None:
    """Raise ValueError if a module is not the one that a plan is for, as far as its layers and its number of parameters say."""
    count, name = sum(parameter.numel() for parameter in module.parameters()), type(module).__name__
    lacks = [f"no {path}" for path in (*plan.layers, *plan.units) if path and not matching(module, (path,))]
    if plan.elements not in (0, count):
        lacks.insert(0, f"{count:,} parameters, not {plan.elements:,}")
    if lacks:
        more = f" and {len(lacks) - 3} more" if len(lacks) > 3 else ""
        raise ValueError(
            f"this plan is for another module: {name} has {', '.join(lacks[:3])}{more}; give parallelize the module that was "
            "imported, or import and export this one"
        )


def broadcast(module: nn.Module, device: torch.device) -> None:
    """Give all ranks the initial weights of rank 0. Each goes by way of ``device``, since NCCL sends none of a host's, and back: a
    device may have no room for all of them."""
    for value in (*module.parameters(), *module.buffers()):
        if not value.is_meta:
            sent = value.detach().to(device)
            dist.broadcast(sent, 0)
            value.detach().copy_(sent)


def moved(module: nn.Module, device: torch.device) -> None:
    """Bring to a device the parameters that a module has elsewhere, but for those that have only shapes."""
    for part in module.modules():
        if any(p is not None and not p.is_meta and p.device != device for p in part._parameters.values()):
            part._apply(lambda value: value if value.is_meta or value.device == device else value.to(device), recurse=False)


def moved_buffers(module: nn.Module, device: torch.device) -> None:
    """Bring a module's buffers to a device, but for those that have only shapes."""
    for part in module.modules():
        for name, value in part._buffers.items():
            if value is not None and not value.is_meta:
                part._buffers[name] = value.to(device)


def recompute(part: nn.Module, around: Callable[[], AbstractContextManager[None]], whole: bool = False) -> None:
    """Keep no intermediate values of a module; compute them again for the backward pass, in the context ``around``. ``whole``: to
    the module's end, as the reentrant checkpoint does; otherwise until all that the backward pass reads is there."""
    forward = part.forward

    def within(*args: Any, **kwargs: Any) -> Any:
        with around():
            return forward(*args, **kwargs)

    def again(*args: Any, **kwargs: Any) -> Any:
        with set_checkpoint_early_stop(not whole):
            return checkpoint(within, *args, use_reentrant=False, **kwargs)

    part.forward = again
