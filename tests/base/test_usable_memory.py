"""Memory limits of containers and services, which count if they are less than the machine has."""

import os
from pathlib import Path

import psutil
import pytest
import torch

from atom.base.control_groups import usable_processors
from atom.base.usable_memory import UsableMemory, usable_memory
from atom.config.peer_file import Device
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


def first_version(folder: Path, most: int, used: int, cached: int = 0) -> None:
    stat = f"active_file 1\ninactive_file 1\ntotal_active_file 0\ntotal_inactive_file {cached}"
    write(
        folder, memory__limit_in_bytes=f"{most}", memory__usage_in_bytes=f"{used}",
        memory__stat=stat,
    )  # fmt: skip


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


@pytest.mark.parametrize(
    ("lines", "folder"),
    [
        ("4:memory:/box\n0::/", "memory/box"),
        ("12:rdma:/\n9:memory:/docker/ab\n1:name=systemd:/docker/ab", "memory"),
        ("3:cpuset,memory:/a/b", "cpuset,memory/a/b"),
        ("3:cpuset,memory:/a/b", "memory/a/b"),
        ("4:memory:/docker/ab/inner", "memory/inner"),
        ("4:memory:/../../elsewhere", "memory"),
        ("4:memory:/", "memory"),
    ],
    ids=["a box", "in docker", "mounted together", "a link", "nested", "moved", "top"],
)
def test_limits_of_the_first_version_count(lines: str, folder: str, tmp_path: Path) -> None:
    in_groups(tmp_path, lines)
    (tmp_path / TOP / "memory").mkdir(parents=True)
    first_version(tmp_path / TOP / folder, 64 * MIB, 30 * MIB, cached=10 * MIB)
    assert usable_memory(tmp_path) == UsableMemory(64 * MIB, 44 * MIB, is_limited=True)


def test_the_tightest_group_of_the_first_version_counts(tmp_path: Path) -> None:
    in_groups(tmp_path, "4:memory:/a/b\n0::/")
    first_version(tmp_path / TOP / "memory", 2**63 - 4096, 9 * MIB)
    first_version(tmp_path / TOP / "memory/a", 32 * MIB, 9 * MIB)
    first_version(tmp_path / TOP / "memory/a/b", 64 * MIB, MIB)
    assert usable_memory(tmp_path) == UsableMemory(32 * MIB, 23 * MIB, is_limited=True)


@pytest.mark.parametrize(
    ("lines", "files", "processors"),
    [
        ("0::/box", {"box/cpu.max": "200000 100000"}, 2),
        ("0::/box", {"box/cpu.max": "150000 100000"}, 2),
        ("0::/box", {"box/cpu.max": "10000 100000"}, 1),
        ("0::/box", {"box/cpu.max": "max 100000"}, 8),
        ("0::/a/b", {"a/cpu.max": "300000 100000", "a/b/cpu.max": "500000 100000"}, 3),
        ("0::/", {"cpu.max": "400000 100000"}, 4),
        ("0::/host/path", {"cpu.max": "400000 100000"}, 4),
        ("0::/box", {"box/cpu.max": "9900000 100000"}, 8),
        ("0::/box", {"box/cpu.max": "nonsense"}, 8),
        ("2:cpu,cpuacct:/x", {"cpu,cpuacct/x/cpu.cfs_quota_us": "250000",
                              "cpu,cpuacct/x/cpu.cfs_period_us": "50000"}, 5),
        ("2:cpu:/x", {"cpu/cpu.cfs_quota_us": "100000", "cpu/cpu.cfs_period_us": "100000"}, 1),
        ("2:cpu:/x", {"cpu/x/cpu.cfs_quota_us": "-1", "cpu/x/cpu.cfs_period_us": "100000"}, 8),
        ("2:cpuset:/x", {"cpuset/x/cpu.cfs_quota_us": "1", "cpuset/x/cpu.cfs_period_us": "1"}, 8),
        ("", {}, 8),
    ],
)  # fmt: skip
def test_the_tightest_quota_of_processors_counts(
    lines: str, files: dict[str, str], processors: int,
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    monkeypatch.setattr(os, "sched_getaffinity", lambda _process: set(range(8)))
    in_groups(tmp_path, lines)
    for name, text in files.items():
        path = tmp_path / TOP / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text + "\n")
    assert usable_processors(tmp_path) == processors


def test_a_machine_without_groups_is_used_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _process: {3})
    assert usable_processors(tmp_path) == 1, "the affinity counts by itself"
    assert not usable_memory(tmp_path).is_limited
    in_groups(tmp_path, "4:memory:/box\n2:cpu:/box")  # and nothing is mounted at /sys/fs/cgroup
    assert not usable_memory(tmp_path).is_limited


def test_a_quota_bounds_the_threads_unless_the_owner_names_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    before = torch.get_num_threads()
    torch.set_num_threads(4)
    try:
        monkeypatch.setattr(devices, "usable_processors", lambda: 3)
        devices.set_arithmetic(Device())
        assert torch.get_num_threads() == 3
        devices.set_arithmetic(Device(cpu_threads=5))
        assert torch.get_num_threads() == 5
    finally:
        torch.set_num_threads(before)


def test_a_plan_has_no_more_than_the_limit_leaves(monkeypatch: pytest.MonkeyPatch) -> None:
    here = UsableMemory(64 * MIB, 44 * MIB, is_limited=True)
    monkeypatch.setattr(devices, "usable_memory", lambda: here)
    assert devices.free_host_bytes(None) == 44 * MIB
    assert devices.free_host_bytes(100 * MIB) == 100 * MIB  # the owner's own word
