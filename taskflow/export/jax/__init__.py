"""Plans as modules for JAX: PartitionSpecs of parameters and of optimiser state, and constraints of activations, on one mesh.

`jax_plan` expresses a plan for GSPMD (the partitioner behind `jax.jit`), and lists what cannot be expressed; `jax_code` writes
the module. `support` is the code that every such module contains; it needs jax.
"""

from taskflow.export.jax.code import jax_code
from taskflow.export.jax.plan import JaxPlan, jax_plan

__all__ = ["JaxPlan", "jax_code", "jax_plan"]
