"""torch.nn.LSTM and GRU: several layers, both ways, in either order of samples and steps, from states that are given."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from taskflow import operators as ops
from taskflow.models.pytorch.registry import Later, Stacked, array_of, tensor_of
from taskflow.models.pytorch.site import Site, require
from taskflow.models.pytorch.steps import Fixed
from taskflow.operators.tensor import Tensor

GATES: dict[type[nn.Module], int] = {nn.LSTM: 4, nn.GRU: 3}
"""How many gates have their weights in one array of PyTorch's, and a first dimension of ours."""


def gates_of(part: nn.Module) -> int:
    """Return the number of gates of a recurrent layer; 0 for any other module."""
    return next((gates for kind, gates in GATES.items() if isinstance(part, kind)), 0)


def recurrent(site: Site, m: nn.LSTM | nn.GRU, x: Any, hx: Any = None) -> Any:
    """Build the layers: y, and the last states of all layers, or two of them in an LSTM."""
    require(m.bias and not getattr(m, "proj_size", 0), "only with biases and without proj_size")
    require(len(x.shape) == 3, "one sample alone, without a dimension of samples, is not supported")
    later = isinstance(x, Later) and x.dims == (0, 1) and not m.batch_first
    x = x.base if later else tensor_of(x, site.graph, site.name)
    if not m.batch_first and not later:
        x = ops.transpose(x, 0, 1, name=f"{site.name}.samples")
    options: Any = dict(dropout=m.dropout if site.training else 0.0, both_ways=m.bidirectional, name=site.name)
    if isinstance(m, nn.GRU):
        y, h = ops.gru(x, m.hidden_size, m.num_layers, state=_states(site, hx, m), **options)
        last: Any = Stacked(tuple(h))
    else:
        given = [_states(site, each, m) for each in hx] if isinstance(hx, (tuple, list)) else []
        state = (given[0], given[1]) if given and given[0] is not None and given[1] is not None else None
        require(not given or state is not None or given == [None, None], "one of two first states is zeros, and the other is not")
        y, (h, c) = ops.lstm(x, m.hidden_size, m.num_layers, state=state, **options)
        last = Stacked(tuple(h)), Stacked(tuple(c))
    return y if m.batch_first else Later(y, (0, 1), f"{site.name}.steps"), last


def without_steps(m: nn.LSTM | nn.GRU, x: torch.Tensor, hx: Any = None) -> Any:
    """Return tensors of the results' shapes that depend on all that the results depend on: without numbers PyTorch would go through
    the steps one by one."""
    ways = 2 if m.bidirectional else 1
    given = [one for one in (hx if isinstance(hx, (tuple, list)) else (hx,)) if one is not None]
    whole = sum(one.sum() for one in (*m.parameters(), *given))
    y = x.sum(-1, keepdim=True) * whole * x.new_ones(ways * m.hidden_size)
    samples = x.shape[0 if m.batch_first else 1]
    last = y.sum() * x.new_ones(ways * m.num_layers, samples, m.hidden_size)
    return (y, last) if isinstance(m, nn.GRU) else (y, (last, last * 1))


def _states(site: Site, given: Any, m: nn.LSTM | nn.GRU) -> list[Tensor] | None:
    """The first state (N, H) of each layer; None for zeros."""
    if given is None or (isinstance(given, Fixed) and not bool(array_of(given).any())):
        return None
    if isinstance(given, Stacked):
        return list(given.parts)
    whole = tensor_of(given, site.graph, f"{site.name}.first")
    return [ops.select(whole, 0, i, name=f"{site.name}.first{i}") for i in range(m.num_layers * (2 if m.bidirectional else 1))]
