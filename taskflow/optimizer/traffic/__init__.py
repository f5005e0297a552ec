"""Traffic: what moves between processors under a strategy, found without lowering it, and how long that keeps links busy."""

from taskflow.optimizer.traffic.additive import Additive
from taskflow.optimizer.traffic.edges import (
    Accesses,
    Corners,
    Makers,
    Vector,
    alternatives,
    common,
    makers,
    needed,
    owned,
    sent,
)
from taskflow.optimizer.traffic.loads import Loads
from taskflow.optimizer.traffic.messages import Messages
