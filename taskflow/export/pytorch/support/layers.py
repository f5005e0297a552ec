"""Layers that compute on this rank's pieces, with DTensors between them."""

from __future__ import annotations

import contextlib
import copy
import functools
import itertools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.overrides import TorchFunctionMode

from taskflow.export.pytorch.support.exchange import DTensor, Partial, Replicate, Shard, placed, placed_piece
from taskflow.export.pytorch.support.modules import named_layer
from taskflow.export.pytorch.support.plan import LayerPlan, Placements
from taskflow.export.pytorch.support.statistics import SharedStatistics


def cut_layers(module: nn.Module, layers: Mapping[str, LayerPlan], mesh: DeviceMesh, known: dict[int, nn.Parameter]) -> None:
    """Make every parameter a DTensor, and let the named layers compute on their pieces. ``known``: those of other parts."""
    for path, part in list(module.named_modules()):
        layer = named_layer(layers, path)
        for name, parameter in list(part._parameters.items()):
            if parameter is None:
                continue
            if id(parameter) not in known:
                whole = (Replicate(),) * mesh.ndim
                piece = _piece(parameter.detach(), mesh, layer.weights.get(name, whole) if layer else whole)
                known[id(parameter)] = nn.Parameter(piece, requires_grad=parameter.requires_grad)
            part._parameters[name] = known[id(parameter)]
        if layer is not None:
            _compute_locally(part, layer, mesh)


def bring_once(module: nn.Module, layers: Mapping[str, LayerPlan], mesh: DeviceMesh) -> None:
    """Let the named layers' arguments be brought into their layouts before hooks of FSDP2's see them. These make another tensor of
    an argument for each unit, so that what several layers read could not be brought to them once."""
    for path, part in module.named_modules():
        layer = named_layer(layers, path)
        if layer is not None:
            part.register_forward_pre_hook(functools.partial(_brought, mesh, layer.inputs), prepend=True)


def _brought(mesh: DeviceMesh, inputs: tuple[Placements, ...], part: nn.Module, args: tuple[Any, ...]) -> tuple[Any, ...]:
    wanted = itertools.zip_longest(args, inputs[: len(args)])
    return tuple(_given(value, mesh, lies) if isinstance(value, DTensor) else value for value, lies in wanted)


def _compute_locally(part: nn.Module, layer: LayerPlan, mesh: DeviceMesh) -> None:
    """Replace ``forward`` by one that takes its pieces of arguments and weights, and returns a DTensor of what it made."""
    bare = copy.copy(part)
    shared = part.__dict__.get("forward")  # of all replicas: the class's own forward would take its replica's alone
    compute: Callable[..., Any] = SharedStatistics(bare, shared.group) if isinstance(shared, SharedStatistics) else (
        functools.partial(type(bare).forward, bare)
    )
    cut = tuple(not isinstance(placement, Replicate) for placement in layer.makes)

    summed = tuple(isinstance(placement, Partial) for placement in layer.makes)

    def gradient(placements: Placements, once: bool = False) -> Placements:
        # Of what several ranks have whole and each uses for its own piece, each has a part of the gradient. Of what is added
        # to a sum, each has all of it, since the gradient of the sum is whole on every rank.
        return tuple(
            Partial() if used and isinstance(p, Replicate) and not (once and added) else p
            for p, used, added in zip(placements, cut, summed)
        )

    def weight(name: str, parameter: DTensor) -> torch.Tensor:
        wanted = layer.weights.get(name, (Replicate(),) * mesh.ndim)
        local: torch.Tensor = placed(parameter, wanted).to_local(grad_placements=gradient(wanted, name in layer.once))
        if name in layer.once and any(at > 0 for at, added in zip(mesh.get_coordinate() or (), summed) if added):
            return local - local.detach()  # zero, with the gradient of what the first rank adds
        return local

    def of_layers(*args: Any, **kwargs: Any) -> Any:
        given = [
            _given(value, mesh, wanted) if isinstance(value, torch.Tensor) else value
            for value, wanted in itertools.zip_longest(args, layer.inputs[: len(args)])
        ]
        return mapped_leaves(lambda value: _handed_out(value, mesh, layer), compute(*given, **kwargs))

    def forward(*args: Any, **kwargs: Any) -> Any:
        given = [
            _given(value, mesh, wanted).to_local(grad_placements=gradient(wanted)) if isinstance(value, torch.Tensor) else value
            for value, wanted in itertools.zip_longest(args, layer.inputs[: len(args)])
        ]
        weights: dict[str, Any] = {
            name: weight(name, p) if isinstance(p, DTensor) else p for name, p in part._parameters.items()
        }
        if layer.rows:
            result = _look_up(given[0], weights["weight"], layer.weights["weight"], mesh, part.padding_idx)
        else:
            bare.__dict__["_parameters"] = weights
            bare.__dict__["training"] = part.training
            if type(bare).__name__ == "Conv1D":  # Hugging Face's, which says how many outputs it has
                bare.__dict__["nf"] = weights["weight"].shape[1]
            result = compute(*given, **kwargs)
        return mapped_leaves(lambda value: _wrapped(value, mesh, layer), result)

    of_parts = any(True for child in part.children() for _ in child.parameters())  # whose weights are DTensors
    part.forward = of_layers if of_parts else forward


