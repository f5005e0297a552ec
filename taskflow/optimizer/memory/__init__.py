"""The bytes that each device needs in a step, and when."""

from taskflow.optimizer.memory.plan import MemoryUse, explain, memory_use
from taskflow.optimizer.memory.profile import MemoryProfile, memory_profile

__all__ = ["MemoryProfile", "MemoryUse", "explain", "memory_profile", "memory_use"]
