"""Functions of torch that are recorded as the functions they are made of: losses, cells of recurrent networks, and short forms.

Each is what PyTorch's documentation says it is, in functions that have counterparts of their own. Verification compares both."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from math import log, pi
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from taskflow.models.pytorch.calls import tensors_of
from taskflow.models.pytorch.steps import mapped

APART: dict[Any, Callable[..., Any]] = {}
"""For each function of torch the one that is recorded in its place. It names every argument that it understands."""
FOLLOWED_MODULES = (
    nn.RNN, nn.modules.rnn.RNNCellBase, nn.modules.loss._Loss, nn.modules.loss._WeightedLoss, nn.CosineSimilarity,
    nn.PairwiseDistance, nn.EmbeddingBag, nn.Softmax2d, nn.Softsign, nn.Softshrink, nn.LocalResponseNorm, nn.AdaptiveMaxPool1d,
    nn.AdaptiveMaxPool2d, nn.AdaptiveAvgPool3d,
)
"""Layers of torch.nn whose own code is followed, down to these functions."""


def apart(*names: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Decorator: the function is recorded for those of these names in torch, torch.Tensor and torch.nn.functional."""

    def add(function: Callable[..., Any]) -> Callable[..., Any]:
        found = [getattr(space, name) for space in (torch, torch.Tensor, F) for name in names if hasattr(space, name)]
        APART.update(dict.fromkeys(found, function))
        return function

    return add


def in_parts(recorder: Any, target: Any, args: Any, kwargs: Any) -> Any:
    """Let a `TorchRecorder` record a function of `APART` by its parts, and return its result; NotImplemented for one of fixed
    tensors alone, and for arguments that are not understood."""
    parts = APART[target]
    with recorder.pause():
        args, kwargs = mapped(recorder.in_shadow, args), mapped(recorder.in_shadow, kwargs)
        if not any(map(recorder.tracked, tensors_of((args, kwargs)))):
            return NotImplemented
    try:
        inspect.signature(parts).bind(*args, **kwargs)
    except TypeError:
        return NotImplemented
    with recorder:
        return parts(*args, **kwargs)


# ---- losses ------------------------------------------------------------------------------------------------------------------


def _reduced(each: Tensor, reduction: str, weight: Any = None) -> Tensor:
    each = each if weight is None else each * weight
    return each.mean() if reduction == "mean" else each.sum() if reduction == "sum" else each


@apart("mse_loss")
def _mse(
    input: Any, target: Any, size_average: None = None, reduce: None = None, reduction: str = "mean", weight: Any = None,
) -> Any:
    return _reduced((input - target).square(), reduction, weight)


@apart("l1_loss")
def _l1(
    input: Any, target: Any, size_average: None = None, reduce: None = None, reduction: str = "mean", weight: Any = None,
) -> Any:
    return _reduced((input - target).abs(), reduction, weight)


@apart("huber_loss")
def _huber(input: Any, target: Any, reduction: str = "mean", delta: float = 1.0, weight: Any = None) -> Any:
    """delta (|d| - delta / 2) beyond delta, d squared / 2 within."""
    within = (input - target).clamp(-delta, delta)
    return _reduced(within * (input - target) - 0.5 * within.square(), reduction, weight)


@apart("smooth_l1_loss")
def _smooth_l1(
    input: Any, target: Any, size_average: None = None, reduce: None = None, reduction: str = "mean", beta: float = 1.0,
) -> Any:
    return _l1(input, target, reduction=reduction) if beta == 0 else _huber(input, target, reduction, beta) / beta


@apart("binary_cross_entropy")
def _bce(
    input: Any, target: Any, weight: Any = None, size_average: None = None, reduce: None = None, reduction: str = "mean",
) -> Any:
    """Logarithms count as -100 at least, as PyTorch has them."""
    each = -(target * input.log().clamp(min=-100.0) + (1 - target) * (1 - input).log().clamp(min=-100.0))
    return _reduced(each, reduction, weight)


@apart("binary_cross_entropy_with_logits")
def _bce_of_scores(
    input: Any, target: Any, weight: Any = None, size_average: None = None, reduce: None = None, reduction: str = "mean",
    pos_weight: Any = None,
) -> Any:
    softplus = F.softplus(-input)
    spread = softplus if pos_weight is None else softplus * (1 + (pos_weight - 1) * target)
    return _reduced((1 - target) * input + spread, reduction, weight)


@apart("kl_div")
def _kl(
    input: Any, target: Any, size_average: None = None, reduce: None = None, reduction: str = "mean", log_target: bool = False,
) -> Any:
    each = target.exp() * (target - input) if log_target else target * (target.log() - input)
    return each.sum() / input.shape[0] if reduction == "batchmean" else _reduced(each, reduction)