def _handed_out(value: Any, mesh: DeviceMesh, layer: LayerPlan) -> Any:
    return as_placed(value, mesh, layer.output) if isinstance(value, torch.Tensor) else value


def _wrapped(value: Any, mesh: DeviceMesh, layer: LayerPlan) -> Any:
    if not isinstance(value, torch.Tensor):
        return value
    result = DTensor.from_local(value, mesh, layer.makes, run_check=False)
    return placed(result, layer.output)


def _look_up(words: torch.Tensor, table: torch.Tensor, placements: Placements, mesh: DeviceMesh, padding: Any) -> torch.Tensor:
    """Rows of a table that is distributed by rows over ranks; zeros for words whose rows are elsewhere. ``padding``: the row of
    the whole table that has no gradient, or None."""
    number = 0
    for size, at, placement in zip(mesh.shape, mesh.get_coordinate() or (), placements):
        if isinstance(placement, Shard):
            number = number * size + at
    first = number * len(table)
    here = words - first
    inside = (here >= 0) & (here < len(table))
    row = padding - first if padding is not None and first <= padding < first + len(table) else None
    return nn.functional.embedding(here.where(inside, torch.zeros_like(here)), table, row) * inside.unsqueeze(-1)


def _flattened(shape: Sequence[int], start_dim: int = 0, end_dim: int = -1) -> list[int]:
    """Return the shape that a flatten gives."""
    first, last = (dim % max(1, len(shape)) for dim in (start_dim, end_dim))
    return [*shape[:first], math.prod(shape[first : last + 1]), *shape[last + 1 :]]


def _reshaped(before: Sequence[int], *sizes: Any, **named: Any) -> list[int]:
    """Return the shape that a view or reshape gives; none where it changes the type instead."""
    sizes = sizes or (named.get("shape", named.get("size", ())),)
    sizes = tuple(sizes[0]) if len(sizes) == 1 and isinstance(sizes[0], (tuple, list)) else sizes
    if not all(isinstance(size, int) for size in sizes):
        return []
    rest = math.prod(before) // max(1, math.prod(size for size in sizes if size != -1))
    return [rest if size == -1 else size for size in sizes]


