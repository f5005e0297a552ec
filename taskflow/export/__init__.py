"""Plans for the frameworks that people train with.

`mesh`: a plan's processors as a mesh of ascending ranks, and each operator's cut as mesh dimensions. `cuts`: what a cut means for
tensors. `pytorch`: a module for torchrun. What a framework cannot express is said operator by operator, with the nearest plan.
"""

from taskflow.export.difference import Difference
from taskflow.export.export import TARGETS, Exported, exported
from taskflow.export.mesh import Mesh, mesh_of

__all__ = ["TARGETS", "Difference", "Exported", "Mesh", "exported", "mesh_of"]
