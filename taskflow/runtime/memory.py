"""The memory plan, which is pure and lives in `taskflow.tasks.memory`, where the search may use it too."""

from taskflow.tasks.memory import ALIGNMENT, Lifetime, MemoryPlan, plan_memory

__all__ = ["ALIGNMENT", "Lifetime", "MemoryPlan", "plan_memory"]
