"""Interlude: does to a core what a step does between two tasks of one kind (`CacheState`). Reads other memory, and runs other code.

Reading alone leaves the core with the code that is measured: its instructions and its branches' histories are in tables of their
own, which only other code overwrites. Tasks that hold a core for less than a tenth of a millisecond then took up to a half longer
in steps than measured (docs/benchmarks.md).
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
    """The other code is that of small pieces of fifteen kinds of operators, forward and backward. Other memory, as much as
    ``between`` says, is there from the first measurement on."""

    def __init__(self, kernels: KernelSet, between: CacheState) -> None:
        self._kernels, self._between = kernels, between

    def around(self, kind: str | None, fresh: Sequence[Array], twin: Callable[[], object]) -> Surroundings:
        """Of a task of an operator of this kind (None: of none), whose ``twin`` runs before it and leaves ``fresh`` near."""
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
        """By kind. None on a GPU, where tasks of a kind share no such tables."""
        found: dict[str, list[Callable[[], object]]] = {}
        for kind in OTHERS if self._kernels.device.waits else ():
            example = REGISTRY[kind].example(Random(0))
            specs = [Spec(s.shape, np.dtype(np.float32)) if s.differentiable else s for s in example.inputs]
            piece, wanted = iteration_space(example.operator, specs), [s.differentiable for s in specs]
            found[kind] = [piece_action(example.operator, specs, piece, way, wanted, self._kernels)[0] for way in (False, True)]
        return found
