"""One rank's step, compiled once and then replayed.

``schedule`` orders what the rank does, ``storage`` gives it memory, ``bind`` turns tasks into functions, ``program`` runs
them.
"""

from taskflow.runtime.program.bind import Action, bind
from taskflow.runtime.program.program import Binder, Measured, Program, fail
from taskflow.runtime.program.schedule import Arrive, Flush, Item, Join, Placement, Post, Run, Schedule, Send, schedule
from taskflow.runtime.program.storage import Kept, Storage

__all__ = [
    "Action",
    "Arrive",
    "Binder",
    "Flush",
    "Item",
    "Join",
    "Kept",
    "Measured",
    "Placement",
    "Post",
    "Program",
    "Run",
    "Schedule",
    "Send",
    "Storage",
    "bind",
    "fail",
    "schedule",
]
