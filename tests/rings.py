"""A network whose keys can go around a ring, and its words, for the tests."""

from __future__ import annotations

from typing import Any

import numpy as np

from taskflow.graph import OperatorGraph
from taskflow.models import build

STEPS = 3


def llama(blocks: int | None = 4, dtype: str = "float64", **settings: Any) -> OperatorGraph:
    """Attention in so many blocks of the 12 keys; of 8 samples."""
    settings = {"batch": 8, "steps": 12, "layers": 2, "key_blocks": blocks, **settings}
    return build("Llama", settings.pop("batch"), preset="small", dtype=dtype, **settings)


def tokens(graph: OperatorGraph, step: int) -> dict[str, Any]:
    """A batch, the same for the same step."""
    random = np.random.default_rng(step)
    return {name: random.integers(0, 17, graph.node(name).space.shape) for name in ("tokens", "targets")}
