"""Samples of several rows each, one after the other along the first dimension, as towers have the patches of all images.

What is the same for each sample is there once."""

from __future__ import annotations

from typing import Any
from weakref import WeakKeyDictionary

import torch

from taskflow import operators as ops
from taskflow.graph import OperatorGraph
from taskflow.models.pytorch.recipes import derived
from taskflow.models.pytorch.registry import array_of
from taskflow.models.pytorch.steps import Fixed
from taskflow.operators.tensor import Builder, Tensor


def samples_of(graph: Builder) -> int:
    """Return how many samples a graph has: as many as its first input; 1 without one."""
    nodes = graph.nodes if isinstance(graph, OperatorGraph) else []
    shape = next((node.outputs[0].shape for node in nodes if node.operator.kind == "input"), ())
    return int(shape[0]) if shape else 1


def rows_alike(value: Fixed, graph: Builder) -> int | None:
    """Return how many rows each sample has, if a fixed tensor (N R, ...) has the same for every sample; None for another one."""
    samples, shape = samples_of(graph), tuple(value.tensor.shape)
    if samples < 2 or not shape or shape[0] % samples or shape[0] == samples:
        return None
    known = _ALIKE.setdefault(graph, {})
    if id(value) not in known:
        each = array_of(value).reshape(samples, -1)
        known[id(value)] = value, bool((each == each[:1]).all())
    return shape[0] // samples if known[id(value)][1] else None


def once_for_samples(name: str, x: Any, value: Any) -> tuple[Tensor, Fixed] | None:
    """Return x (N R, ...) as (N, R, ...), and a fixed tensor that has the same rows for every sample as (1, R, ...); None for other
    operands."""
    if not isinstance(x, Tensor) or not isinstance(value, Fixed) or value.tensor.ndim != x.ndim or x.ndim < 2:
        return None
    if value.tensor.shape[0] != x.shape[0] or not value.tensor.is_floating_point():
        return None
    rows = rows_alike(value, x.graph)
    if rows is None:
        return None
    known = _ONCE.setdefault(x.graph, {})
    if id(value) not in known:
        source = derived(torch.Tensor.__getitem__, value.recipe or value.tensor, slice(0, rows))
        one = derived(torch.Tensor.reshape, source, (1, rows, *value.tensor.shape[1:]))
        known[id(value)] = value, Fixed(one.tensor, 0, "", one)
    return ops.reshape(x, (x.shape[0] // rows, rows, *x.shape[1:]), name=f"{name}.samples"), known[id(value)][1]


_ALIKE: WeakKeyDictionary[Any, dict[int, tuple[Fixed, bool]]] = WeakKeyDictionary()
_ONCE: WeakKeyDictionary[Any, dict[int, tuple[Fixed, Fixed]]] = WeakKeyDictionary()
