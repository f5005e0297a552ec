"""Losses of torch.nn.functional as the functions they are made of. ``size_average`` and ``reduce`` are part of ``reduction`` here:
`in_parts` sees to it."""

from __future__ import annotations

from math import log, pi
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from taskflow.models.pytorch.calls import IGNORED
from taskflow.models.pytorch.site import require
from taskflow.models.pytorch.taken_apart import apart

STEEPEST = 1e-12
"""PyTorch's least divisor in the derivative of binary cross-entropy."""


def _reduced(each: Tensor, reduction: str) -> Tensor:
    return each.mean() if reduction == "mean" else each.sum() if reduction == "sum" else each


def _weighted(each: Tensor, reduction: str, weight: Any) -> Tensor:
    """The mean of weighted numbers is one by weight."""
    if weight is None:
        return _reduced(each, reduction)
    require(weight.shape == each.shape, f"a loss's weights must have its shape {list(each.shape)}, got {list(weight.shape)}")
    each = each * weight
    return each.sum() / weight.sum() if reduction == "mean" else _reduced(each, reduction)


@apart("mse_loss")
def _mse(input: Any, target: Any, reduction: str = "mean", weight: Any = None) -> Any:
    return _weighted((input - target).square(), reduction, weight)


@apart("l1_loss")
def _l1(input: Any, target: Any, reduction: str = "mean", weight: Any = None) -> Any:
    return _weighted((input - target).abs(), reduction, weight)


@apart("huber_loss")
def _huber(input: Any, target: Any, reduction: str = "mean", delta: float = 1.0, weight: Any = None) -> Any:
    """delta (|d| - delta / 2) beyond delta, d squared / 2 within. Its mean is of all numbers, also with weights."""
    within = (input - target).clamp(-delta, delta)
    each = within * (input - target) - 0.5 * within.square()
    return _reduced(each if weight is None else each * weight, reduction)


@apart("smooth_l1_loss")
def _smooth_l1(input: Any, target: Any, reduction: str = "mean", beta: float = 1.0) -> Any:
    if beta == 0:
        return _reduced((input - target).abs(), reduction)
    return _huber(input, target, reduction, beta) / beta


@apart("binary_cross_entropy")
def _bce(input: Any, target: Any, weight: Any = None, reduction: str = "mean") -> Any:
    """Logarithms count as -100 at least, and the derivative has a divisor of `STEEPEST` at least, as PyTorch has them: where an
    input is 0 or 1, that of the logarithms would be infinite."""
    here = input.detach()
    of_one, of_none = here.log().clamp(min=-100.0), (1 - here).log().clamp(min=-100.0)
    slope = (here - target.detach()) / (here * (1 - here)).clamp(min=STEEPEST)
    each = (input - here) * slope - (target * of_one + (1 - target) * of_none)
    return _reduced(each if weight is None else each * weight, reduction)


@apart("binary_cross_entropy_with_logits")
def _bce_of_scores(input: Any, target: Any, weight: Any = None, reduction: str = "mean", pos_weight: Any = None) -> Any:
    softplus = F.softplus(-input)
    spread = softplus if pos_weight is None else softplus * (1 + (pos_weight - 1) * target)
    each = (1 - target) * input + spread
    return _reduced(each if weight is None else each * weight, reduction)


@apart("kl_div")
def _kl(input: Any, target: Any, reduction: str = "mean", log_target: bool = False) -> Any:
    """A target of 0 times its logarithm is 0."""
    if log_target:
        each = target.exp() * (target - input)
    else:
        known = torch.finfo(target.dtype)
        each = target * target.clamp(min=known.tiny if known.bits > 16 else known.tiny * known.eps).log() - target * input
    return each.sum() / input.shape[0] if reduction == "batchmean" else _reduced(each, reduction)


@apart("gaussian_nll_loss")
def _gaussian(input: Any, target: Any, var: Any, full: bool = False, eps: float = 1e-6, reduction: str = "mean") -> Any:
    fine = isinstance(var, Tensor) and var.ndim == input.ndim
    require(fine, "gaussian_nll_loss: var must be a tensor of the input's dimensions: give var.unsqueeze(-1), or a full tensor")
    var = var + (var.clamp(min=eps) - var).detach()
    each = 0.5 * (var.log() + (input - target).square() / var)
    return _reduced(each + 0.5 * log(2 * pi) if full else each, reduction)


@apart("poisson_nll_loss")
def _poisson(
    input: Any, target: Any, log_input: bool = True, full: bool = False, eps: float = 1e-8, reduction: str = "mean",
) -> Any:
    require(not full, "poisson_nll_loss: full=True adds numbers that no weight changes, and is not understood: leave it out")
    each = input.exp() - target * input if log_input else input - target * (input + eps).log()
    return _reduced(each, reduction)


@apart("soft_margin_loss")
def _soft_margin(input: Any, target: Any, reduction: str = "mean") -> Any:
    return _reduced(F.softplus(-target * input), reduction)


