"""How much memory this process may have: the machine's, or less in a container or a service."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import psutil

_ROOT = Path("/")
_CACHED = ("active_file", "inactive_file")
"""In memory.stat: the kernel takes these pages back before it kills anybody."""
_LIMITS = ("memory.max", "memory.high")
"""The latter kills nobody, but who is beyond it hardly moves."""


@dataclass(frozen=True)
class UsableMemory:
    total_bytes: int
    available_bytes: int
    is_limited: bool = False
    """A control group allows less than the machine has: `docker run --memory`, MemoryMax=."""


def usable_memory(root: Path = _ROOT) -> UsableMemory:
    """What the machine has, or the tightest of this process's control groups and those above
    leaves of it. `root`: where /proc and /sys are."""
    seen = psutil.virtual_memory()
    total, available = int(seen.total), int(seen.available)
    limited = False
    for limit, free in _allowed(root):
        limited = limited or limit < total
        total, available = min(total, limit), min(available, free)
    return UsableMemory(total, available, limited)


def _allowed(root: Path) -> Iterator[tuple[int, int]]:
    """(most, free) bytes of each group with a limit, of this process's and those above it."""
    top = root / "sys/fs/cgroup"
    for line in _lines(root / "proc/self/cgroup"):
        if not line.startswith("0::"):
            continue  # of the first version of control groups, whose limits are not known here
        group = top / line.removeprefix("0::").strip("/")
        # In a container the path may be the host's, where here is only the top.
        for folder in (group, *group.parents):
            if not folder.is_relative_to(top):
                break
            found = [limit for name in _LIMITS if (limit := _number(folder / name)) is not None]
            if found:
                yield min(found), max(min(found) - _held_bytes(folder), 0)


def _held_bytes(folder: Path) -> int:
    """What the kernel cannot take back: all but the cache of files."""
    counts = (line.split() for line in _lines(folder / "memory.stat"))
    cached = sum(int(count) for name, count in counts if name in _CACHED)
    return max((_number(folder / "memory.current") or 0) - cached, 0)


def _number(path: Path) -> int | None:
    """None: there is no such file, or it says `max`."""
    words = _lines(path)
    return int(words[0]) if words and words[0].isdigit() else None


def _lines(path: Path) -> list[str]:
    try:
        return path.read_text(encoding="utf-8").splitlines()
    except OSError:
        return []
