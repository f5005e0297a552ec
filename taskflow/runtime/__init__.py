"""Execute task graphs on the ranks of a job.

``Executor`` trains and evaluates a graph under a strategy. Packages: ``job`` (start and failure of ranks),
``transport`` (messages), ``program`` (a rank's compiled step), ``weights`` (where arrays lie), ``tasks`` (the task API),
``profiler`` (traces), ``calibrate`` (the machine's own rates).

Names are loaded when they are first used, since ``taskflow`` must set thread limits before numpy is imported.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from taskflow.runtime.collector import paused_collector as paused_collector
    from taskflow.runtime.executor import Executor as Executor
    from taskflow.runtime.inference import answers_of as answers_of
    from taskflow.runtime.inference import outputs_of as outputs_of

_WHERE = {
    "Executor": "taskflow.runtime.executor",
    "answers_of": "taskflow.runtime.inference",
    "outputs_of": "taskflow.runtime.inference",
    "paused_collector": "taskflow.runtime.collector",
}
__all__ = ["Executor", "answers_of", "outputs_of", "paused_collector"]


def __getattr__(name: str) -> Any:
    if name not in _WHERE:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = globals()[name] = getattr(import_module(_WHERE[name]), name)
    return value
