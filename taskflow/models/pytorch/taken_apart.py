"""Functions of torch that are recorded as the functions they are made of: cells of recurrent networks, and short forms (`losses`
are beside them).

Each is what PyTorch's documentation says it is, in functions that have counterparts of their own. Verification compares both."""

from __future__ import annotations

import inspect
import operator
import warnings
from collections.abc import Callable, Sequence
from math import log
from typing import Any

import torch
from torch import nn
from torch._subclasses.fake_tensor import (
    DataDependentOutputException,
    DynamicOutputShapeException,
    UnsupportedFakeTensorException,
)
from torch.nn import functional as F

from taskflow.models.pytorch.calls import reduction_of, tensors_of
from taskflow.models.pytorch.draws import DRAWN_IN_PARTS
from taskflow.models.pytorch.registry import SPACES
from taskflow.models.pytorch.site import Unsupported, require
from taskflow.models.pytorch.steps import mapped, name_of

APART: dict[Any, Callable[..., Any]] = {}
"""For each function of torch the one that is recorded in its place. It names every argument that it understands."""
APART.update(DRAWN_IN_PARTS)
FOLLOWED_MODULES = (
    nn.RNN, nn.modules.rnn.RNNCellBase, nn.modules.loss._Loss, nn.modules.loss._WeightedLoss, nn.CosineSimilarity,
    nn.PairwiseDistance, nn.EmbeddingBag, nn.Softmax2d, nn.Softsign, nn.Softshrink, nn.LocalResponseNorm, nn.AdaptiveMaxPool1d,
    nn.AdaptiveMaxPool2d, nn.AdaptiveAvgPool3d, nn.Dropout1d, nn.Dropout2d, nn.Dropout3d,
)
"""Layers of torch.nn whose own code is followed, down to these functions."""


