"""Cache eviction: reproduces what a core goes through between two tasks of one kind in a step (`CacheState`), by reading other
memory and running other code.

Reading alone is not enough: the instructions and branch histories of the measured code stay in the core's own tables, which
only other code overwrites. Without that, tasks shorter than a tenth of a millisecond took up to a half longer in steps than
measured (docs/benchmarks.md).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cached_property
from random import Random

import numpy as np

from taskflow.kernels import KernelSet
from taskflow.operators.operator import REGISTRY, Array, Spec, iteration_space
from taskflow.optimizer.cost.measured.bench import Surroundings, piece_action
from taskflow.optimizer.cost.measured.cache_state import CacheState

OTHERS = (
    "avg_pool2d", "concat", "conv2d", "cross_entropy", "dropout", "einsum", "embedding", "group_norm", "layer_norm", "linear",
    "lstm", "max_pool2d", "moments", "reduce", "softmax",
)
"""Kinds that run in between: the same ones for all networks, so that these share measurements."""


class CacheEvictor:
    """Source of other memory and other code. The code is that of small pieces of fifteen kinds of operators, forward and
    backward. The memory, whose size ``between`` states, is allocated at the first measurement."""

    def __init__(self, kernels: KernelSet, between: CacheState) -> None:
        self._kernels, self._between = kernels, between

    def around(self, kind: str | None, fresh: Sequence[Array], twin: Callable[[], object]) -> Surroundings:
        """Return the preparation for a task of an operator of this kind (None: of no operator), whose ``twin`` runs before it
        and whose ``fresh`` arrays are left in near caches."""
        many = self._between.code.get(kind, 0) if kind is not None else 0
        return Surroundings(self._sweep, fresh, twin, self._before(kind, many) if many else None)

    def _before(self, kind: str | None, nbytes: int) -> Callable[[], None]:
        """Reads so many bytes, and runs the other kinds' code."""
        memory = self._sweep[: nbytes // 4]
        others = [action for other, actions in self._actions.items() if other != kind for action in actions]

        def run() -> None:
            memory.sum()
            for action in others:
                action()

        return run

    @cached_property
    def _sweep(self) -> Array:
        return self._kernels.xp.ones(self._between.nbytes // 4, np.float32)

    @cached_property
    def _actions(self) -> dict[str, list[Callable[[], object]]]:
        """Actions by kind. None on a GPU, where tasks of a kind share no such tables."""
        found: dict[str, list[Callable[[], object]]] = {}
        for kind in OTHERS if self._kernels.device.waits else ():
            example = REGISTRY[kind].example(Random(0))
            specs = [Spec(s.shape, np.dtype(np.float32)) if s.differentiable else s for s in example.inputs]
            piece, wanted = iteration_space(example.operator, specs), [s.differentiable for s in specs]
            found[kind] = [piece_action(example.operator, specs, piece, way, wanted, self._kernels)[0] for way in (False, True)]
        return found
