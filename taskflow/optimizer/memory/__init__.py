"""Memory of a step: the bytes that each device needs, and when."""

from taskflow.optimizer.memory.peak import (
    MemoryProfile,
    MemoryUse,
    explain,
    fits,
    kept_bytes,
    memory_profile,
    memory_use,
    packed_bytes,
)

__all__ = ["MemoryProfile", "MemoryUse", "explain", "fits", "kept_bytes", "memory_profile", "memory_use", "packed_bytes"]
