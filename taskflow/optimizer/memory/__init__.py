"""Memory of a step: the bytes that each device needs, and when."""

from taskflow.optimizer.memory.peak import MemoryUse, explain, fits, kept_bytes, memory_use, packed_bytes
from taskflow.optimizer.memory.profile import MemoryProfile, memory_profile

__all__ = ["MemoryProfile", "MemoryUse", "explain", "fits", "kept_bytes", "memory_profile", "memory_use", "packed_bytes"]
