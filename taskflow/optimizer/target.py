"""PlanTarget: a framework that a found plan is to run in, as a search sees it. `taskflow.export` has one for each framework."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from importlib import import_module
from typing import Protocol

from taskflow.graph import OperatorGraph
from taskflow.machine import Machine
from taskflow.mapper import HybridPlan, Strategy
from taskflow.optimizer.evaluate import Evaluator
from taskflow.optimizer.memory_check import MemoryCheck
from taskflow.optimizer.space import Constraints, SpaceOptions

_FRAMEWORKS = "taskflow.export"  # lies above this package, so it is looked up by name, as a plug-in is


class PlanTarget(Protocol):
    """A framework, for one network. ``all_of_a_layer``: the word of plans for recomputing all of a layer, as it does."""

    @property
    def name(self) -> str: ...

    @property
    def all_of_a_layer(self) -> str: ...

    @property
    def left_out(self) -> tuple[str, ...]:
        """What was refused so far for reasons of the network's code, to be said with the answer."""
        ...

    def driven(self, machine: Machine) -> Machine:
        """Return the machine with the framework's training program, unless it has one."""
        ...

    def space(self, space: SpaceOptions) -> SpaceOptions:
        """Return the part of a space that the framework may be able to express."""
        ...

    def may_have(self, plan: HybridPlan, over: Callable[[], bool]) -> bool:
        """True if the framework can express each choice of a plan by itself, which is soon known. Once time is ``over``, what is
        not known is refused."""
        ...

    def has(self, plan: HybridPlan, over: Callable[[], bool]) -> bool:
        """True if it can express the plan. Takes seconds for a large network; ``over`` as of `may_have`."""
        ...

    def lacks(self, strategy: Strategy, memory: MemoryCheck | None) -> str:
        """Return why the framework cannot run a strategy that fits the memory by itself; empty if it can. ``memory`` None: memory
        does not count."""
        ...

    def fastest(
        self, machine: Machine, evaluator: Evaluator, found: Strategy | None, lacks: Callable[[Strategy], str],
        over: Callable[[], bool], constraints: Constraints, degrees: bool = True,
    ) -> tuple[Strategy, float]:
        """Return the fastest strategy that the framework can express, with its seconds, of those near ``found``, of data
        parallelism and, with ``degrees``, of other simple plans. Raises ValueError if none fits."""
        ...


def refusal(memory: MemoryCheck | None, target: PlanTarget | None) -> Callable[[Strategy], str]:
    """Return what says why a strategy cannot run: memory (None: it does not count), or the framework (None: taskflow itself)."""
    if target is None:
        return memory or (lambda strategy: "")
    refuses = partial(target.lacks, memory=memory)
    return refuses if memory is None else memory.refusing(refuses)


def target_named(name: str, graph: OperatorGraph) -> PlanTarget:
    """Return a framework by its name, for a network. Raises ValueError if there is none, or if no plan of this network can be
    exported to it; ImportError without PyTorch, where that is needed."""
    result: PlanTarget = import_module(_FRAMEWORKS).target(name, graph)
    return result
