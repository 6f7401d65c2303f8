"""Control groups of this process (both versions), and the processors that they leave to it."""

import math
import os
from collections.abc import Iterator
from pathlib import Path, PurePosixPath

ROOT = Path("/")


def group_folders(controller: str, root: Path = ROOT) -> Iterator[tuple[Path, bool]]:
    """Yield the folder of this process's group and of each group above it, for one controller.

    In a container, /proc may name the group by its path on the host. Then only the end of the path,
    or only its top, exists here.

    Args:
        controller: name of the controller, such as "memory".
        root: folder that contains /proc and /sys.

    Yields:
        (folder, True if the folder has the files of version 1 of control groups).
    """
    for line in lines_of(root / "proc/self/cgroup"):
        controllers, _, path = line.partition(":")[2].partition(":")
        top, is_first = root / "sys/fs/cgroup", controller in controllers.split(",")
        if is_first:  # version 1 has a hierarchy for each controller, or for several together
            mounts = top / controllers, top / controller
            top = next(filter(os.path.isdir, mounts), mounts[1])
        elif controllers:
            continue
        parts = [part for part in PurePosixPath(path).parts if part not in ("/", "..")]
        ends = (top.joinpath(*parts[first:]) for first in range(len(parts)))
        folder = next(filter(os.path.isdir, ends), top)
        for each in (folder, *folder.parents):
            if not each.is_relative_to(top):
                break
            yield each, is_first


def lines_of(path: Path) -> list[str]:
    """Return the lines of a file; none if the file cannot be read."""
    try:
        return path.read_text(encoding="utf-8").splitlines()
    except (OSError, ValueError):
        return []


def numbers_in(path: Path) -> list[int]:
    """Return the whole numbers in a file, and skip other words: `max` and -1 mean no limit."""
    return [int(word) for line in lines_of(path) for word in line.split() if word.isdecimal()]


def usable_processors(root: Path = ROOT) -> int:
    """Return the number of processors that this process may keep busy, at least 1.

    It follows from the affinity, which `cpuset` and `taskset` set, and from the tightest quota of
    the group and of all groups above it (`docker run --cpus`, CPUQuota=). A fraction counts as one
    more processor, so that the whole quota can be used.

    Args:
        root: folder that contains /proc and /sys.
    """
    most = len(os.sched_getaffinity(0))
    for folder, is_first in group_folders("cpu", root):
        names = ("cpu.cfs_quota_us", "cpu.cfs_period_us") if is_first else ("cpu.max",)
        numbers = [number for name in names for number in numbers_in(folder / name)]
        if len(numbers) == 2 and all(numbers):
            most = min(most, math.ceil(numbers[0] / numbers[1]))
    return most
