"""Modules without numbers: parameters made within a block are on the meta device, so that any size fits into memory."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

_depth = 0  # blocks of `on_meta` that are open


class NumbersWantedError(Exception):
    """Error: something needs a module's numbers inside `on_meta`."""


@contextmanager
def on_meta() -> Iterator[None]:
    """Give modules that are made in the block parameters on the meta device; buffers (tables of positions, masks) have numbers.
    An array's address space is reserved for a moment, and never written to."""
    global _depth
    from torch import nn

    plain = nn.Module.register_parameter

    def register(self: Any, name: str, param: Any) -> None:
        if param is not None and not param.is_meta:
            param = nn.Parameter(param.detach().to("meta"), requires_grad=param.requires_grad)
        plain(self, name, param)

    nn.Module.register_parameter = register  # type: ignore[method-assign]
    _depth += 1
    try:
        yield
    finally:
        _depth -= 1
        nn.Module.register_parameter = plain  # type: ignore[method-assign]


def require_numbers() -> None:
    """Raise NumbersWantedError inside of `on_meta`."""
    if _depth:
        raise NumbersWantedError("a module's weights are asked for where modules are made without")
