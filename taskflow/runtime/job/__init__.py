"""Ranks of a job: how they start, wait, fail together, and are watched.

``launch.py`` reads what the launcher says, and ``polling.py`` is how a rank waits. ``job_end.py`` ends the job when a rank raises.
``arrivals.py`` names one that never connects, ``chain.py`` one that hangs. ``watcher.py`` names one that is killed: it is a
process beside the job, which ``lifeline.py`` starts.

Names are loaded when they are first used: ``import taskflow`` needs ``launch`` before numpy is imported.
"""

from typing import TYPE_CHECKING

from taskflow.lazy import lazily

if TYPE_CHECKING:
    from taskflow.runtime.job.arrivals import STARTED as STARTED
    from taskflow.runtime.job.arrivals import arrive as arrive
    from taskflow.runtime.job.chain import Wait as Wait
    from taskflow.runtime.job.chain import explain as explain
    from taskflow.runtime.job.elastic import ATTEMPT_VARIABLE as ATTEMPT_VARIABLE
    from taskflow.runtime.job.elastic import LAUNCHER as LAUNCHER
    from taskflow.runtime.job.elastic import RankRange as RankRange
    from taskflow.runtime.job.elastic import hosts_of as hosts_of
    from taskflow.runtime.job.elastic import run_elastic as run_elastic
    from taskflow.runtime.job.job_end import JobEnd as JobEnd
    from taskflow.runtime.job.launch import INTERRUPTED as INTERRUPTED
    from taskflow.runtime.job.launch import Launcher as Launcher
    from taskflow.runtime.job.launch import LaunchError as LaunchError
    from taskflow.runtime.job.launch import launcher as launcher
    from taskflow.runtime.job.launch import limit_threads as limit_threads
    from taskflow.runtime.job.launch import say_once as say_once
    from taskflow.runtime.job.launch import speaks as speaks
    from taskflow.runtime.job.node import node_key as node_key
    from taskflow.runtime.job.polling import WATCHDOG_VARIABLE as WATCHDOG_VARIABLE
    from taskflow.runtime.job.polling import Backoff as Backoff
    from taskflow.runtime.job.polling import Doorbell as Doorbell
    from taskflow.runtime.job.polling import node_cores as node_cores
    from taskflow.runtime.job.polling import pace_for as pace_for
    from taskflow.runtime.job.polling import plain_sleep as plain_sleep
    from taskflow.runtime.job.polling import poll as poll
    from taskflow.runtime.job.polling import start_limit as start_limit
    from taskflow.runtime.job.polling import usable_cores as usable_cores
    from taskflow.runtime.job.polling import watchdog_limit as watchdog_limit
    from taskflow.runtime.job.segments import LEAN_BYTES as LEAN_BYTES
    from taskflow.runtime.job.shared_space import MORE as MORE
    from taskflow.runtime.job.shared_space import in_words as in_words
    from taskflow.runtime.job.shared_space import make_room as make_room
    from taskflow.runtime.job.shared_space import room as room

__getattr__ = lazily(
    __name__,
    {
        "Wait": "taskflow.runtime.job.chain",
        "explain": "taskflow.runtime.job.chain",
        "JobEnd": "taskflow.runtime.job.job_end",
        "STARTED": "taskflow.runtime.job.arrivals",
        "arrive": "taskflow.runtime.job.arrivals",
        "LAUNCHER": "taskflow.runtime.job.elastic",
        "ATTEMPT_VARIABLE": "taskflow.runtime.job.elastic",
        "RankRange": "taskflow.runtime.job.elastic",
        "hosts_of": "taskflow.runtime.job.elastic",
        "run_elastic": "taskflow.runtime.job.elastic",
        "INTERRUPTED": "taskflow.runtime.job.launch",
        "LaunchError": "taskflow.runtime.job.launch",
        "Launcher": "taskflow.runtime.job.launch",
        "launcher": "taskflow.runtime.job.launch",
        "limit_threads": "taskflow.runtime.job.launch",
        "say_once": "taskflow.runtime.job.launch",
        "speaks": "taskflow.runtime.job.launch",
        "node_key": "taskflow.runtime.job.node",
        "Backoff": "taskflow.runtime.job.polling",
        "Doorbell": "taskflow.runtime.job.polling",
        "WATCHDOG_VARIABLE": "taskflow.runtime.job.polling",
        "node_cores": "taskflow.runtime.job.polling",
        "pace_for": "taskflow.runtime.job.polling",
        "plain_sleep": "taskflow.runtime.job.polling",
        "poll": "taskflow.runtime.job.polling",
        "start_limit": "taskflow.runtime.job.polling",
        "usable_cores": "taskflow.runtime.job.polling",
        "watchdog_limit": "taskflow.runtime.job.polling",
        "LEAN_BYTES": "taskflow.runtime.job.segments",
        "room": "taskflow.runtime.job.shared_space",
        "MORE": "taskflow.runtime.job.shared_space",
        "in_words": "taskflow.runtime.job.shared_space",
        "make_room": "taskflow.runtime.job.shared_space",
    },
)
__all__ = [
    "ATTEMPT_VARIABLE",
    "INTERRUPTED",
    "LAUNCHER",
    "LEAN_BYTES",
    "MORE",
    "STARTED",
    "WATCHDOG_VARIABLE",
    "Backoff",
    "Doorbell",
    "JobEnd",
    "LaunchError",
    "Launcher",
    "RankRange",
    "Wait",
    "arrive",
    "explain",
    "hosts_of",
    "in_words",
    "launcher",
    "limit_threads",
    "make_room",
    "node_cores",
    "node_key",
    "pace_for",
    "plain_sleep",
    "poll",
    "room",
    "run_elastic",
    "say_once",
    "speaks",
    "start_limit",
    "usable_cores",
    "watchdog_limit",
]
