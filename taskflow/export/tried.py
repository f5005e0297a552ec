"""Whether a network's code works on the pieces that plans for PyTorch give it, as a search asks for many plans."""

from __future__ import annotations

from typing import Any

from taskflow.export.export import NAMES, Exported, exported, require_running
from taskflow.graph import OperatorGraph
from taskflow.mapper import Strategy

CUT_WORDS = ("tensor", "context", "experts")


class TriedCode:
    """Says why a network's code fails under a plan (`require_running`), which takes seconds for a large network. Of plans in
    notation the first with each choice of degrees above 1 is tried. ``failed``: the first reason."""

    def __init__(self, graph: OperatorGraph, target: str) -> None:
        self.graph, self.target, self.failed = graph, target, ""
        self._known: dict[tuple[Any, ...], str] = {}

    def __call__(self, strategy: Strategy, found: Exported | None = None) -> str:
        """Return why the code fails; empty if it works, or if that is not known before it runs. ``found``: the exported plan, where
        the caller has it."""
        if self.target != "torch" or (strategy.pipeline is not None and strategy.pipeline.count > 1):
            return ""
        plan = strategy.plan
        degrees = () if plan is None else tuple(getattr(plan, word) > 1 for word in CUT_WORDS)
        if plan is not None and not any(degrees):
            return ""
        key = None if plan is None else (*degrees, plan.sequence_parallel)
        if key in self._known:
            return self._known[key]
        why = ""
        try:
            require_running(self.graph, found or exported(self.graph, strategy, self.target, NAMES[self.target]), self.target)
        except ValueError as error:
            why = str(error)
        self.failed = self.failed or why
        if key is not None:
            self._known[key] = why
        return why