@apart("gaussian_nll_loss")
def _gaussian(input: Any, target: Any, var: Any, full: bool = False, eps: float = 1e-6, reduction: str = "mean") -> Any:
    if not isinstance(var, Tensor) or var.ndim != input.ndim:
        return NotImplemented
    var = var + (var.clamp(min=eps) - var).detach()
    each = 0.5 * (var.log() + (input - target).square() / var)
    return _reduced(each + 0.5 * log(2 * pi) if full else each, reduction)


@apart("poisson_nll_loss")
def _poisson(
    input: Any, target: Any, log_input: bool = True, full: bool = False, size_average: None = None, eps: float = 1e-8,
    reduce: None = None, reduction: str = "mean",
) -> Any:
    if full:
        return NotImplemented
    each = input.exp() - target * input if log_input else input - target * (input + eps).log()
    return _reduced(each, reduction)


@apart("soft_margin_loss")
def _soft_margin(input: Any, target: Any, size_average: None = None, reduce: None = None, reduction: str = "mean") -> Any:
    return _reduced(F.softplus(-target * input), reduction)


@apart("margin_ranking_loss")
def _ranking(
    input1: Any, input2: Any, target: Any, margin: float = 0.0, size_average: None = None, reduce: None = None,
    reduction: str = "mean",
) -> Any:
    return _reduced((target * (input2 - input1) + margin).relu(), reduction)


@apart("pairwise_distance")
def _distance(x1: Any, x2: Any, p: float = 2.0, eps: float = 1e-6, keepdim: bool = False) -> Any:
    return (x1 - x2 + eps).norm(p, -1, keepdim)


@apart("triplet_margin_loss")
def _triplet(
    anchor: Any, positive: Any, negative: Any, margin: float = 1.0, p: float = 2.0, eps: float = 1e-6, swap: bool = False,
    size_average: None = None, reduce: None = None, reduction: str = "mean",
) -> Any:
    near, far = _distance(anchor, positive, p, eps), _distance(anchor, negative, p, eps)
    far = torch.minimum(far, _distance(positive, negative, p, eps)) if swap else far
    return _reduced((near - far + margin).relu(), reduction)


@apart("cosine_similarity")
def _cosine(x1: Any, x2: Any, dim: int = 1, eps: float = 1e-8) -> Any:
    return (F.normalize(x1, dim=dim, eps=eps) * F.normalize(x2, dim=dim, eps=eps)).sum(dim)


def _log_likelihood(input: Any, target: Any) -> Any:
    """The logarithms of probabilities (N, C, ...) of the labels (N, ...)."""
    return -input.gather(1, target.unsqueeze(1)).squeeze(1)


@apart("nll_loss")
def _nll(
    input: Any, target: Any, weight: None = None, size_average: None = None, ignore_index: int = -100, reduce: None = None,
    reduction: str = "mean",
) -> Any:
    """Every label counts: one that is left out is no class, which the step refuses."""
    return _reduced(_log_likelihood(input, target), reduction)


@apart("cross_entropy")
def _cross_entropy(
    input: Any, target: Any, weight: None = None, size_average: None = None, ignore_index: int = -100, reduce: None = None,
    reduction: str = "mean", label_smoothing: float = 0.0,
) -> Any:
    """Of probabilities in place of labels, or the loss of each label by itself; others have an operator."""
    if target.is_floating_point():
        target = target if not label_smoothing else target * (1 - label_smoothing) + label_smoothing / input.shape[1]
        each = -(target * input.log_softmax(1)).sum(1)
        return each.mean() if reduction == "mean" else _reduced(each, reduction)
    if reduction != "none" or label_smoothing:
        return NotImplemented
    return _log_likelihood(input.log_softmax(1), target)


# ---- recurrent networks ------------------------------------------------------------------------------------------------------


@apart("gru_cell")
def _gru_cell(input: Any, hx: Any, w_ih: Any, w_hh: Any, b_ih: Any = None, b_hh: Any = None) -> Any:
    of_x, of_h = F.linear(input, w_ih, b_ih).chunk(3, -1), F.linear(hx, w_hh, b_hh).chunk(3, -1)
    reset, kept = (of_x[0] + of_h[0]).sigmoid(), (of_x[1] + of_h[1]).sigmoid()
    new = (of_x[2] + reset * of_h[2]).tanh()
    return new + kept * (hx - new)


@apart("lstm_cell")
def _lstm_cell(input: Any, hx: Any, w_ih: Any, w_hh: Any, b_ih: Any = None, b_hh: Any = None) -> Any:
    gates = (F.linear(input, w_ih, b_ih) + F.linear(hx[0], w_hh, b_hh)).chunk(4, -1)
    c = gates[1].sigmoid() * hx[1] + gates[0].sigmoid() * gates[2].tanh()
    return gates[3].sigmoid() * c.tanh(), c