class OnPieces(TorchFunctionMode):
    """Context for functions of a module's code. Those for which DTensor has no rule on some devices, but which handle each sample,
    head or channel separately, are computed on this rank's pieces, all cut like the first argument (`APART`), or the others whole
    (`FILTERS`). So are those that DTensor gets wrong: it adds a padding to each piece, divides arguments in different ways, and
    loses a gradient that is added up in place unless the indices are a DTensor (`CHOOSING`). What others are given is brought by
    one message where DTensor would need several: what joins a cut dimension with those before it is given the whole
    (`JOINING`), and of two arrays the second is cut like the first (`ALIKE`)."""

    FILTERS = frozenset({torch.conv1d, torch.conv2d, torch.conv3d})
    APART: Mapping[Any, int] = {  # function: how many dimensions from the left are taken by themselves; negative: all but so many
        nn.functional.scaled_dot_product_attention: -2, nn.functional.max_pool2d: 2, nn.functional.avg_pool2d: 2,
        nn.functional.adaptive_avg_pool2d: 2, nn.functional.interpolate: 2, torch.linalg.solve_triangular: -2,
        **dict.fromkeys(FILTERS, 1),
    }
    CHOOSING = frozenset({
        torch.index_select, torch.Tensor.index_select, torch.gather, torch.Tensor.gather, torch.take_along_dim,
        torch.Tensor.take_along_dim,
    })
    JOINING: Mapping[Any, Callable[..., list[int]]] = {  # and the shape that each gives
        torch.Tensor.view: _reshaped, torch.Tensor.reshape: _reshaped, torch.reshape: _reshaped,
        torch.Tensor.flatten: _flattened, torch.flatten: _flattened,
    }
    ALIKE = frozenset({torch.Tensor.add, torch.add, torch.Tensor.sub, torch.sub, torch.Tensor.mul, torch.mul})

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        given = [value for value in (*args, *kwargs.values()) if isinstance(value, DTensor)]
        if given and args and func in self.JOINING and given[0] is args[0]:
            first = args[0]
            if _cut_behind_the_first(first):
                first = _apart_from_others(first, self.JOINING[func](first.shape, *args[1:], **kwargs))
            result = func(first, *args[1:], **kwargs)
            if result.requires_grad:
                result.register_hook(_in_order)
            return result
        if len(given) == len(args) == 2 and func in self.ALIKE:
            return func(args[0], _cut_like(*args), **kwargs)
        if func in self.CHOOSING and given:
            return func(*(_whole_indices(value, given[0].device_mesh) for value in args), **kwargs)
        if func not in self.APART or not given:
            return func(*args, **kwargs)
        mesh, first = given[0].device_mesh, given[0]
        apart = self.APART[func] if self.APART[func] > 0 else first.ndim + self.APART[func]
        placements = tuple(p if isinstance(p, Shard) and p.dim < apart else Replicate() for p in first.placements)
        whole = (Replicate(),) * mesh.ndim

        def local(value: Any) -> Any:
            if not isinstance(value, torch.Tensor):
                return value
            filters = func in self.FILTERS and value is not first
            lies = whole if filters else _alike(value, first.ndim, placements)
            # where it is whole, each rank has a part of its gradient
            parts = tuple(Partial() if isinstance(p, Replicate) and isinstance(q, Shard) else p for p, q in zip(lies, placements))
            return as_placed(value, mesh, lies).to_local(grad_placements=parts)

        result = func(*map(local, args), **{key: local(value) for key, value in kwargs.items()})
        return mapped_leaves(lambda value: DTensor.from_local(value, mesh, placements, run_check=False), result)


def _whole_indices(value: Any, mesh: DeviceMesh) -> Any:
    """Indices as a DTensor, of which every rank has all; any other argument is unchanged."""
    plain = isinstance(value, torch.Tensor) and not isinstance(value, DTensor) and value.dtype is torch.int64
    return as_placed(value, mesh, (Replicate(),) * mesh.ndim) if plain else value


def _cut_behind_the_first(value: DTensor) -> bool:
    """True if another dimension than the first is cut, which alone can be joined with one before it."""
    return any(type(p) is Shard and p.dim > 0 for p in value.placements)


def _in_order(gradient: Any) -> Any:
    """A gradient whose piece is contiguous. What DTensor says of strides is not always the piece's, so that a view of it fails."""
    if not isinstance(gradient, DTensor) or gradient.to_local().is_contiguous():
        return None
    return placed_piece(gradient.to_local().contiguous(), gradient, gradient.placements)


def _apart_from_others(value: DTensor, shape: Sequence[int]) -> DTensor:
    """Return an array whose cut dimensions stay apart from those before them in another shape: others are whole."""
    starts = {math.prod(shape[:axis]) for axis in range(len(shape) + 1)}
    placements = tuple(
        Replicate() if type(p) is Shard and shape and math.prod(value.shape[: p.dim]) not in starts else p for p in value.placements
    )
    return placed(value, placements)


