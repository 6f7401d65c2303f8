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


Files = dict[str, str]


def write(folder: Path, files: Files) -> None:
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(f"{text}\n")


def in_groups(root: Path, lines: str) -> None:
    write(root / "proc/self", {"cgroup": lines})


def group_v2(most: object, used: int, cached: int = 0, high: object = "max") -> Files:
    """Files of a group of version 2, with MiB in use, of which so many are files in the cache."""
    stat = f"anon 7\nactive_file {cached * MIB // 2}\ninactive_file {cached * MIB // 2}"
    current = f"{used * MIB}"
    return {
        "memory.max": f"{most}", "memory.high": f"{high}", "memory.current": current,
        "memory.stat": stat,
    }  # fmt: skip


def group_v1(most: int, used: int) -> Files:
    """Files of a group of version 1; 10 MiB of its children are files in the cache."""
    stat = f"active_file 1\ninactive_file 1\ntotal_active_file 0\ntotal_inactive_file {10 * MIB}"
    usage = {"memory.usage_in_bytes": f"{used * MIB}", "memory.stat": stat}
    return {"memory.limit_in_bytes": f"{most}", **usage}


M64, M32, ENDLESS = 64 * MIB, 32 * MIB, 2**63 - 4096
BOX, DOCKER = group_v2(M64, 20), "5:cpu,cpuacct:/docker/ab\n0::/docker/ab"
OLD = group_v1(M64, 30)
LIMITED: dict[str, tuple[str, dict[str, Files], int, int]] = {
    "a container that sees no path of the host": (DOCKER, {"": BOX}, 64, 44),
    "the tightest group above": (
        "0::/user.slice/atom.service",
        {"user.slice": group_v2(M64, 50), "user.slice/atom.service": group_v2(M32, 1)}, 32, 14,
    ),
    "files in the cache are free": ("0::/atom", {"atom": group_v2(M64, 60, 20)}, 64, 24),
    "beyond high all are slowed": ("0::/atom", {"atom": group_v2("max", 1, high=M64)}, 64, 63),
    "beyond the limit": ("0::/atom", {"atom": group_v2(M64, 65)}, 64, 0),
    "the first version, a box": ("4:memory:/box\n0::/", {"memory/box": OLD}, 64, 44),
    "in docker": (
        "12:rdma:/\n9:memory:/docker/ab\n1:name=systemd:/docker/ab", {"memory": OLD}, 64, 44
    ),
    "mounted together": ("3:cpuset,memory:/a/b", {"cpuset,memory/a/b": OLD}, 64, 44),
    "a link": ("3:cpuset,memory:/a/b", {"memory/a/b": OLD}, 64, 44),
    "nested": ("4:memory:/docker/ab/inner", {"memory/inner": OLD}, 64, 44),
    "moved": ("4:memory:/../../elsewhere", {"memory": OLD}, 64, 44),
    "top": ("4:memory:/", {"memory": OLD}, 64, 44),
    "the tightest of the first version": (
        "4:memory:/a/b\n0::/",
        {
            "memory": group_v1(ENDLESS, 9),
            "memory/a": group_v1(M32, 19),
            "memory/a/b": group_v1(M64, 1),
        },
        32, 23,
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", LIMITED)
def test_the_tightest_limit_of_memory_counts(case: str, tmp_path: Path) -> None:
    lines, groups, total, free = LIMITED[case]
    in_groups(tmp_path, lines)
    (tmp_path / TOP / "memory").mkdir(parents=True)
    for folder, files in groups.items():
        write(tmp_path / TOP / folder, files)
    assert usable_memory(tmp_path) == UsableMemory(total * MIB, free * MIB, is_limited=True)


@pytest.mark.parametrize("most", ["max", "-", ENDLESS])
def test_a_group_without_a_limit_changes_nothing(tmp_path: Path, most: object) -> None:
    in_groups(tmp_path, "0::/atom")
    write(tmp_path / TOP / "atom", group_v2(most, 1))
    seen = usable_memory(tmp_path)
    assert (seen.total_bytes, seen.is_limited) == (psutil.virtual_memory().total, False)


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
    write(tmp_path / TOP, files)
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
