"""Ranks of a job: how they start, wait, fail together, and are watched.

``launch.py`` reads what the launcher says, and ``polling.py`` is how a rank waits. ``job_end.py`` ends the job when a rank raises.
``arrivals.py`` names one that never connects, ``chain.py`` one that hangs. ``watcher.py`` names one that is killed: it is a
process beside the job, which ``lifeline.py`` starts.

Names are loaded when they are first used: ``import taskflow`` needs ``launch`` before numpy is imported.
"""

from typing import TYPE_CHECKING

from taskflow.lazy import lazily

if TYPE_CHECKING:
    from taskflow.runtime.job.arrivals import STARTED, arrive
    from taskflow.runtime.job.chain import Wait, explain
    from taskflow.runtime.job.elastic import ATTEMPT_VARIABLE, LAUNCHER, RankRange, hosts_of, run_elastic
    from taskflow.runtime.job.job_end import JobEnd
    from taskflow.runtime.job.launch import (
        INTERRUPTED,
        Launcher,
        LaunchError,
        launcher,
        limit_threads,
        say_once,
        speaks,
    )
    from taskflow.runtime.job.node import node_key
    from taskflow.runtime.job.polling import (
        WATCHDOG_VARIABLE,
        Backoff,
        Doorbell,
        node_cores,
        pace_for,
        plain_sleep,
        poll,
        start_limit,
        usable_cores,
        watchdog_limit,
    )
    from taskflow.runtime.job.segments import LEAN_BYTES
    from taskflow.runtime.job.shared_space import MORE, in_words, make_room, room

__getattr__ = lazily(__name__, {
    "taskflow.runtime.job.arrivals": ("STARTED", "arrive"),
    "taskflow.runtime.job.chain": ("Wait", "explain"),
    "taskflow.runtime.job.elastic": ("ATTEMPT_VARIABLE", "LAUNCHER", "RankRange", "hosts_of", "run_elastic"),
    "taskflow.runtime.job.job_end": ("JobEnd",),
    "taskflow.runtime.job.launch": (
        "INTERRUPTED", "Launcher", "LaunchError", "launcher", "limit_threads", "say_once", "speaks",
    ),
    "taskflow.runtime.job.node": ("node_key",),
    "taskflow.runtime.job.polling": (
        "WATCHDOG_VARIABLE", "Backoff", "Doorbell", "node_cores", "pace_for", "plain_sleep", "poll",
        "start_limit", "usable_cores", "watchdog_limit",
    ),
    "taskflow.runtime.job.segments": ("LEAN_BYTES",),
    "taskflow.runtime.job.shared_space": ("MORE", "in_words", "make_room", "room"),
})
