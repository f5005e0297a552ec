"""A stage of a pipeline as a module."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Replicate

from taskflow.export.pytorch.support.layers import as_placed, divided, local_piece, mapped_leaves
from taskflow.export.pytorch.support.plan import ParallelPlan


class StagePart(nn.Module):
    """The modules of one stage under the names that they have in the whole module. Its own attributes begin with ``stage_``, so
    that no module's name is one of them."""

    def __init__(self, whole: nn.Module, plan: ParallelPlan, number: int, mesh: DeviceMesh | None) -> None:
        super().__init__()
        self.stage_plan, self.stage_first, self.stage_mesh = plan.stages[number], number == 0, mesh
        last = number == len(plan.stages) - 1
        self.stage_leaves = (plan.output,) if last else plan.stages[number + 1].arrives
        for path in self.stage_plan.parts:
            _put(self, path, whole)

    def stage_has(self, path: str) -> bool:
        """True if the stage has all of the module at a path of the whole."""
        return any(path == part or path.startswith(f"{part}.") for part in self.stage_plan.parts)

    def forward(self, *values: Any, **inputs: Any) -> Any:
        """Return the stage's result for the values that arrive, and for those of the step's inputs that it reads."""
        if self.stage_first:
            values, inputs = (), dict(zip(self.stage_plan.inputs, values))
        named = [inputs[name] for name in self.stage_plan.inputs]
        values = tuple(_sent_back_whole(value) for value in values)
        if self.stage_mesh is None:
            return mapped_leaves(_sendable, self.stage_plan.run(self, *values, *named))
        whole = (Replicate(),) * self.stage_mesh.ndim
        given = [DTensor.from_local(v, self.stage_mesh, p, run_check=False) for v, p in zip(values, self.stage_plan.arrives)]
        with divided():
            result = self.stage_plan.run(self, *given, *(as_placed(v, self.stage_mesh, whole) for v in named))
            several = result if isinstance(result, tuple) else (result,)
            pieces = (local_piece(value, self.stage_mesh, lie) for value, lie in zip(several, self.stage_leaves))
            local = tuple(_sendable(piece) for piece in pieces)
        return local if isinstance(result, tuple) else local[0]


def _sendable(value: Any) -> Any:
    """A tensor whose elements lie one after the other, as gloo sends them; anything else is unchanged."""
    return value.contiguous() if isinstance(value, torch.Tensor) else value


def _sent_back_whole(value: Any) -> Any:
    """An arrived tensor whose gradient is as sendable: that of one of ``torch.cat``'s inputs is a slice of the result's."""
    return _SendableGradient.apply(value) if isinstance(value, torch.Tensor) and value.requires_grad else value


class _SendableGradient(torch.autograd.Function):
    """The same value, whose gradient's elements lie one after the other."""

    @staticmethod
    def forward(ctx: Any, value: Any) -> Any:
        return value.view_as(value)

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        return _sendable(grads[0])


def held(part: nn.Module, path: str) -> Any:
    """Return a parameter or buffer by its path."""
    owner, _, name = path.rpartition(".")
    return getattr(part.get_submodule(owner), name)


def here(part: nn.Module) -> torch.device:
    """Return the device of a stage."""
    return next(part.parameters()).device


def _put(part: nn.Module, path: str, whole: nn.Module) -> None:
    *owners, name = path.split(".")
    for owner in owners:
        if not isinstance(part._modules.get(owner), nn.Module):
            part.add_module(owner, nn.Module())
        part = part.get_submodule(owner)
        whole = whole.get_submodule(owner)
    value = getattr(whole, name)
    if isinstance(value, nn.Module):
        part.add_module(name, value)
    elif isinstance(value, nn.Parameter):
        part.register_parameter(name, value)
    else:
        part.register_buffer(name, value, persistent=name not in whole._non_persistent_buffers_set)


def parameters_of(module: nn.Module, parts: Sequence[str]) -> dict[int, str]:
    """Return the identity of each parameter in some parts -> its name."""
    return {
        id(parameter): name for name, parameter in module.named_parameters(remove_duplicate=False)
        if any(name == part or name.startswith(f"{part}.") for part in parts)
    }