def _cut_like(first: DTensor, second: DTensor) -> DTensor:
    """Return the second of two arrays of one shape in the first one's layout, if both are in pieces."""
    kinds = {type(p) for value in (first, second) for p in value.placements}
    cut = any(type(p) is Shard and p != q for p, q in zip(second.placements, first.placements))
    if first.shape != second.shape or not cut or not kinds <= {Shard, Replicate}:
        return second
    return placed(second, first.placements)


def _alike(value: torch.Tensor, ndim: int, placements: Placements) -> Placements:
    """Cut a tensor as one of ``ndim`` dimensions is, with which it is broadcast: as a mask is with queries, it is whole where it
    has one element or no such dimension."""
    lacks = ndim - value.ndim
    return tuple(
        Shard(p.dim - lacks) if isinstance(p, Shard) and p.dim >= lacks and value.shape[p.dim - lacks] > 1 else Replicate()
        for p in placements
    )


@contextlib.contextmanager
def plain_is_whole() -> Iterator[None]:
    """Treat plain tensors as whole where they meet DTensors, also in backward passes, where gradients meet what the forward
    pass has kept. Like torch's implicit_replication, but it may be nested: recomputation enters it within a backward pass."""
    dispatcher: Any = DTensor._op_dispatcher
    before = dispatcher._allow_implicit_replication
    dispatcher._allow_implicit_replication = True
    try:
        yield
    finally:
        dispatcher._allow_implicit_replication = before


class _Divided:
    """Flag per thread: functions are being given DTensors."""

    now = False


@contextlib.contextmanager
def divided() -> Iterator[None]:
    """Context that functions in a module's code need while activations are DTensors: plain tensors count as whole, and
    `OnPieces` applies. It also covers recomputation in the backward pass; entering it a second time changes nothing."""
    if _Divided.now:
        yield
        return
    _Divided.now = True
    try:
        with plain_is_whole(), OnPieces():
            yield
    finally:
        _Divided.now = False


# ---- tensors ---------------------------------------------------------------------------------------------------------


def as_placed(value: torch.Tensor, mesh: DeviceMesh, placements: Placements) -> DTensor:
    """Return a tensor in the wanted layout; one that is no DTensor is whole on every rank."""
    if not isinstance(value, DTensor):
        value = DTensor.from_local(value, mesh, (Replicate(),) * mesh.ndim, run_check=False)
    return placed(value, placements)


def _given(value: torch.Tensor, mesh: DeviceMesh, placements: Placements) -> DTensor:
    """Return a layer's argument in the wanted layout. It is brought there once for all layers that read it so, as are a block's
    queries, keys and values: one message forward and one back, and one array to keep. What was changed in place since, or made
    while gradients were off, is brought there again."""
    if not isinstance(value, DTensor) or value.placements == placements or value.is_inference():
        return as_placed(value, mesh, placements)
    kept: dict[Any, DTensor] = value.__dict__.setdefault("_taskflow_layouts", {})
    key = placements, value._local_tensor._version, torch.is_grad_enabled()
    if key not in kept:
        kept.clear()
        kept[key] = as_placed(value, mesh, placements)
    return kept[key]


def _piece(value: torch.Tensor, mesh: DeviceMesh, placements: Placements) -> DTensor:
    """This rank's piece of an array that every rank has, in memory of its own."""
    whole = DTensor.from_local(value, mesh, (Replicate(),) * mesh.ndim, run_check=False)
    local = whole.redistribute(placements=placements).to_local().clone(memory_format=torch.contiguous_format)
    return DTensor.from_local(local, mesh, placements, run_check=False, shape=value.shape, stride=value.stride())


def local_piece(value: Any, mesh: DeviceMesh, placements: Placements) -> Any:
    """Return this rank's piece of a tensor; anything else is unchanged."""
    return as_placed(value, mesh, placements).to_local() if isinstance(value, torch.Tensor) else value


def mapped_leaves(change: Callable[[Any], Any], value: Any) -> Any:
    """Apply ``change`` to every leaf of a nest of tuples, lists and dictionaries (such as Hugging Face's outputs)."""
    if isinstance(value, dict):
        return type(value)(**{key: mapped_leaves(change, part) for key, part in value.items()})
    if isinstance(value, (tuple, list)):
        return type(value)(mapped_leaves(change, part) for part in value)
    return change(value)
