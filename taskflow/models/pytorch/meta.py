"""Modules without numbers: parameters made within a block are on the meta device, so that any size fits into memory."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from math import inf, prod
from typing import Any

import numpy as np

MOST_ELEMENTS = {"empty": 1 << 20, "rand": 1 << 20, "randn": 1 << 20, "zeros": 1 << 24, "ones": 1 << 24}
"""Of arrays that have numbers, by the function that makes them: weights begin empty, tables and masks as zeros or ones."""
_depth = 0  # blocks of `on_meta` that are open


class NumbersWantedError(Exception):
    """Error: something needs a module's numbers inside `on_meta`."""


@contextmanager
def on_meta() -> Iterator[None]:
    """Give modules that are made in the block parameters on the meta device; buffers (tables of positions, masks) have numbers,
    unless they are larger than any table is."""
    global _depth
    import torch
    from torch import nn
    from torch.overrides import TorchFunctionMode

    class Small(TorchFunctionMode):
        """Makes large arrays, such as the weights of all experts, on the meta device at once."""

        def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            kwargs = dict(kwargs or {})
            sizes = args[0] if len(args) == 1 and isinstance(args[0], (tuple, list)) else kwargs.get("size", args)
            most = MOST_ELEMENTS.get(getattr(func, "__name__", ""), inf) if kwargs.get("out") is None else inf
            plain = most < inf and sizes and all(isinstance(size, int) for size in sizes)
            if plain and prod(sizes) > most:
                kwargs["device"] = "meta"
            elif plain and func is torch.zeros and kwargs == {"dtype": torch.float32}:
                return torch.from_numpy(np.zeros(sizes, np.float32))  # whose pages are not touched before they are used
            return func(*args, **kwargs)

    plain = nn.Module.register_parameter

    def register(self: Any, name: str, param: Any) -> None:
        if param is not None and not param.is_meta:
            param = nn.Parameter(param.detach().to("meta"), requires_grad=param.requires_grad)
        plain(self, name, param)

    nn.Module.register_parameter = register  # type: ignore[method-assign]
    _depth += 1
    try:
        with Small():
            yield
    finally:
        _depth -= 1
        nn.Module.register_parameter = plain  # type: ignore[method-assign]


def require_numbers() -> None:
    """Raise NumbersWantedError inside of `on_meta`."""
    if _depth:
        raise NumbersWantedError("a module's weights are asked for where modules are made without")


@contextmanager
def quietly() -> Iterator[None]:
    """A context in which PyTorch does not log what it cannot compute: it raises it, too."""
    log = logging.getLogger("torch._subclasses.fake_tensor")
    before, log.disabled = log.disabled, True
    try:
        yield
    finally:
        log.disabled = before
