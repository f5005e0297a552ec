"""The mean of a loss over the elements of a whole batch that count, of which each rank and micro-batch has some."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist

Criterion = Callable[[Any, Any], torch.Tensor]


class MeanOverAll:
    """Weighs the means over pieces of a batch by what counts in them: all elements of the target, of integers those that are not
    ``ignore_index``. Gradients are averaged over the ``replicas`` afterwards. ``group``: whose targets together are the batch's; by
    default each rank has all of it."""

    def __init__(self, target: Any, ignore_index: int, replicas: int, device: torch.device, group: Any = None) -> None:
        self.ignore_index, self.replicas = ignore_index, replicas
        every = self._counted(target).to(device, non_blocking=True)
        if group is not None:
            dist.all_reduce(every, group=group)
        self.all = every.clamp(min=1)

    def of(self, loss: Criterion, output: Any, target: Any) -> torch.Tensor:
        """Return what a piece adds to the mean. ``loss``: the mean over the piece, which may be nan if nothing counts there."""
        count = self._counted(target)
        if _has_labels(target):  # a label that counts, so that all gradients are 0, not nan
            target = torch.where(count > 0, target, int(self.ignore_index == 0))
        mean = loss(output, target)
        exact = torch.promote_types(mean.dtype, torch.float32)
        return mean * ((count * self.replicas).to(exact) / self.all)

    def _counted(self, target: Any) -> torch.Tensor:
        if _has_labels(target):
            found: torch.Tensor = (target != self.ignore_index).sum()
            return found
        return torch.tensor(target.numel() if isinstance(target, torch.Tensor) else len(target))


def _has_labels(target: Any) -> bool:
    return isinstance(target, torch.Tensor) and not target.is_floating_point() and target.dtype != torch.bool
