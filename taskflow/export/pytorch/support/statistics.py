"""Batch normalisation over the samples of all replicas."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from taskflow.export.pytorch.support.exchange import gather


def share_statistics(module: nn.Module, group: Any) -> None:
    """Let batch normalisation use the samples of all replicas."""
    for part in list(module.modules()):
        if isinstance(part, nn.modules.batchnorm._BatchNorm):
            part.forward = SharedStatistics(part, group)  # type: ignore[assignment,method-assign]


class SharedStatistics:
    """The forward of batch normalisation in training with statistics of a group (on GPUs SyncBatchNorm does the same faster)."""

    def __init__(self, part: nn.Module, group: Any) -> None:
        self.part, self.group = part, group

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        part: Any = self.part
        if not part.training:
            return type(part).forward(part, x)  # type: ignore[no-any-return]
        y, mean, variance = NormalisedTogether.apply(x, part.weight, part.bias, self.group, part.eps)
        count = x.numel() // x.shape[1] * dist.get_world_size(self.group)
        with torch.no_grad():
            part.num_batches_tracked += 1
            part.running_mean.lerp_(mean, part.momentum)
            part.running_var.lerp_(variance * count / max(1, count - 1), part.momentum)
        return y  # type: ignore[no-any-return]


class NormalisedTogether(torch.autograd.Function):
    """Normalisation by the statistics of all ranks of a group, which have equally many samples: one message forward, with each
    rank's means and variances, and one back, with the sums of its gradients."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, weight: Any, bias: Any, group: Any, eps: float) -> Any:
        """Return the result, the mean and the variance."""
        dims = [dim for dim in range(x.ndim) if dim != 1]
        size = dist.get_world_size(group)
        variance, mean = torch.var_mean(x, dims, correction=0)
        every = x.new_empty(size, 2, len(mean))
        gather(every.flatten(0, 1), torch.stack((mean, variance)), group=group)
        mean = every[:, 0].mean(0)
        variance = (every[:, 1] + (every[:, 0] - mean).square()).mean(0)
        ctx.save_for_backward(x, weight, mean, variance)
        ctx.group, ctx.eps, ctx.count = group, eps, size * x.numel() // x.shape[1]
        ctx.mark_non_differentiable(mean, variance)
        return nn.functional.batch_norm(x, mean, variance, weight, bias, False, 0.0, eps), mean, variance

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor, *_: Any) -> Any:  # type: ignore[override]
        """Return the gradients of x, weight and bias, the last two of this rank's samples."""
        x, weight, mean, variance = ctx.saved_tensors
        kept = x.new_empty(0, dtype=torch.promote_types(x.dtype, torch.float32)) if x.is_cuda else None  # some kernels ask for one
        given, of_weight, of_bias = torch.ops.aten.native_batch_norm_backward(
            gradient, x, weight, mean, variance, kept, kept, False, ctx.eps, [True, True, True]
        )
        sums = torch.stack((of_weight, of_bias))
        dist.all_reduce(sums, group=ctx.group)
        scale = (variance + ctx.eps).rsqrt()
        factor = scale if weight is None else scale * weight
        slope = factor * scale * sums[0] / ctx.count
        shape = [1, -1] + [1] * (x.ndim - 2)
        start = (factor * sums[1] / ctx.count - mean * slope).reshape(shape)
        return given.sub_(start).addcmul_(x, slope.reshape(shape), value=-1), of_weight, of_bias, None, None
