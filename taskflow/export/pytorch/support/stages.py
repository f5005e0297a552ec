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
    """The modules of one stage under the names that they have in the whole module."""

    def __init__(self, whole: nn.Module, plan: ParallelPlan, number: int, mesh: DeviceMesh | None) -> None:
        super().__init__()
        self.stage, self.first, self.mesh = plan.stages[number], number == 0, mesh
        last = number == len(plan.stages) - 1
        self.leaves = (plan.output,) if last else plan.stages[number + 1].arrives
        for path in self.stage.parts:
            _put(self, path, whole)

    def has(self, path: str) -> bool:
        """True if the stage has all of the module at a path of the whole."""
        return any(path == part or path.startswith(f"{part}.") for part in self.stage.parts)

    def forward(self, *values: Any, **inputs: Any) -> Any:
        """Return the stage's result for the values that arrive, and for those of the step's inputs that it reads."""
        if self.first:
            values, inputs = (), dict(zip(self.stage.inputs, values))
        named = [inputs[name] for name in self.stage.inputs]
        if self.mesh is None:
            return mapped_leaves(_sendable, self.stage.run(self, *values, *named))
        whole = (Replicate(),) * self.mesh.ndim
        given = [DTensor.from_local(v, self.mesh, p, run_check=False) for v, p in zip(values, self.stage.arrives)]
        with divided():
            made = self.stage.run(self, *given, *(as_placed(v, self.mesh, whole) for v in named))
            several = made if isinstance(made, tuple) else (made,)
            local = tuple(_sendable(local_piece(value, self.mesh, placements)) for value, placements in zip(several, self.leaves))
        return local if isinstance(made, tuple) else local[0]


def _sendable(value: Any) -> Any:
    """A tensor whose elements lie one after the other, as gloo sends them; anything else is unchanged."""
    return value.contiguous() if isinstance(value, torch.Tensor) else value


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
