"""The ranks of a job: how they start, wait, fail together, and are watched.

Imports neither numpy nor mpi4py, so that ``taskflow`` can set thread limits first.
"""

from taskflow.runtime.job.chain import Wait, explain
from taskflow.runtime.job.failure import JobEnd
from taskflow.runtime.job.launch import INTERRUPTED, LaunchError, connect, launcher, say_once, speaks
from taskflow.runtime.job.node import node_key
from taskflow.runtime.job.polling import (
    WATCHDOG_VARIABLE,
    Backoff,
    Doorbell,
    node_cores,
    pace_for,
    plain_sleep,
    poll,
    usable_cores,
    watchdog_limit,
)

__all__ = [
    "INTERRUPTED",
    "WATCHDOG_VARIABLE",
    "Backoff",
    "Doorbell",
    "JobEnd",
    "LaunchError",
    "Wait",
    "connect",
    "explain",
    "launcher",
    "node_cores",
    "node_key",
    "pace_for",
    "plain_sleep",
    "poll",
    "say_once",
    "speaks",
    "usable_cores",
    "watchdog_limit",
]
