"""What forward computes and no loss needs: checks of numbers, and accounts of its parts beside the result."""

from __future__ import annotations

import os
from collections.abc import Iterator, Set
from contextlib import contextmanager
from dataclasses import fields, is_dataclass
from typing import Any

import torch
from torch import nn
from torch.distributions import Distribution

from taskflow.models.pytorch.steps import Ref, TorchStep, leaves

CHECKS = "TRANSFORMERS_DISABLE_TORCH_CHECK"


@contextmanager
def without_checks() -> Iterator[None]:
    """Leave out checks of numbers in tensors, transformers' and those of torch.distributions, within the block: tensors have none
    while they are recorded. So are conversions of modules to the type that they have, which set each of their tensors anew."""
    before, checked, plain = os.environ.get(CHECKS), Distribution._validate_args, nn.Module.to
    os.environ[CHECKS] = "1"
    Distribution.set_default_validate_args(False)

    def to(self: nn.Module, *args: Any, **kwargs: Any) -> nn.Module:
        dtypes = [value for value in (*args, *kwargs.values()) if isinstance(value, torch.dtype)]
        own = {value.dtype for value in (*self.parameters(), *self.buffers()) if value.is_floating_point()}
        alike = len(args) + len(kwargs) == len(dtypes) == 1 and own <= {*dtypes}
        return self if alike else plain(self, *args, **kwargs)

    nn.Module.to = to  # type: ignore[method-assign,assignment]
    try:
        yield
    finally:
        nn.Module.to = plain  # type: ignore[method-assign]
        Distribution.set_default_validate_args(checked)
        if before is None:
            del os.environ[CHECKS]
        else:
            os.environ[CHECKS] = before


def drop_unread(steps: list[TorchStep], output: Any, views: Set[int]) -> None:
    """Mark the functions that return integers or truth values which nobody reads. No gradient goes through them. So are ``views``,
    steps that only take a part of a tensor, perhaps to write there."""
    read = {leaf.step for leaf in leaves(output) if isinstance(leaf, Ref)}
    for step in reversed(steps):
        whole = step.kind == "function" and step.values and not any(
            value.is_floating_point() or value.is_complex() for value in step.values
        )
        if (whole or step.number in views) and step.number not in read:
            step.kind = "unused"
        elif step.kind != "unused":
            read |= {leaf.step for leaf in leaves((step.args, step.kwargs)) if isinstance(leaf, Ref)}


def result_of(returned: Any) -> Any:
    """Return what forward returned, of a dataclass as a mapping; of a mapping without the mappings in it, in which transformers'
    networks hand out all that a tower for images has computed."""
    if is_dataclass(returned) and not isinstance(returned, (dict, type)):
        returned = {part.name: getattr(returned, part.name) for part in fields(returned)}
    if not isinstance(returned, dict):
        return returned
    return {key: value for key, value in returned.items() if not isinstance(value, dict)}
