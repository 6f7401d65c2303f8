"""Windows' Subsystem for Linux is recognised, and what is wrong is mended where the cause lies."""

import pytest

from atom.daemon.doctor.finding import Finding, Level
from atom.daemon.doctor.wsl import in_wsl, wsl_of

WSL2 = "Linux 5.15.153.1-microsoft-standard-WSL2"
MEMORY = Finding("Host memory", Level.OK, "7 GiB of 8 GiB free")


@pytest.mark.parametrize(
    ("system", "version"),
    [
        ("Linux 6.8.0-45-generic", None),
        ("Linux 6.1.0-25-cloud-amd64", None),
        (WSL2, 2),
        ("Linux 4.19.84-microsoft-standard", 2),
        ("Linux 6.6.36.3-microsoft-standard-WSL2+", 2),
        ("Linux 4.4.0-22621-Microsoft", 1),
    ],
)
def test_by_what_the_kernel_calls_itself(system: str, version: int | None) -> None:
    assert wsl_of(system) == version


def test_elsewhere_nothing_changes() -> None:
    clock = Finding("Clock", Level.WARNING, "nothing keeps it right", "timedatectl set-ntp true")
    assert in_wsl([MEMORY, clock], "Linux 6.8") == [MEMORY, clock]


def test_its_line_stands_below_the_memory() -> None:
    disk = Finding("Disk", Level.OK, "9 GiB free in /mnt/c")
    before, line, after = in_wsl([MEMORY, disk], WSL2)
    assert (before, after) == (MEMORY, disk)
    assert line.level is Level.OK
    assert ".wslconfig" in line.said
    _, old, _ = in_wsl([MEMORY, disk], "Linux 4.4.0-22621-Microsoft")
    assert (old.level, old.fix) == (Level.WARNING, "in PowerShell: wsl --set-version NAME 2")


@pytest.mark.parametrize(
    ("topic", "said", "fix"),
    [
        ("GPU", "none: no driver", "driver in Windows, none in here; as elsewhere"),
        ("GPU", "A card: other programs use the rest", "Task Manager"),
        ("Clock", "nothing keeps it right", "hwclock --hctosys"),
        ("From outside", "no peer could connect", "networkingMode=mirrored"),
        ("Largest model", "none: takes 9 GiB of host memory", "as elsewhere; or more memory="),
        ("This run", "does not fit: takes 9 GiB of host memory", "as elsewhere; or more memory="),
        ("Disk", "9 GiB free in /mnt/c/atom, writes 20 MB/s: slow", "not under /mnt"),
    ],
)
@pytest.mark.parametrize("level", [Level.WARNING, Level.FAILURE])
def test_what_is_mended_in_windows(level: Level, topic: str, said: str, fix: str) -> None:
    *_, mended = in_wsl([MEMORY, Finding(topic, level, said, "as elsewhere")], WSL2)
    assert (mended.topic, mended.level, mended.said) == (topic, level, said)
    assert fix in mended.fix


@pytest.mark.parametrize(
    ("topic", "said"),
    [
        ("This run", "does not fit: words: needs 9 GiB of device memory"),
        ("Disk", "1 GiB free in /home/me"),
        ("Optimizer", "slow"),
    ],
)
def test_what_has_nothing_to_do_with_windows(topic: str, said: str) -> None:
    finding = Finding(topic, Level.WARNING, said, "as elsewhere")
    assert in_wsl([MEMORY, finding], WSL2)[-1] == finding