def _rnn_cell(activation: Callable[[Any], Any]) -> Callable[..., Any]:
    def cell(input: Any, hx: Any, w_ih: Any, w_hh: Any, b_ih: Any = None, b_hh: Any = None) -> Any:
        return activation(F.linear(input, w_ih, b_ih) + F.linear(hx, w_hh, b_hh))

    return cell


def _rnn(activation: Callable[[Any], Any]) -> Callable[..., Any]:
    def built(
        input: Any, hx: Any, weights: Sequence[Any], has_biases: bool, num_layers: int, dropout: float, train: bool,
        bidirectional: bool, batch_first: bool,
    ) -> Any:
        """All layers, step by step; those of one direction begin at the end."""
        x, ways, last = (input if batch_first else input.transpose(0, 1)), 1 + bidirectional, []
        each = 4 if has_biases else 2
        for layer in range(num_layers):
            of_ways = []
            for way in range(ways):
                at = layer * ways + way
                w_ih, w_hh, *biases = weights[at * each : (at + 1) * each]
                known, h, found = F.linear(x, w_ih, biases[0] if biases else None), hx[at], []
                for step in range(x.shape[1]) if not way else reversed(range(x.shape[1])):
                    h = activation(known[:, step] + F.linear(h, w_hh, biases[1] if biases else None))
                    found.append(h)
                of_ways.append(torch.stack(found[::-1] if way else found, 1))
                last.append(h)
            x = of_ways[0] if ways == 1 else torch.cat(of_ways, -1)
            x = F.dropout(x, dropout, train) if dropout and layer < num_layers - 1 else x
        return x if batch_first else x.transpose(0, 1), torch.stack(last)

    return built


for _name, _activation in (("tanh", torch.tanh), ("relu", torch.relu)):
    apart(f"rnn_{_name}_cell")(_rnn_cell(_activation))
    apart(f"rnn_{_name}")(_rnn(_activation))


@apart("embedding_bag")
def _bag(
    input: Any, weight: Any, offsets: None = None, max_norm: None = None, norm_type: float = 2, scale_grad_by_freq: bool = False,
    mode: str = "mean", sparse: bool = False, per_sample_weights: Any = None, include_last_offset: bool = False,
    padding_idx: None = None,
) -> Any:
    """Rows of a table, together for each sample of (N, B) indices."""
    rows = F.embedding(input, weight, None, max_norm, norm_type, scale_grad_by_freq, sparse)
    rows = rows if per_sample_weights is None else rows * per_sample_weights[..., None]
    return rows.sum(1) if mode == "sum" else rows.mean(1) if mode == "mean" else rows.amax(1)


# ---- short forms -------------------------------------------------------------------------------------------------------------


def _one(of: Callable[..., Any], *names: str) -> None:
    apart(*names)(of)


_one(lambda input: input / (1 + input.abs()), "softsign")
_one(lambda input: (input * log(2)).exp(), "exp2")
_one(lambda input: input.log() / log(2), "log2")
_one(lambda input: input.log() / log(10), "log10")
_one(lambda input: (input.exp() - (-input).exp()) / 2, "sinh")
_one(lambda input: (input.exp() + (-input).exp()) / 2, "cosh")
_one(lambda input: input.sin() / input.cos(), "tan")
_one(lambda input: 1 - input.erf(), "erfc")
_one(lambda input, lambd=0.5: F.relu(input - lambd) - F.relu(-input - lambd), "softshrink")
_one(lambda input, eps=None: _logit(input, eps), "logit")
_one(lambda input, other: torch.logsumexp(torch.stack([input, other], -1), -1), "logaddexp")
_one(lambda input, tensor: (input * tensor).sum(), "dot")
_one(lambda input, other: (input * other).sum() if input.ndim == 1 else torch.matmul(input, other.transpose(-1, -2)), "inner")
_one(lambda input, vec2: input[:, None] * vec2[None], "outer", "ger")
_one(lambda input, vec: torch.matmul(input, vec), "mv")
_one(lambda input, end, weight: input + weight * (end - input), "lerp")
_one(lambda input, diagonal=0: input * torch.ones(input.shape[-2:], dtype=input.dtype).tril(diagonal), "tril")
_one(lambda input, diagonal=0: input * torch.ones(input.shape[-2:], dtype=input.dtype).triu(diagonal), "triu")
_one(lambda input: _flipped(input, 0), "flipud")
_one(lambda input: _flipped(input, 1), "fliplr")
_one(lambda input, *dims: _flipped(input, *(dims[0] if dims and not isinstance(dims[0], int) else dims)), "flip")
_one(lambda input, nan=0.0, posinf=None, neginf=None: input.clone(), "nan_to_num")
_one(lambda input, dim, unbiased=None, keepdim=False, *, correction=None: (
    input.var(dim, keepdim=keepdim, **_lost(unbiased, correction)), input.mean(dim, keepdim=keepdim)), "var_mean")
