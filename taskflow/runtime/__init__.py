"""Runtime: executes task graphs on the ranks of a job.

``Executor`` trains and evaluates a graph under a strategy. Packages: ``job`` (start and failure of ranks), ``transport``
(messages), ``program`` (a rank's compiled step), ``weights`` (layout of arrays on ranks), ``tasks`` (the task API),
``profiler`` (traces), ``calibrate`` (measured rates of this machine).

Names are loaded when they are first used, since ``taskflow`` must set thread limits before numpy is imported.
"""

from typing import TYPE_CHECKING

from taskflow.lazy import lazily

if TYPE_CHECKING:
    from taskflow.collector import paused_collector
    from taskflow.runtime.connecting import connect
    from taskflow.runtime.executor import Executor, LossError
    from taskflow.runtime.inference import answers_of, outputs_of

__getattr__ = lazily(__name__, {
    "taskflow.collector": ("paused_collector",),
    "taskflow.runtime.connecting": ("connect",),
    "taskflow.runtime.executor": ("Executor", "LossError"),
    "taskflow.runtime.inference": ("answers_of", "outputs_of"),
})
__all__ = ["Executor", "LossError", "answers_of", "connect", "outputs_of", "paused_collector"]
