"""Gradient clipping of a module that is divided among ranks."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.tensor import DTensor


def clipped(
    parameters: Iterable[nn.Parameter], elsewhere: Collection[int], max_norm: float, norm_type: float, stages: Any,
    device: torch.device,
) -> torch.Tensor:
    """Scale the gradients of some parameters so that the norm of those of all stages is at most ``max_norm``, and return that norm.
    ``elsewhere``: identities of parameters that another stage counts. ``stages``: the ranks that have the other stages of
    this replica; None: there are none."""
    gradients: list[torch.Tensor] = []
    counted: dict[Any, list[torch.Tensor]] = {}
    for parameter in parameters:
        if (grad := parameter.grad) is not None:
            gradients.append(grad.to_local() if isinstance(grad, DTensor) else grad)
            if id(parameter) not in elsewhere:
                counted.setdefault(grad.device_mesh if isinstance(grad, DTensor) else None, []).append(grad)
    norms = [torch.zeros((), device=device)]
    for found in counted.values():
        norm = torch.nn.utils.get_total_norm(found, norm_type)
        norms.append(norm.full_tensor() if isinstance(norm, DTensor) else norm)
    total = torch.linalg.vector_norm(torch.stack([norm.to(device, torch.float32) for norm in norms]), norm_type)
    if stages is not None:
        several = math.isfinite(norm_type)
        total = total**norm_type if several else total
        dist.all_reduce(total, dist.ReduceOp.SUM if several else dist.ReduceOp.MAX, group=stages)
        total = total ** (1 / norm_type) if several else total
    scale = (max_norm / (total + 1e-6)).clamp(max=1.0)  # 1e-6 as in PyTorch
    for grad in gradients:
        grad.mul_(scale.to(grad.dtype))
    return total