_one(lambda input, dim, unbiased=None, keepdim=False, *, correction=None: (
    input.std(dim, keepdim=keepdim, **_lost(unbiased, correction)), input.mean(dim, keepdim=keepdim)), "std_mean")
_one(lambda input, indices, dim: input.gather(dim, indices), "take_along_dim")
_one(lambda input, split_sizes, dim=0: torch.split(input, split_sizes, dim), "split_with_sizes")


def _logit(input: Any, eps: float | None) -> Any:
    input = input if eps is None else input.clamp(eps, 1 - eps)
    return input.log() - (1 - input).log()


def _lost(unbiased: bool | None, correction: Any) -> dict[str, Any]:
    return {"correction": correction} if correction is not None else {"unbiased": unbiased is not False}


def _flipped(input: Any, *dims: int) -> Any:
    for dim in dims:
        index = torch.arange(input.shape[dim] - 1, -1, -1)
        input = input[(*[slice(None)] * (dim % input.ndim), index)]
    return input


@apart("cumprod")
def _cumprod(input: Any, dim: int, *, dtype: None = None) -> Any:
    """Products of all numbers up to each one: of twice as many at a time."""
    length, size = input.shape[dim], 1
    while size < length:
        late = input.narrow(dim, size, length - size) * input.narrow(dim, 0, length - size)
        input, size = torch.cat([input.narrow(dim, 0, size), late], dim), 2 * size
    return input


@apart("prod")
def _prod(input: Any, dim: Any = None, keepdim: bool = False, *, dtype: None = None) -> Any:
    """The product along a dimension, or of all: of halves at a time."""
    x, at = (input.reshape(-1), 0) if dim is None else (input, dim)
    while (length := x.shape[at]) > 1:
        half = length // 2
        both = x.narrow(at, 0, half) * x.narrow(at, half, half)
        x = torch.cat([both, x.narrow(at, 2 * half, 1)], at) if length % 2 else both
    return x if keepdim else x.squeeze(at)


@apart("broadcast_tensors")
def _broadcast(*tensors: Any) -> Any:
    whole = torch.broadcast_shapes(*(one.shape for one in tensors))
    return tuple(one.expand(whole) for one in tensors)


@apart("diff")
def _diff(input: Any, n: int = 1, dim: int = -1, prepend: None = None, append: None = None) -> Any:
    for _ in range(n):
        input = input.narrow(dim, 1, input.shape[dim] - 1) - input.narrow(dim, 0, input.shape[dim] - 1)
    return input


@apart("one_hot")
def _one_hot(tensor: Any, num_classes: int) -> Any:
    return (tensor[..., None] == torch.arange(num_classes)).to(torch.int64)


@apart("local_response_norm")
def _local_response(input: Any, size: int, alpha: float = 1e-4, beta: float = 0.75, k: float = 1.0) -> Any:
    """Numbers divided by a power of the mean square of channels nearby."""
    squares = F.pad(input.square().flatten(2).transpose(1, 2), (size // 2, (size - 1) // 2)).unfold(-1, size, 1).mean(-1)
    return input / (squares.transpose(1, 2).reshape(input.shape) * alpha + k).pow(beta)


def _largest_of_parts(input: Any, output_size: Any, return_indices: bool = False) -> Any:
    """Of images or rows that are divided into equal parts, the largest number of each."""
    dims = 2 if input.ndim == 4 else 1
    sizes = tuple(output_size) if isinstance(output_size, (tuple, list)) else (output_size,) * dims
    whole = input.shape[-dims:]
    sizes = tuple(size or given for size, given in zip(sizes, whole))
    if return_indices or any(given % size for given, size in zip(whole, sizes)):
        raise ValueError("only of equal parts, and without return_indices")
    each = tuple(given // size for given, size in zip(whole, sizes))
    return F.max_pool2d(input, each) if dims == 2 else F.max_pool1d(input, each)


@apart("adaptive_avg_pool3d")
def _mean_of_volumes(input: Any, output_size: Any) -> Any:
    """The mean of each channel (N, C, T, H, W), as classifiers of videos take it."""
    if output_size not in (1, (1, 1, 1), [1, 1, 1]) or input.ndim != 5:
        raise ValueError("only into one part")
    return input.mean((2, 3, 4), keepdim=True)


APART.update(dict.fromkeys((F.adaptive_max_pool1d, F.adaptive_max_pool2d), _largest_of_parts))
