"""Plans for the frameworks that people train with.

`mesh`: a plan's processors as a mesh of ascending ranks, and each operator's cut as mesh dimensions. `cuts`: what a cut means
for tensors. `pytorch`: a module for torchrun. `jax`: one for `jax.jit`. Cuts that a framework cannot express are listed
operator by operator, with the nearest plan.
"""

from taskflow.export.export import (
    PROGRAM_OF,
    RESTRICTING,
    TARGETS,
    Exported,
    exported,
    nearest_plan,
    require_exportable,
    require_running,
    why_not,
)
from taskflow.export.restrict import Framework, constraints_for, kept_gradients, nearest_within, target
