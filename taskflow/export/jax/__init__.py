"""Plans as modules for JAX: PartitionSpecs of parameters and of optimiser state, and constraints of activations, on one mesh.

`jax_plan` says how a plan is expressed for GSPMD (the partitioner behind `jax.jit`), and what of it cannot be; `jax_code` writes
the module. `support` is what every such module has in it, and needs jax.
"""

from taskflow.export.jax.code import jax_code
from taskflow.export.jax.plan import JaxPlan, jax_plan

__all__ = ["JaxPlan", "jax_code", "jax_plan"]
