"""Task graphs: the tasks of one step, their order in time, and the memory they need.

``lower`` makes it from a graph and a strategy, ``launch`` from calls of user tasks, ``simulate.py`` predicts its times.
"""

from taskflow.tasks.items import (
    Item,
    Leave,
    Placement,
    Planned,
    Receive,
    RunTask,
    Send,
    StartCollective,
    WaitReceive,
    WaitSend,
    items_of,
    laid_out_bytes,
    lifetimes,
    needs,
    rooms,
    root_of,
    uses,
)
from taskflow.tasks.memory import ALIGNMENT, Lifetime, MemoryPlan, plan_memory, plan_places
from taskflow.tasks.simulate import (
    TICKS,
    Cost,
    Priority,
    Span,
    Timeline,
    all_reduce_seconds,
    link_names,
    message_resources,
    on_grid,
    resources,
    roofline,
    simulate,
    stays,
    together,
)
from taskflow.tasks.task import (
    AllGather,
    AllReduce,
    AllToAll,
    Block,
    Buffer,
    Bundle,
    Cell,
    Clip,
    Collective,
    Compute,
    Filling,
    GradientTo,
    Kind,
    Norm,
    Part,
    ReduceScatter,
    Runs,
    Summation,
    Task,
    TaskGraph,
    Transfer,
    Turn,
    Update,
    UserCall,
)
from taskflow.tasks.topic import SYNCHRONISATION, Purpose, Topic
