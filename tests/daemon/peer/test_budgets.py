"""Budgets that are too small: refused with the numbers, by founder and joiner, before any memory
for weights is taken."""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from atom.base.errors import DeviceError, ShortageError
from atom.base.units import format_bytes
from atom.base.usable_memory import UsableMemory
from atom.daemon.peer import building
from atom.daemon.peer.building import require_host_memory
from atom.plan import devices
from atom.plan.footprint import HostMemory
from atom.swap.device_slots import DeviceSlots
from atom.swap.host_store import HostStore
from atom.swarm.exchange.codec import codec_named
from tests.daemon.model.kept_runs import Folder, folder_in, round_zero
from tests.daemon.tiny_run import GPT3

GIB = 2**30


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Folder]:
    with folder_in(tmp_path) as folder:
        yield folder


def needs(size: int) -> HostMemory:
    return HostMemory((("all", size),), have_bytes=1 * GIB)


def test_memory_that_others_hold_is_no_device_that_is_too_small(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A service starts again after the one, and not after the other."""
    monkeypatch.setattr(building, "usable_memory", lambda: UsableMemory(8 * GIB, 1 * GIB))
    require_host_memory(needs(1 * GIB), None)
    with pytest.raises(ShortageError, match=r"2\.1 GB .* here 1\.1 GB of 8\.6 GB are free"):
        require_host_memory(needs(2 * GIB), None)
    for need_bytes, cap_bytes in [(9 * GIB, None), (2 * GIB, 1 * GIB)]:
        with pytest.raises(DeviceError, match=r"here 1\.1 GB may be used"):
            require_host_memory(needs(need_bytes), cap_bytes)


def test_a_device_that_others_use_is_not_one_that_is_too_small(
    folder: Folder, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Here it is the host itself, of which all but the replica's own part is taken."""
    needs = 4 * 6 * folder.found(GPT3, "founder").replica.elements
    monkeypatch.setattr(devices, "LEAST_HOST_BYTES", 0)
    for total_bytes, wanted in [(8 * GIB, ShortageError), (needs + 8000, DeviceError)]:
        memory = UsableMemory(total_bytes, needs + 8000)
        for room in (building, devices):
            monkeypatch.setattr(room, "usable_memory", lambda memory=memory: memory)
        with pytest.raises(wanted, match="of device memory even alone"):
            folder.found(GPT3, f"of {total_bytes}")


@pytest.mark.parametrize(
    ("device", "host", "said"),
    [
        ("", 'memory = "100 kB"', "host memory, here 100.0 kB"),
        ('memory = "1 kB"', "", "device memory"),
    ],
)
def test_founder_and_joiner_are_refused(
    folder: Folder, device: str, host: str, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*arguments: object, **named: object) -> None:
        pytest.fail("memory was taken")

    founder = folder.found(GPT3)
    monkeypatch.setattr(HostStore, "allocate", refuse)
    monkeypatch.setattr(DeviceSlots, "allocate", refuse)
    folder.device, folder.host = device, host
    with pytest.raises(DeviceError, match=said):
        folder.enter(founder)
    with pytest.raises(DeviceError, match=said) as refused:
        folder.found(GPT3, "little")
    assert len(re.findall(r"[\d.]+ [kMG]?B|\d+ bytes", refused.value.message)) >= 2
    assert "memory" in refused.value.hint


@pytest.mark.parametrize("codec", ["float32", "int8"])
def test_the_host_budget_is_exact(folder: Folder, codec: str) -> None:
    """Weights, moments, gradients and two averages, in float32; with int8 what it takes away, and
    the averages as they travel."""
    founder = folder.found(GPT3, more=f'[swarm]\ncodec = "{codec}"')
    elements = founder.replica.elements
    averages, lost = 2 * codec_named(codec).wire_bytes(elements), int(codec == "int8")
    needs = 4 * (4 + lost) * elements + averages
    folder.host = f'memory = "{needs - 1} B"'
    with pytest.raises(DeviceError, match=re.escape(format_bytes(needs))):
        folder.enter(founder)
    folder.unlock()
    folder.host = f'memory = "{needs} B"'
    assert round_zero(folder.enter(founder)).initialise()


def test_memory_that_is_gone_when_it_is_wanted_is_named(
    folder: Folder, monkeypatch: pytest.MonkeyPatch
) -> None:
    def short(*arguments: object, **named: object) -> None:
        raise MemoryError("the host cannot give 4096 bytes")

    monkeypatch.setattr(HostStore, "allocate", short)
    with pytest.raises(ShortageError, match="cannot give 4096 bytes") as refused:
        folder.found(GPT3)
    assert "other programs" in refused.value.hint
