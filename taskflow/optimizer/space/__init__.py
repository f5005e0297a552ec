"""Search space: the strategies from which a search may choose.

Candidates for each operator, user constraints, operators that follow others, layers, groups of devices, and renumberings of
devices that change nothing.
"""

from taskflow.optimizer.space.constraints import Constraints, in_a_row, repaired, repaired_strategy
from taskflow.optimizer.space.decisions import Decision, decisions, joined, strategies
from taskflow.optimizer.space.device_groups import DeviceGroup, on_team, shapes, teams
from taskflow.optimizer.space.followers import CoupledMoves
from taskflow.optimizer.space.layers import Layer, Spreads, layers
from taskflow.optimizer.space.shares import (
    Weigher,
    even,
    kinds_of,
    shares_by_speed,
    unequal,
    uneven_applies,
    units_of,
    weighed,
    whole_shares,
)
from taskflow.optimizer.space.space import (
    DEGREES,
    FOLLOW,
    PLACEMENTS,
    OperatorSpace,
    SearchSpace,
    SpaceOptions,
    orders,
    place,
)
from taskflow.optimizer.space.symmetry import Renumbering, Symmetry, renumbered
