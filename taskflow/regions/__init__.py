"""What is cut and who may touch it: index spaces, regions, privileges and the dependence analysis over task launches."""

from taskflow.regions.privilege import Privilege, Requirement, interferes
from taskflow.regions.rect import Rect, covers
from taskflow.regions.region import Instance, LogicalRegion

__all__ = ["Instance", "LogicalRegion", "Privilege", "Rect", "Requirement", "covers", "interferes"]
