"""Batch normalisation by function: `torch.nn.functional.batch_norm`, as a class derived from torch's BatchNorm calls it.

What a layer's operator keeps (running statistics), no other function may read: `LayerBuffers` sees to it in a recording.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F

from taskflow import operators as ops
from taskflow.models.pytorch.modules import LAYERS
from taskflow.models.pytorch.normalising import normalised
from taskflow.models.pytorch.registry import FUNCTIONS, RAW, graph_of, tensor_of
from taskflow.models.pytorch.site import Held, Unsupported, require
from taskflow.models.pytorch.steps import Fixed
from taskflow.operators.tensor import Tensor

BATCH_NORM = F.batch_norm
IN_TRAINING = ("training", "momentum")
"""Arguments of batch normalisation that our operator does not need in evaluation."""


def arguments_of(
    input: Any, running_mean: Any = None, running_var: Any = None, weight: Any = None, bias: Any = None, training: bool = False,
    momentum: float | None = 0.1, eps: float = 1e-5,
) -> dict[str, Any]:
    """Return the arguments of torch.nn.functional.batch_norm by name."""
    return dict(locals())


def batch_norm(name: str, *args: Any, **kwargs: Any) -> Any:
    """Normalise channels over the batch: with running statistics a layer of its own, without them arithmetic."""
    call = SimpleNamespace(**arguments_of(*args, **kwargs))
    require(call.training, "is kept in evaluation while the rest trains; its statistics are not those of the batch")
    if call.running_mean is not None or call.running_var is not None:
        return _layer(call)
    x = tensor_of(call.input, graph_of(call.input, call.weight, call.bias), name)
    y = normalised(name, x, (0, *range(2, x.ndim)), call.eps, centred=True)
    for of, build in (("weight", ops.mul), ("bias", ops.add)):
        if (each := getattr(call, of)) is not None:
            channels = ops.reshape(tensor_of(each, y.graph, f"{name}.{of}"), (-1, *[1] * (x.ndim - 2)), name=f"{name}.{of}s")
            y = build(y, channels, name=f"{name}.by_{of}")
    return y


FUNCTIONS[BATCH_NORM] = batch_norm
RAW.add(batch_norm)


def _layer(call: SimpleNamespace) -> Any:
    """The layer whose parameters and running statistics a call has."""
    whose = "needs weight, bias, running_mean and running_var of one module inside of the whole"
    held, kept = (call.weight, call.bias), (call.running_mean, call.running_var)
    if not all(isinstance(one, Held) for one in held) or not all(isinstance(one, Fixed) for one in kept):
        raise Unsupported(whose)
    site = call.weight.layer
    named = [value.site.name for value in held] + [value.name for value in kept]
    require(named == [f"{site.name}.{of}" for of in ("weight", "bias", "running_mean", "running_var")], whose)
    require(isinstance(call.input, Tensor), "of what is no tensor")
    layer = SimpleNamespace(
        weight=call.weight.tensor, bias=call.bias.tensor, momentum=call.momentum, eps=call.eps, affine=True,
        track_running_stats=True,
    )
    return LAYERS[nn.BatchNorm2d](site, layer, call.input)


class LayerBuffers:
    """Buffers of the module of a `TorchRecorder` that the operators of layers keep elsewhere. A counter of batches is not in a
    graph: counting is left out."""

    def __init__(self, recorder: Any, leaf: Callable[[nn.Module], bool]) -> None:
        self.recorder = recorder
        parts = [*recorder.module.modules()]
        self.owned = {id(buffer) for part in parts if leaf(part) for buffer in part.buffers()}
        self.followed: set[int] = set()  # by a call before
        norms = [part for part in parts if isinstance(part, nn.modules.batchnorm._BatchNorm) and not leaf(part)]
        self.counters = {id(part.num_batches_tracked) for part in norms if part.num_batches_tracked is not None}
        self.statistics = {id(value) for part in norms for value in (part.running_mean, part.running_var) if value is not None}

    def counts(self, name: str, args: Sequence[Any]) -> bool:
        """True for a function that adds 1 to a counter of batches, which nobody may read from there on."""
        counting = name in ("add_", "__iadd__") and len(args) == 2 and id(args[0]) in self.counters and args[1] == 1
        if counting:
            self.owned.add(id(args[0]))
        return counting

    def normalises(self, target: Any, args: Any, kwargs: Any) -> Any:
        """What stands for batch normalisation with running statistics, and leaves these as they are; None for other functions.
        Raises Unsupported if something else has read them, or if no class of batch normalisation has them."""
        if target is not BATCH_NORM:
            return None
        call = arguments_of(*args, **kwargs)
        kept = [value for value in (call["running_mean"], call["running_var"]) if isinstance(value, torch.Tensor)]
        if not kept or not call["training"]:
            return None
        where = self.recorder.inside or "forward"
        again = all(id(value) in self.followed for value in kept)
        for value in () if again else kept:
            if id(value) not in self.statistics:
                raise Unsupported(
                    f"batch_norm in {where} changes {self.recorder.named(value)}; derive the module from nn.BatchNorm2d, and "
                    "keep running_mean and running_var there"
                )
            if id(value) in self.recorder.fixed or self.recorder.recipes.reads(value):
                raise Unsupported(f"{where} reads {self.recorder.named(value)} beside its batch_norm")
            self.owned.add(id(value))
            self.followed.add(id(value))
        return lambda *_, **__: BATCH_NORM(**call | {key: call[key].clone() for key in ("running_mean", "running_var")})

    def require_unread(self, given: Sequence[torch.Tensor]) -> None:
        """Raise Unsupported if a function reads what a layer keeps."""
        for value in given:
            if id(value) in self.owned:
                raise Unsupported(
                    f"{self.recorder.inside or 'forward'} reads {self.recorder.named(value)}, which belongs to a layer"
                )


def evaluation_arguments(args: Any, kwargs: Any) -> dict[str, Any]:
    """Return the arguments of a call of batch normalisation that decide what evaluation computes."""
    call = arguments_of(*args, **kwargs)
    kept = call["running_mean"] is not None
    return {name: value for name, value in call.items() if not (kept and name in IN_TRAINING)}


def trains(args: Any, kwargs: Any) -> bool:
    """True for a call of batch normalisation that follows running statistics."""
    call = arguments_of(*args, **kwargs)
    return bool(call["training"]) and call["running_mean"] is not None


