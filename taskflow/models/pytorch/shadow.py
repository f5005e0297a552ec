"""Shadow: tensors in place of a module's parameters and buffers, so that the module can be run and stays as it is."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode


class Shadow:
    """Stand-ins for a module's tensors. ``stand_in``: makes one: shape, type and strides without numbers (`StandIns`),
    or a copy. Trained parameters, and with ``frozen`` the others, are replaced while the module runs; layers are run as copies,
    whose buffers are stand-ins too."""

    def __init__(
        self, module: nn.Module, stand_in: Callable[[torch.Tensor], torch.Tensor], fake: bool, frozen: bool = True,
    ) -> None:
        self.fake, self.holds_frozen, self._stand_in = fake, frozen, stand_in
        self.mode: Any = getattr(stand_in, "mode", None)  # in which fixed tensors without numbers are made, too
        self.parameters: dict[int, torch.Tensor] = {}  # by identity of the module's
        self.paths: dict[int, str] = {}  # of the stand-ins
        self.originals: list[torch.Tensor] = []
        self._copies: dict[int, nn.Module] = {}
        self._memo: dict[int, Any] = {}
        for path, tensor in (*module.named_parameters(), *module.named_buffers()):
            result = stand_in(tensor)
            self.originals.append(tensor)
            self._memo[id(tensor)] = self._memo[id(result)] = result
            if isinstance(tensor, nn.Parameter) and (tensor.requires_grad or frozen):
                self.parameters[id(tensor)], self.paths[id(result)] = result, path

    def example(self, tensor: torch.Tensor) -> torch.Tensor:
        """Return an argument of forward as a tensor of this shadow."""
        return self._stand_in(tensor)

    def is_foreign(self, value: torch.Tensor) -> bool:
        """True for a value that was made from stand-ins but is not known."""
        return self.fake and isinstance(value, FakeTensor)

    def copy_of(self, part: nn.Module) -> nn.Module:
        """Return a layer with stand-ins for its parameters and buffers: one copy, however often it is called."""
        if id(part) not in self._copies:
            self._copies[id(part)] = copy.deepcopy(part, dict(self._memo))
        return self._copies[id(part)]

    @contextmanager
    def in_place_of(self, module: nn.Module) -> Iterator[None]:
        """Give the module the stand-ins of its trained parameters within the block."""
        before = [(part, name, p) for part in module.modules() for name, p in part._parameters.items() if p is not None]
        for part, name, parameter in before:
            part._parameters[name] = self.parameters.get(id(parameter), parameter)  # type: ignore[assignment]
        try:
            yield
        finally:
            for part, name, parameter in before:
                part._parameters[name] = parameter


class StandIns:
    """Makes stand-ins without numbers, as if on the CPU, for one run."""

    def __init__(self) -> None:
        self.mode = FakeTensorMode(allow_non_fake_inputs=True)

    def __call__(self, tensor: torch.Tensor) -> torch.Tensor:
        with self.mode:
            result = torch.empty_strided(tensor.size(), tensor.stride(), dtype=tensor.dtype, device="cpu")
            return nn.Parameter(result, tensor.requires_grad) if isinstance(tensor, nn.Parameter) else result
