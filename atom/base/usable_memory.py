"""Memory that this process may use: the machine's, or less in a container or a service."""

import resource
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import psutil

_ROOT = Path("/")
_CACHED = ("active_file", "inactive_file")
"""Keys in memory.stat for pages that the kernel takes back before it kills a process."""
_LIMITS = ("memory.max", "memory.high")
"""Files with limits of a group. Beyond the second the kernel kills no process but slows them down
to almost a standstill, so it counts as a limit, too."""

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


def usable_memory(root: Path = _ROOT) -> UsableMemory:
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
    top = root / "sys/fs/cgroup"
    for line in _lines(root / "proc/self/cgroup"):
        if not line.startswith("0::"):
            continue  # version 1 of control groups, whose limits are not read here
        group = top / line.removeprefix("0::").strip("/")
        # In a container the path may be the host's, of which only the top exists here.
        for folder in (group, *group.parents):
            if not folder.is_relative_to(top):
                break
            found = [limit for name in _LIMITS if (limit := _number(folder / name)) is not None]
            if found:
                yield min(found), max(min(found) - _held_bytes(folder), 0)


def _held_bytes(folder: Path) -> int:
    """Return the bytes that the kernel cannot take back: all but the cache of files."""
    counts = (line.split() for line in _lines(folder / "memory.stat"))
    cached = sum(int(count) for name, count in counts if name in _CACHED)
    return max((_number(folder / "memory.current") or 0) - cached, 0)


def _number(path: Path) -> int | None:
    """Return the number in a file; None if the file does not exist or says `max`."""
    words = _lines(path)
    return int(words[0]) if words and words[0].isdigit() else None


def _lines(path: Path) -> list[str]:
    try:
        return path.read_text(encoding="utf-8").splitlines()
    except OSError:
        return []
