"""How much memory this process may have: the machine's, or less in a container or a service."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import psutil

from atom.base.units import format_bytes

_ROOT = Path("/")
_CACHED = ("active_file", "inactive_file")
"""In memory.stat: the kernel takes these pages back before it kills anybody."""


@dataclass(frozen=True)
class UsableMemory:
    total_bytes: int
    available_bytes: int
    is_limited: bool = False
    """A control group allows less than the machine has: `docker run --memory`, MemoryMax=."""


@dataclass(frozen=True)
class _Hierarchy:
    """Names of files, in which the two versions of control groups differ."""

    folder: str
    limits: tuple[str, ...]
    """memory.high kills nobody, but who is beyond it hardly moves."""
    used: str
    stat_prefix: str
    """Of the lines that count the groups below, too."""


_SECOND = _Hierarchy("sys/fs/cgroup", ("memory.max", "memory.high"), "memory.current", "")
_FIRST = _Hierarchy(
    "sys/fs/cgroup/memory", ("memory.limit_in_bytes",), "memory.usage_in_bytes", "total_"
)


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
    """(most, free) bytes of each group with a limit."""
    for hierarchy, group in _own_groups(root):
        top = root / hierarchy.folder
        # In a container the path may be the host's, where here is only the top.
        for folder in (top / group, *(top / group).parents):
            if not folder.is_relative_to(top):
                break
            limits = [_number(folder / name) for name in hierarchy.limits]
            found = [limit for limit in limits if limit is not None]
            if found:
                yield min(found), max(min(found) - _held_bytes(folder, hierarchy), 0)


def _own_groups(root: Path) -> Iterator[tuple[_Hierarchy, str]]:
    """`proc/self/cgroup` has lines like `4:memory:/path` and, of the second version, `0::/path`."""
    for line in _lines(root / "proc/self/cgroup"):
        number, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        if "memory" in controllers.split(","):
            yield _FIRST, path.strip("/")
        elif number == "0" and not controllers:
            yield _SECOND, path.strip("/")


def _held_bytes(folder: Path, hierarchy: _Hierarchy) -> int:
    """What the kernel cannot take back: all but the cache of files."""
    names = {hierarchy.stat_prefix + name for name in _CACHED}
    counts = (line.split() for line in _lines(folder / "memory.stat"))
    cached = sum(int(count) for name, count in counts if name in names)
    return max((_number(folder / hierarchy.used) or 0) - cached, 0)


def _number(path: Path) -> int | None:
    """None: there is no such file, or it says `max`."""
    words = _lines(path)
    return int(words[0]) if words and words[0].isdigit() else None


def _lines(path: Path) -> list[str]:
    try:
        return path.read_text(encoding="utf-8").splitlines()
    except OSError:
        return []


def more_than_there_is(cap_bytes: int | None, total_bytes: int) -> str:
    """What the owner of such a cap is told; empty: it is within what the box has. A word, no error:
    there may be swap, and more memory by the next start. `cap_bytes`: [host] memory of the peer
    file."""
    if cap_bytes is None or cap_bytes <= total_bytes:
        return ""
    cap, total = format_bytes(cap_bytes), format_bytes(total_bytes)
    return f"[host] memory allows {cap}, this box has {total}: what is beyond may end the daemon"
