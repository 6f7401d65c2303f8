"""Memory that this machine lets the daemon use."""

from atom.base.usable_memory import UsableMemory, bounded_memory, usable_memory

__all__ = ["UsableMemory", "bounded_memory", "usable_memory"]
