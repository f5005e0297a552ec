"""Regions and who may touch them: index spaces, privileges and the dependence analysis over task launches."""

from taskflow.regions.check import PrivilegeError, check_index_launch, check_privileges
from taskflow.regions.dependence import Analysis, Launched
from taskflow.regions.needs import INITIAL, Clear, Contents, Contribution, CopyNeed, ReduceNeed
from taskflow.regions.ordering import Dependence, DependenceKind
from taskflow.regions.privilege import Privilege, Requirement, interferes
from taskflow.regions.rect import Rect, covers, tilings
from taskflow.regions.region import Instance, LogicalRegion
from taskflow.regions.segments import DisjointMap, RectIndex, canonical

__all__ = [
    "INITIAL",
    "Analysis",
    "Clear",
    "Contents",
    "Contribution",
    "CopyNeed",
    "Dependence",
    "DependenceKind",
    "DisjointMap",
    "Instance",
    "Launched",
    "LogicalRegion",
    "Privilege",
    "PrivilegeError",
    "Rect",
    "RectIndex",
    "ReduceNeed",
    "Requirement",
    "canonical",
    "check_index_launch",
    "check_privileges",
    "covers",
    "interferes",
    "tilings",
]
