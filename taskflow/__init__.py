"""taskflow: trains deep networks under any SOAP parallelisation strategy, and finds a fast one by itself.

Importing it starts nothing: no MPI, no GPU, no threads. Names are loaded when they are first used.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from taskflow.runtime.job.launch import limit_threads

__version__ = "0.1.0"

# Under mpirun each rank takes its share of the cores; BLAS reads these variables when numpy is first imported.
limit_threads()

if TYPE_CHECKING:
    from taskflow.graph import OperatorGraph
    from taskflow.loss_scaling import LossScaling
    from taskflow.machine import host, load_machine
    from taskflow.mapper import (
        CollectiveSync,
        Mapper,
        MessageSync,
        OpConfig,
        ShardedSync,
        Strategy,
        Sync,
        SyncAlgorithm,
        UpdatePlacement,
        choose,
        map_graph,
    )
    from taskflow.mapper import load as load_strategy
    from taskflow.mapper import save as save_strategy
    from taskflow.models.pytorch import from_torch
    from taskflow.operators import *  # noqa: F403
    from taskflow.operators import input as input
    from taskflow.optimizer.result import SearchResult
    from taskflow.optimizer.search import search
    from taskflow.rules import SGD, Adam, AdamW, AdamWInBfloat16
    from taskflow.runtime import connect
    from taskflow.runtime.executor import Executor
    from taskflow.runtime.job import run_elastic
    from taskflow.runtime.tasks.api import TaskRuntime
    from taskflow.tasks.launch.function import task

# The operators' builders (``taskflow.linear``) are names of taskflow too, but left out here: a star import would replace
# Python's own ``input``.
__all__ = [
    "SGD",
    "Adam",
    "AdamW",
    "AdamWInBfloat16",
    "CollectiveSync",
    "Executor",
    "LossScaling",
    "Mapper",
    "MessageSync",
    "OpConfig",
    "OperatorGraph",
    "SearchResult",
    "ShardedSync",
    "Strategy",
    "Sync",
    "SyncAlgorithm",
    "TaskRuntime",
    "UpdatePlacement",
    "choose",
    "connect",
    "from_torch",
    "host",
    "load_machine",
    "load_strategy",
    "map_graph",
    "run_elastic",
    "save_strategy",
    "search",
    "task",
]

_WHERE = {
    "OperatorGraph": "taskflow.graph:OperatorGraph",
    "host": "taskflow.machine:host",
    "Mapper": "taskflow.mapper:Mapper",
    "OpConfig": "taskflow.mapper:OpConfig",
    "UpdatePlacement": "taskflow.mapper:UpdatePlacement",
    "Strategy": "taskflow.mapper:Strategy",
    "CollectiveSync": "taskflow.mapper:CollectiveSync",
    "MessageSync": "taskflow.mapper:MessageSync",
    "ShardedSync": "taskflow.mapper:ShardedSync",
    "Sync": "taskflow.mapper:Sync",
    "SyncAlgorithm": "taskflow.mapper:SyncAlgorithm",
    "choose": "taskflow.mapper:choose",
    "load_strategy": "taskflow.mapper:load",
    "map_graph": "taskflow.mapper:map_graph",
    "save_strategy": "taskflow.mapper:save",
    "SGD": "taskflow.rules:SGD",
    "Adam": "taskflow.rules:Adam",
    "AdamW": "taskflow.rules:AdamW",
    "AdamWInBfloat16": "taskflow.rules:AdamWInBfloat16",
    "LossScaling": "taskflow.loss_scaling:LossScaling",
    "Executor": "taskflow.runtime.executor:Executor",
    "run_elastic": "taskflow.runtime.job.elastic:run_elastic",
    "connect": "taskflow.runtime.connecting:connect",
    "TaskRuntime": "taskflow.runtime.tasks.api:TaskRuntime",
    "SearchResult": "taskflow.optimizer.result:SearchResult",
    "search": "taskflow.optimizer.search:search",
    "load_machine": "taskflow.machine:load_machine",
    "from_torch": "taskflow.models.pytorch:from_torch",
    "task": "taskflow.tasks.launch.function:task",
}


def __getattr__(name: str) -> Any:
    if name.startswith("_"):
        raise AttributeError(f"module 'taskflow' has no attribute {name!r}")
    if name in _WHERE:
        module, _, attribute = _WHERE[name].partition(":")
        value = getattr(importlib.import_module(module), attribute)
    else:
        builders = importlib.import_module("taskflow.operators")
        if name not in builders.__all__:
            raise AttributeError(f"module 'taskflow' has no attribute {name!r}")
        value = getattr(builders, name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*__all__, *importlib.import_module("taskflow.operators").__all__, "__version__", "__doc__"})