@apart("margin_ranking_loss")
def _ranking(input1: Any, input2: Any, target: Any, margin: float = 0.0, reduction: str = "mean") -> Any:
    return _reduced((target * (input2 - input1) + margin).relu(), reduction)


@apart("triplet_margin_loss")
def _triplet(
    anchor: Any, positive: Any, negative: Any, margin: float = 1.0, p: float = 2.0, eps: float = 1e-6, swap: bool = False,
    reduction: str = "mean",
) -> Any:
    near, far = F.pairwise_distance(anchor, positive, p, eps), F.pairwise_distance(anchor, negative, p, eps)
    far = torch.minimum(far, F.pairwise_distance(positive, negative, p, eps)) if swap else far
    return _reduced((near - far + margin).relu(), reduction)


@apart("cosine_embedding_loss")
def _cosine(input1: Any, input2: Any, target: Any, margin: float = 0.0, reduction: str = "mean") -> Any:
    """1 - cosine where the target is 1, what of the cosine is beyond the margin where it is -1."""
    cosine = F.cosine_similarity(input1, input2, -1, 1e-6)
    return _reduced(torch.where(target > 0, 1 - cosine, (cosine - margin).relu()), reduction)


@apart("hinge_embedding_loss")
def _hinge(input: Any, target: Any, margin: float = 1.0, reduction: str = "mean") -> Any:
    return _reduced(torch.where(target > 0, input, (margin - input).relu()), reduction)


@apart("multilabel_soft_margin_loss")
def _multilabel(input: Any, target: Any, weight: Any = None, reduction: str = "mean") -> Any:
    each = F.softplus(input) - target * input
    return _reduced((each if weight is None else each * weight).mean(-1), reduction)


@apart("multi_margin_loss")
def _multi_margin(input: Any, target: Any, p: int = 1, margin: float = 1.0, weight: Any = None, reduction: str = "mean") -> Any:
    """What of the other classes' scores comes closer to the label's than the margin."""
    require(input.ndim == 2, "multi_margin_loss needs scores of several samples: input.unsqueeze(0), target.unsqueeze(0)")
    over = (margin + input - input.gather(1, target.unsqueeze(1))).relu() * (1 - F.one_hot(target, input.shape[1]).to(input.dtype))
    over = over if p == 1 else over.square()
    over = over if weight is None else over * weight[target].unsqueeze(1)
    return _reduced(over.mean(1), reduction)


@apart("nll_loss")
def _nll(input: Any, target: Any, weight: Any = None, ignore_index: int = IGNORED, reduction: str = "mean") -> Any:
    """Of logarithms of probabilities (N, C, ...) and labels (N, ...). Without weights and another ``ignore_index`` than PyTorch's
    own every label counts: one that is left out is no class, which the step refuses."""
    require(input.ndim > 1, "nll_loss needs labels of several samples: input.unsqueeze(0), target.unsqueeze(0)")
    if weight is None and ignore_index == IGNORED:
        return _reduced(-input.gather(1, target.unsqueeze(1)).squeeze(1), reduction)
    share = (target != ignore_index).to(input.dtype)
    labels = target * (target != ignore_index).to(target.dtype)  # any class does for those that are left out
    share = share if weight is None else share * weight[labels]
    each = -input.gather(1, labels.unsqueeze(1)).squeeze(1) * share
    return each.sum() / share.sum() if reduction == "mean" else _reduced(each, reduction)


@apart("cross_entropy")
def _cross_entropy(
    input: Any, target: Any, weight: Any = None, ignore_index: int = IGNORED, reduction: str = "mean",
    label_smoothing: float = 0.0,
) -> Any:
    """Of probabilities in place of labels, each label's loss by itself, or with weights of classes; others have an operator."""
    require(input.ndim > 1, "cross_entropy needs scores of several samples: input.unsqueeze(0), target.unsqueeze(0)")
    if target.is_floating_point():
        require(ignore_index == IGNORED, "cross_entropy: ignore_index is of labels, and targets are probabilities: leave it out")
        target = target if not label_smoothing else target * (1 - label_smoothing) + label_smoothing / input.shape[1]
        each = target * input.log_softmax(1)
        each = each if weight is None else each * weight.reshape(-1, *[1] * (input.ndim - 2))
        return _reduced(-each.sum(1), reduction)
    if weight is None and reduction != "none":
        return NotImplemented
    scores = input.log_softmax(1)
    if not label_smoothing:
        return _nll(scores, target, weight, ignore_index, reduction)
    share = (target != ignore_index).to(input.dtype)
    labels = target * (target != ignore_index).to(target.dtype)
    own = share if weight is None else share * weight[labels]
    spread = scores if weight is None else scores * weight.reshape(-1, *[1] * (input.ndim - 2))
    label, others = -scores.gather(1, labels.unsqueeze(1)).squeeze(1) * own, -spread.sum(1) * share / input.shape[1]
    each = (1 - label_smoothing) * label + label_smoothing * others
    return each.sum() / own.sum() if reduction == "mean" else _reduced(each, reduction)
