"""Memory that this process may use: the machine's, or less in a container or a service."""

import resource
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import psutil

from atom.base.control_groups import ROOT, group_folders, lines_of, numbers_in

_CACHED = ("active_file", "inactive_file")
"""Keys in memory.stat for pages of the file cache."""
_FILES = (
    (("memory.max", "memory.high"), "memory.current", ""),
    (("memory.limit_in_bytes",), "memory.usage_in_bytes", "total_"),
)
"""Files of version 2 and of version 1 of control groups: files with limits, file with the usage,
prefix of the keys in memory.stat that include the groups below. Beyond memory.high the kernel kills
no process but slows them down to almost a standstill, so it counts as a limit, too."""

ALWAYS_ALLOWED_BYTES = 2 * 2**30
"""Memory that `bounded_memory` allows at least. Importing and tracing a usual model take 0.5 GiB, a
model of 1,000 layers about 1.6 GiB."""


@dataclass(frozen=True)
class UsableMemory:
    """Memory of the machine, or of the tightest control group of this process."""

    total_bytes: int
    available_bytes: int
    is_limited: bool = False
    """True if a control group allows less than the machine has (`docker run --memory`,
    MemoryMax=)."""


def usable_memory(root: Path = ROOT) -> UsableMemory:
    """Return the memory that this process may use, and the part of it that is free now.

    Both are the minimum over the machine, this process's control group and all groups above it.

    Args:
        root: folder that contains /proc and /sys.
    """
    seen = psutil.virtual_memory()
    total, available = int(seen.total), int(seen.available)
    limited = False
    for limit, free in _allowed(root):
        limited = limited or limit < total
        total, available = min(total, limit), min(available, free)
    return UsableMemory(total, available, limited)


@contextmanager
def bounded_memory() -> Iterator[None]:
    """Let this process take at most half of the free memory within the context.

    The process may always take `ALWAYS_ALLOWED_BYTES`. Code in the context that takes more gets a
    MemoryError, or a RuntimeError from PyTorch, and the kernel kills no process. RLIMIT_DATA counts
    memory of this process that it can write to.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_DATA)
    allowed_bytes = max(usable_memory().available_bytes // 2, ALWAYS_ALLOWED_BYTES)
    bounds = psutil.Process().memory_info().data + allowed_bytes, soft, hard
    bound = min(each for each in bounds if each != resource.RLIM_INFINITY)
    resource.setrlimit(resource.RLIMIT_DATA, (bound, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_DATA, (soft, hard))


def _allowed(root: Path) -> Iterator[tuple[int, int]]:
    """Yield (limit, free bytes) of this process's group and the groups above it, if limited."""
    for folder, is_first in group_folders("memory", root):
        limits, usage, total = _FILES[is_first]
        found = [number for name in limits for number in numbers_in(folder / name)[:1]]
        if found:
            held_bytes = sum(numbers_in(folder / usage)[:1]) - _cached_bytes(folder, total)
            yield min(found), max(min(found) - max(held_bytes, 0), 0)


def _cached_bytes(folder: Path, prefix: str) -> int:
    """Return the bytes of a group that the kernel takes back before it kills a process."""
    counts = dict(line.split() for line in lines_of(folder / "memory.stat"))
    return sum(int(counts.get(prefix + name, 0)) for name in _CACHED)
