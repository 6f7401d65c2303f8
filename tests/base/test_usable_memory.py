"""Memory limits of containers and services, which count if they are less than the machine has."""

from pathlib import Path

import psutil
import pytest

from atom.base.usable_memory import UsableMemory, usable_memory
from atom.plan import devices

MIB = 2**20
TOP = "sys/fs/cgroup"


def write(folder: Path, **files: str) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in files.items():
        (folder / name.replace("__", ".")).write_text(text + "\n")


def group(folder: Path, most: str, used: int, **more: str) -> None:
    stat = f"anon {used}\nactive_file 0\ninactive_file 0"
    write(
        folder, **{"memory__max": most, "memory__current": f"{used}", "memory__stat": stat} | more
    )


def in_groups(root: Path, lines: str) -> None:
    write(root / "proc/self", cgroup=lines)


def test_a_container_sees_no_path_of_the_host(tmp_path: Path) -> None:
    in_groups(tmp_path, "5:cpu,cpuacct:/docker/ab\n0::/docker/ab")
    group(tmp_path / TOP, f"{64 * MIB}", 20 * MIB)
    assert usable_memory(tmp_path) == UsableMemory(64 * MIB, 44 * MIB, is_limited=True)


def test_the_tightest_group_above_counts(tmp_path: Path) -> None:
    in_groups(tmp_path, "0::/user.slice/atom.service")
    group(tmp_path / TOP / "user.slice", f"{64 * MIB}", 50 * MIB)
    group(tmp_path / TOP / "user.slice/atom.service", f"{32 * MIB}", 1 * MIB)
    assert usable_memory(tmp_path) == UsableMemory(32 * MIB, 14 * MIB, is_limited=True)


@pytest.mark.parametrize(
    ("used", "more", "free"),
    [
        (60, {"memory__stat": f"anon 7\nactive_file {10 * MIB}\ninactive_file {10 * MIB}"}, 24),
        (1, {"memory__max": "max", "memory__high": f"{64 * MIB}"}, 63),
        (65, {}, 0),
    ],
    ids=["files in the cache are free", "beyond high all are slowed to a crawl", "beyond"],
)
def test_what_a_group_leaves(tmp_path: Path, used: int, more: dict[str, str], free: int) -> None:
    in_groups(tmp_path, "0::/atom")
    group(tmp_path / TOP / "atom", f"{64 * MIB}", used * MIB, **more)
    assert usable_memory(tmp_path) == UsableMemory(64 * MIB, free * MIB, is_limited=True)


@pytest.mark.parametrize("most", ["max", "-", str(2**63 - 4096)])
def test_a_group_without_a_limit_changes_nothing(tmp_path: Path, most: str) -> None:
    in_groups(tmp_path, "0::/atom")
    group(tmp_path / TOP / "atom", most, MIB)
    seen = usable_memory(tmp_path)
    assert (seen.total_bytes, seen.is_limited) == (psutil.virtual_memory().total, False)


def test_a_plan_has_no_more_than_the_limit_leaves(monkeypatch: pytest.MonkeyPatch) -> None:
    here = UsableMemory(64 * MIB, 44 * MIB, is_limited=True)
    monkeypatch.setattr(devices, "usable_memory", lambda: here)
    assert devices.free_host_bytes(None) == 44 * MIB
    assert devices.free_host_bytes(100 * MIB) == 100 * MIB  # the owner's own word
