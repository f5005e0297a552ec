"""Old names and places of public modules and classes, importable for one version with a DeprecationWarning.

Programs written for 0.1 keep working; the warning says what to write instead. To be deleted with version 0.3.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from importlib import import_module
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any
from warnings import warn

MODULES = {
    "taskflow.optimizer.company": "taskflow.optimizer.cost.measured.contention",
    "taskflow.optimizer.constraints": "taskflow.optimizer.space.constraints",
    "taskflow.optimizer.core": "taskflow.optimizer.evaluate.compiled",
    "taskflow.optimizer.core_costs": "taskflow.optimizer.cost.task_costs",
    "taskflow.optimizer.cost_analytic": "taskflow.optimizer.cost.analytic",
    "taskflow.optimizer.cost_bench": "taskflow.optimizer.cost.measured.bench",
    "taskflow.optimizer.cost_choice": "taskflow.optimizer.cost.choose",
    "taskflow.optimizer.cost_measured": "taskflow.optimizer.cost.measured.model",
    "taskflow.optimizer.evaluator": "taskflow.optimizer.evaluate",
    "taskflow.optimizer.exact": "taskflow.optimizer.algorithms.exact",
    "taskflow.optimizer.found": "taskflow.optimizer",
    "taskflow.optimizer.guided": "taskflow.optimizer.algorithms.guided",
    "taskflow.optimizer.mcmc": "taskflow.optimizer.algorithms.mcmc",
    "taskflow.optimizer.model_costs": "taskflow.optimizer.cost.adapter",
    "taskflow.optimizer.moves": "taskflow.optimizer.algorithms.moves",
    "taskflow.optimizer.optcnn": "taskflow.optimizer.algorithms.optcnn",
    "taskflow.optimizer.placement": "taskflow.optimizer.algorithms.placement",
    "taskflow.optimizer.polish": "taskflow.optimizer.algorithms.local_search",
    "taskflow.optimizer.room": "taskflow.optimizer.memory_check",
    "taskflow.optimizer.starts": "taskflow.optimizer.algorithms.initial",
    "taskflow.optimizer.together": "taskflow.optimizer.space.followers",
    "taskflow.optimizer.where": "taskflow.optimizer.evaluate.usage",
    "taskflow.runtime.launch": "taskflow.runtime.connect",
    "taskflow.runtime.local": "taskflow.runtime.transport.local",
    "taskflow.runtime.measure": "taskflow.runtime.calibrate.machine",
    "taskflow.runtime.mpi": "taskflow.runtime.transport.mpi",
    "taskflow.runtime.null": "taskflow.testing.null_runtime",
    "taskflow.runtime.schedule": "taskflow.runtime.program.schedule",
    "taskflow.runtime.stamp": "taskflow.testing.stamp_kernels",
    "taskflow.runtime.storage": "taskflow.runtime.program.storage",
    "taskflow.runtime.trace": "taskflow.runtime.profiler.tracer",
    "taskflow.runtime.trace_file": "taskflow.runtime.profiler.file",
    "taskflow.tasks.launch_function": "taskflow.tasks.launch.function",
    "taskflow.training.batches": "taskflow.training.data.batches",
    "taskflow.training.checkpoint": "taskflow.checkpoint",
    "taskflow.training.corpus": "taskflow.training.data.corpus",
    "taskflow.training.example": "taskflow.training.program.example",
    "taskflow.training.images": "taskflow.training.program.images",
    "taskflow.training.metrics": "taskflow.training.evaluation.metrics",
    "taskflow.training.plan": "taskflow.training.program.plan",
    "taskflow.training.progress": "taskflow.training.program.progress",
    "taskflow.training.stream": "taskflow.training.data.protocols",
    "taskflow.training.synthetic": "taskflow.training.data.synthetic",
    "taskflow.training.text": "taskflow.training.data.text",
    "taskflow.training.weights": "taskflow.checkpoint",
}
"""Old module -> where its names are."""

NAMES: Mapping[str, Mapping[str, str]] = {
    "taskflow": {
        "Found": "SearchResult", "Place": "UpdatePlacement", "Tasks": "TaskRuntime", "Travel": "SyncAlgorithm",
    },
    "taskflow.mapper": {"Place": "UpdatePlacement", "Travel": "SyncAlgorithm"},
    "taskflow.mapper.config": {"Place": "UpdatePlacement", "Travel": "SyncAlgorithm"},
    "taskflow.optimizer.core": {"CoreEvaluator": "CompiledEvaluator"},
    "taskflow.optimizer.found": {"Found": "SearchResult"},
    "taskflow.optimizer.room": {"Room": "MemoryCheck"},
    "taskflow.optimizer.together": {"Together": "CoupledMoves"},
    "taskflow.runtime.schedule": {"Schedule": "RankSchedule"},
    "taskflow.runtime.storage": {"Kept": "PersistentBuffers"},
    "taskflow.training.example": {"Run": "RunConfig"},
    "taskflow.training.stream": {"Evaluation": "Validation"},
}
"""Module -> old name -> new name."""


def renamed(module: str, name: str) -> str | None:
    """Return the new name of a module's old name, with a warning; None if it never had that name."""
    new = NAMES.get(module, {}).get(name)
    if new is not None:
        warn(f"{module}.{name} is now called {new}; the old name goes with version 0.3", DeprecationWarning, stacklevel=4)
    return new


class OldMember:
    """Old name of an enumeration's member, for one line of its class: reading it warns and returns the new member.

    It is a descriptor, so that the enumeration does not take it for a member of its own."""

    def __init__(self, new: str) -> None:
        self.new, self.old = new, ""

    def __set_name__(self, owner: type, name: str) -> None:
        self.old = name

    def __get__(self, instance: object, owner: type[Any]) -> Any:
        old, new = f"{owner.__name__}.{self.old}", f"{owner.__name__}.{self.new}"
        warn(f"{old} is now called {new}; the old name goes with version 0.3", DeprecationWarning, stacklevel=2)
        return getattr(owner, self.new)


class OldModules(MetaPathFinder, Loader):
    """Import finder for the modules of MODULES, which are the new ones with the old names added."""

    def find_spec(self, name: str, path: Sequence[str] | None, target: ModuleType | None = None) -> ModuleSpec | None:
        """Return the spec of an old module; None for all others."""
        return ModuleSpec(name, self) if name in MODULES else None

    def exec_module(self, module: ModuleType) -> None:
        """Warn, and from then on look names up in the new module."""
        old, new = module.__name__, MODULES[module.__name__]
        warn(f"{old} is now {new}; the old module goes with version 0.3", DeprecationWarning, stacklevel=2)
        place = import_module(new)

        def look_up(name: str) -> Any:
            if name.startswith("__"):
                raise AttributeError(name)
            return getattr(place, NAMES.get(old, {}).get(name, name))

        module.__dict__["__getattr__"] = look_up
