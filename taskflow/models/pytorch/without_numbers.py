"""Layers on tensors that have no numbers: where the way to the result depends on numbers, or goes step by step, a tensor of the
result's shape stands for it."""

from __future__ import annotations

from typing import Any

import torch

from taskflow.models.pytorch import experts, mixers, recurrent


def run_without_numbers(layer: Any, *args: Any, **kwargs: Any) -> Any:
    """Return what a layer returns for tensors without numbers: of its shapes, and depending on what it depends on."""
    if experts.is_experts(layer):
        return experts.stand_in_of_result(layer, *args, **kwargs)
    if mixers.is_mixer(layer):
        return mixers.stand_in_of_result(layer, *args, **kwargs)
    if recurrent.gates_of(layer) and isinstance(args[0], torch.Tensor) and args[0].ndim == 3:
        return recurrent.without_steps(layer, *args, **kwargs)
    return layer(*args, **kwargs)