def apart(*names: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Decorator: the function is recorded for those of these names in `SPACES`."""

    def add(function: Callable[..., Any]) -> Callable[..., Any]:
        found = [getattr(space, name) for space in SPACES for name in names if hasattr(space, name)]
        APART.update(dict.fromkeys(found, function))
        return function

    return add


def in_parts(recorder: Any, target: Any, args: Any, kwargs: Any) -> Any:
    """Let a `TorchRecorder` record a function of `APART` by its parts, and return its result; NotImplemented for one of fixed
    tensors alone, or for arguments with which it has an operator. Raises Unsupported for arguments that are not understood."""
    with recorder.pause():
        args, kwargs = mapped(recorder.in_shadow, args), mapped(recorder.in_shadow, kwargs)
        if not any(map(recorder.tracked, tensors_of((args, kwargs)))):
            return NotImplemented
        where = f"{name_of(target)} in {recorder.inside or 'forward'}"
        given = _understood(where, target, args, kwargs)
        theirs = _shapes(where, recorder, target, args, kwargs)
    with recorder:
        result = APART[target](*given.args, **given.kwargs)
    if result is not NotImplemented and theirs is not None:
        shapes = [list(value.shape) for value in tensors_of(result)]
        require(shapes == theirs, f"{where}: {shapes} would be computed where PyTorch has {theirs}; it is not understood so")
    return result


def _understood(where: str, target: Any, args: Any, kwargs: dict[str, Any]) -> inspect.BoundArguments:
    """Return the arguments of what is recorded in a function's place, which names all that it understands. One that is annotated
    None only has its default."""
    signature = inspect.signature(APART[target])
    if "reduction" in signature.parameters:
        args, kwargs = (), _with_reduction(where, target, args, kwargs)
    try:
        given = signature.bind(*args, **kwargs)
    except TypeError as error:
        raise Unsupported(f"{where}: its arguments are not understood: {error}") from error
    for key, value in given.arguments.items():
        known = signature.parameters[key]
        fine = known.annotation != "None" or value is known.default
        require(fine, f"{where}: the argument {key} is not understood; leave it out, and write what it does with other functions")
    return given


def _with_reduction(where: str, target: Any, args: Any, kwargs: dict[str, Any]) -> dict[str, Any]:
    """Arguments of a loss by name, with ``size_average`` and ``reduce`` in its reduction, as PyTorch has them."""
    given = inspect.signature(target).bind(*args, **kwargs).arguments  # PyTorch has called it with these
    given["reduction"] = reduction_of(given.pop("size_average", None), given.pop("reduce", None), given.get("reduction", "mean"))
    known = ("none", "mean", "sum", *(["batchmean"] if target is F.kl_div else []))
    require(given["reduction"] in known, f"{where}: reduction must be one of {', '.join(known)}, got {given['reduction']!r}")
    return dict(given)


def _shapes(where: str, recorder: Any, target: Any, args: Any, kwargs: Any) -> list[list[int]] | None:
    """Return the shapes of what PyTorch's own function returns; None where they depend on numbers that there are not."""
    state = torch.get_rng_state()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return [list(value.shape) for value in tensors_of(target(*args, **kwargs))]
    except (DataDependentOutputException, DynamicOutputShapeException, UnsupportedFakeTensorException):
        return None
    except Exception as error:  # whatever PyTorch says of the arguments
        raise Unsupported(f"{where}: PyTorch says: {(str(error).splitlines() or [''])[0]}") from error
    finally:  # those that drop may draw numbers
        torch.set_rng_state(state)


# ---- recurrent networks ------------------------------------------------------------------------------------------------------


@apart("cdist")
def _cdist(x1: Any, x2: Any, p: float = 2.0, compute_mode: Any = "use_mm_for_euclid_dist_if_necessary") -> Any:
    """Distances of all vectors of two sets, with the gradient 0 where one is 0; of large sets by a product, as in PyTorch."""
    require(p == 2, "cdist: only p=2")
    if "not" not in str(compute_mode) and max(x1.shape[-2], x2.shape[-2]) > 25:
        product = x1 @ x2.transpose(-1, -2)
        squares = x1.square().sum(-1)[..., :, None] + x2.square().sum(-1)[..., None, :] - 2 * product
    else:
        squares = (x1[..., :, None, :] - x2[..., None, :, :]).square().sum(-1)
    here = squares <= 0
    return torch.where(here, 0.0, torch.where(here, 1.0, squares).sqrt())


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


@apart("pairwise_distance")
def _distance(x1: Any, x2: Any, p: float = 2.0, eps: float = 1e-6, keepdim: bool = False) -> Any:
    return (x1 - x2 + eps).norm(p, -1, keepdim)


@apart("cosine_similarity")
def _cosine(x1: Any, x2: Any, dim: int = 1, eps: float = 1e-8) -> Any:
    return (F.normalize(x1, dim=dim, eps=eps) * F.normalize(x2, dim=dim, eps=eps)).sum(dim)


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
_one(lambda input, other: torch.logsumexp(torch.stack(torch.broadcast_tensors(input, other), -1), -1), "logaddexp")
_one(lambda input, tensor: (input * tensor).sum(), "dot")
_one(lambda input, other: torch.matmul(input.reshape(-1, input.shape[-1]), other.reshape(-1, input.shape[-1]).t()).reshape(
    (*input.shape[:-1], *other.shape[:-1])), "inner")
_one(lambda input, vec2: input[:, None] * vec2[None], "outer", "ger")
_one(lambda input, vec: torch.matmul(input, vec), "mv")
_one(lambda input, end, weight: input + weight * (end - input), "lerp")
_one(lambda input, diagonal=0: input * torch.ones(input.shape[-2:], dtype=input.dtype).tril(diagonal), "tril")
_one(lambda input, diagonal=0: input * torch.ones(input.shape[-2:], dtype=input.dtype).triu(diagonal), "triu")
_one(lambda input: _flipped(input, 0), "flipud")
_one(lambda input: _flipped(input, 1), "fliplr")
_one(lambda input, *at, dims=(): _flipped(input, *((at[0] if at and not isinstance(at[0], int) else at) or dims)), "flip")
_one(lambda input, dim, unbiased=None, keepdim=False, *, correction=None: (
    input.var(dim, keepdim=keepdim, **_lost(unbiased, correction)), input.mean(dim, keepdim=keepdim)), "var_mean")
_one(lambda input, dim, unbiased=None, keepdim=False, *, correction=None: (
    input.std(dim, keepdim=keepdim, **_lost(unbiased, correction)), input.mean(dim, keepdim=keepdim)), "std_mean")
_one(lambda input, indices, dim: input.gather(dim, indices), "take_along_dim")
_one(lambda input, split_sizes, dim=0: torch.split(input, split_sizes, dim), "split_with_sizes")
_one(lambda input, dim: torch.return_types.cummax(_running(input, dim, operator.ge, torch.maximum)), "cummax")
_one(lambda input, dim: torch.return_types.cummin(_running(input, dim, operator.le, torch.minimum)), "cummin")
APART[torch.Tensor.where] = lambda input, condition, other: torch.where(condition, input, other)  # whose order is another one


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


def _running(input: Any, dim: int, wins: Callable[[Any, Any], Any], of_floats: Callable[[Any, Any], Any]) -> Any:
    """The extreme of all numbers up to each one, and the last place where it is."""
    length, own = input.shape[dim], dim % input.ndim
    found = _so_far(input, dim, of_floats if input.is_floating_point() else lambda a, b: torch.where(wins(a, b), a, b))
    places = torch.arange(length).reshape([length if i == own else 1 for i in range(input.ndim)]).expand(input.shape)
    return found, _so_far(torch.where(input == found, places, 0), dim, lambda a, b: torch.where(a > b, a, b))


def _so_far(input: Any, dim: int, better: Callable[[Any, Any], Any]) -> Any:
    """The best of all numbers up to each one: of twice as many at a time."""
    length, size = input.shape[dim], 1
    while size < length:
        best = better(input.narrow(dim, size, length - size), input.narrow(dim, 0, length - size))
        input, size = torch.cat([input.narrow(dim, 0, size), best], dim), 2 * size
    return input


@apart("isin")
def _isin(elements: Any, test_elements: Any, *, assume_unique: bool = False, invert: bool = False) -> Any:
    """Which integers are among others: each is compared with each."""
    found = (elements.unsqueeze(-1) == test_elements.reshape(-1)).long().cumsum(-1)[..., -1]
    return found == 0 if invert else found > 0


@apart("cumprod")
def _cumprod(input: Any, dim: int, *, dtype: Any = None) -> Any:
    """Products of all numbers up to each one: of twice as many at a time."""
    input = input if dtype is None else input.to(dtype)
    length, size = input.shape[dim], 1
    while size < length:
        late = input.narrow(dim, size, length - size) * input.narrow(dim, 0, length - size)
        input, size = torch.cat([input.narrow(dim, 0, size), late], dim), 2 * size
    return input


@apart("prod")
def _prod(input: Any, dim: Any = None, keepdim: bool = False, *, dtype: Any = None) -> Any:
    """The product along a dimension, or of all: of halves at a time."""
    input = input if dtype is None else input.to(dtype)
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
def _diff(input: Any, n: int = 1, dim: int = -1, prepend: Any = None, append: Any = None) -> Any:
    around = [part for part in (prepend, input, append) if part is not None]
    input = torch.cat(around, dim) if len(around) > 1 else input
    for _ in range(n):
        input = input.narrow(dim, 1, input.shape[dim] - 1) - input.narrow(dim, 0, input.shape[dim] - 1)
    return input


@apart("one_hot")
def _one_hot(tensor: Any, num_classes: int = -1) -> Any:
    require(num_classes > 0, "one_hot: give num_classes; the largest of the data's integers is not known")
    return (tensor[..., None] == torch.arange(num_classes)).to(torch.int64)


@apart("local_response_norm")
def _local_response(input: Any, size: int, alpha: float = 1e-4, beta: float = 0.75, k: float = 1.0) -> Any:
    """Numbers divided by a power of the mean square of channels nearby."""
    squares = F.pad(input.square().flatten(2).transpose(1, 2), (size // 2, (size - 1) // 2)).unfold(-1, size, 1).mean(-1)
    return input / (squares.transpose(1, 2).reshape(input.shape) * alpha + k).pow(beta)


def _largest_of_parts(dims: int) -> Callable[..., Any]:
    def built(input: Any, output_size: Any, return_indices: bool = False) -> Any:
        """Of images (N, C, H, W) or rows (N, C, L) that are divided into equal parts, the largest number of each."""
        name = f"adaptive_max_pool{dims}d"
        require(input.ndim == dims + 2, f"{name}: needs a dimension of samples and one of channels: input.unsqueeze(0)")
        sizes = tuple(output_size) if isinstance(output_size, (tuple, list)) else (output_size,) * dims
        whole = input.shape[-dims:]
        sizes = tuple(size or given for size, given in zip(sizes, whole))
        fine = not return_indices and not any(given % size for given, size in zip(whole, sizes))
        require(fine, f"{name}: only of equal parts, and without return_indices")
        each = tuple(given // size for given, size in zip(whole, sizes))
        return F.max_pool2d(input, each) if dims == 2 else F.max_pool1d(input, each)

    return built


for _dims in (1, 2):
    apart(f"adaptive_max_pool{_dims}d")(_largest_of_parts(_dims))


@apart("adaptive_avg_pool3d")
def _mean_of_volumes(input: Any, output_size: Any) -> Any:
    """The mean of each channel (N, C, T, H, W), as classifiers of videos take it."""
    one = output_size in (1, (1, 1, 1), [1, 1, 1]) and input.ndim == 5
    require(one, "adaptive_avg_pool3d: only of (N, C, T, H, W) into one part")
    return input.mean((2, 3, 4), keepdim=True)


@apart("affine_grid")
def _affine_grid(theta: Any, size: Sequence[int], align_corners: bool | None = None) -> Any:
    require(len(size) == 4, f"affine_grid: only of (N, C, H, W), not of {len(size)} dimensions")
    rows, columns = (torch.linspace(-1, 1, n, dtype=theta.dtype) * (1 if align_corners else (n - 1) / n) for n in size[2:])
    at = torch.stack((columns.expand(size[2], -1), rows[:, None].expand(-1, size[3]), torch.ones(size[2], size[3])), -1)
    return (at.to(theta.dtype).reshape(1, -1, 3) @ theta.transpose(1, 2)).reshape(size[0], size[2], size[3], 2)


@apart("as_strided")
def _as_strided(input: Any, size: Sequence[int], stride: Sequence[int], storage_offset: int | None = None) -> Any:
    """Windows of rows, (N, windows, window, ...), that overlap, of (N, rows, ...) or (N, chunks, rows, ...), by places."""
    shape, own, given = list(input.shape), list(input.stride()), list(stride)
    if len(shape) == len(size) > 2 and own[1] == shape[2] * own[2]:  # chunks that lie one after the other
        shape[1:3], own[1:3] = [shape[1] * shape[2]], [own[2]]
    fits = storage_offset is None and len(size) == len(shape) + 1 > 2 and [*given[:1], *given[2:]] == own
    fits = fits and [size[0], *size[3:]] == [shape[0], *shape[2:]] and given[1] > given[1] % own[1] == 0
    step = given[1] // own[1] if fits else 1
    require(fits and (size[1] - 1) * step + size[2] == shape[1], "as_strided: only for windows of rows that lie in turn in memory")
    return input.reshape(shape).unfold(1, size[2], step).movedim(-1, 2)


@apart("sort")
def _sort(input: Any, dim: int = -1, descending: bool = False, stable: bool = False) -> Any:
    x = input.transpose(dim, -1)
    x = x if x.is_floating_point() else x.to(torch.float32)  # whole numbers below 2**24
    values, places = (x if descending else -x).topk(x.shape[-1])
    values = values if descending else -values
    whole = values if input.is_floating_point() else values.long()
    return torch.return_types.sort((whole.transpose(dim, -1), places.transpose(dim, -1)))


@apart("argsort")
def _argsort(input: Any, dim: int = -1, descending: bool = False, stable: bool = False) -> Any:
    return _sort(input, dim, descending)[1]
