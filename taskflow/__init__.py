"""taskflow: trains deep networks under any SOAP parallelisation strategy, and finds a fast one by itself.

Importing it starts nothing: no MPI, no GPU, no threads. Names are loaded when they are first used.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from taskflow.lazy import lazily
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

_named = lazily(__name__, {
    "taskflow.graph": ("OperatorGraph",),
    "taskflow.loss_scaling": ("LossScaling",),
    "taskflow.machine": ("host", "load_machine"),
    "taskflow.mapper": (
        "CollectiveSync", "Mapper", "MessageSync", "OpConfig", "ShardedSync", "Strategy", "Sync", "SyncAlgorithm",
        "UpdatePlacement", "choose", "map_graph", "load as load_strategy", "save as save_strategy",
    ),
    "taskflow.models.pytorch": ("from_torch",),
    "taskflow.optimizer.result": ("SearchResult",),
    "taskflow.optimizer.search": ("search",),
    "taskflow.rules": ("SGD", "Adam", "AdamW", "AdamWInBfloat16"),
    "taskflow.runtime.connecting": ("connect",),
    "taskflow.runtime.executor": ("Executor",),
    "taskflow.runtime.job.elastic": ("run_elastic",),
    "taskflow.runtime.tasks.api": ("TaskRuntime",),
    "taskflow.tasks.launch.function": ("task",),
})  # fmt: skip


def __getattr__(name: str) -> Any:
    if name in __all__:
        return _named(name)
    builders = () if name.startswith("_") else importlib.import_module("taskflow.operators").__all__
    if name not in builders:
        raise AttributeError(f"module 'taskflow' has no attribute {name!r}")
    globals()[name] = value = getattr(importlib.import_module("taskflow.operators"), name)
    return value


def __dir__() -> list[str]:
    return sorted({*__all__, *importlib.import_module("taskflow.operators").__all__, "__version__", "__doc__"})
