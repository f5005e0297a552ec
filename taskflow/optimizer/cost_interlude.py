"""Interlude: what a step does to a core between two tasks of one kind. It reads other memory, and it runs other code.

Reading alone leaves the core with the code that is measured: its instructions and its branches' histories are in tables of their
own, which only other code overwrites. Tasks that hold a core for less than a tenth of a millisecond then took up to a half longer
in steps than measured (docs/benchmarks.md).
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property
from random import Random

import numpy as np

from taskflow.kernels import KernelSet
from taskflow.operators.operator import REGISTRY, Array, Spec, iteration_space
from taskflow.optimizer.cost_bench import piece_action

OTHERS = (
    "avg_pool2d", "concat", "conv2d", "cross_entropy", "dropout", "einsum", "embedding", "group_norm", "layer_norm", "linear",
    "lstm", "max_pool2d", "moments", "reduce", "softmax",
)
"""Kinds that run in between: the same ones for all networks, so that these share measurements."""


class Interlude:
    """``sweep``: other memory. The other code is that of small pieces of fifteen kinds of operators, forward and backward."""

    def __init__(self, kernels: KernelSet, sweep: Array) -> None:
        self._kernels, self._sweep = kernels, sweep

    def before(self, kind: str, nbytes: int) -> Callable[[], None]:
        """What runs before a task of ``kind``: reads so many bytes, and runs the other kinds' code."""
        memory = self._sweep[: nbytes // 4]
        others = [action for other, actions in self._actions.items() if other != kind for action in actions]

        def run() -> None:
            memory.sum()
            for action in others:
                action()

        return run

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
