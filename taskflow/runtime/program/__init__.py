"""Program: one rank's step, compiled once and then replayed.

``schedule`` orders the rank's items, ``storage`` gives them memory, ``bind`` turns tasks into functions, ``program`` runs them.
"""

from taskflow.runtime.program.bind import Action, bind
from taskflow.runtime.program.program import Binder, Measured, Program, fail
from taskflow.runtime.program.schedule import (
    Item,
    Placement,
    RankSchedule,
    Receive,
    RunTask,
    Send,
    StartCollective,
    WaitReceive,
    WaitSend,
    schedule,
)
from taskflow.runtime.program.storage import PersistentBuffers, Storage
