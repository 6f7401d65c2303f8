"""Memory caps are changed while it trains: planned anew, or refused with nothing changed."""

import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from atom.base.errors import DeviceError, ShortageError
from atom.config.load import parse_peer_text
from atom.config.peer_file import PeerFile
from atom.daemon.fitting.building import MemoryCaps
from atom.swap.arrangement import Arrangement
from atom.swap.device_slots import DeviceSlots
from tests.daemon.model.kept_runs import Folder, folder_in
from tests.daemon.tiny_run import GPT3

CUT = "program/sub_models.py"


def at_once(command: Callable[[], None]) -> None:
    """A worker with nothing else to do."""
    command()


class Busy:
    """One that never comes to it, until `commands` are run."""

    def __init__(self) -> None:
        self.commands: list[Callable[[], None]] = []
        self.asked = threading.Event()

    def submit_soon(self, command: Callable[[], None]) -> None:
        self.commands.append(command)
        self.asked.set()


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Folder]:
    with folder_in(tmp_path) as folder:
        yield folder


@pytest.fixture
def arranged(monkeypatch: pytest.MonkeyPatch) -> list[Arrangement]:
    """How the model has been arranged on the device, one after the other."""
    allocate, found = DeviceSlots.allocate, list[Arrangement]()

    def told(*arguments: Any, **named: Any) -> DeviceSlots:
        slots = allocate(*arguments, **named)
        found.append(next(iter(slots.arrangements.values())))
        return slots

    monkeypatch.setattr(DeviceSlots, "allocate", told)
    return found


def allowing(device: str = "", host: str = "") -> PeerFile:
    text = f'[device]\nmemory = "{device or "auto"}"\n[host]\nmemory = "{host or "auto"}"\n'
    return parse_peer_text(text, Path(), "peer.toml")


def test_caps_are_planned_for_and_refused(
    folder: Folder, arranged: list[Arrangement], monkeypatch: pytest.MonkeyPatch
) -> None:
    member = folder.found(GPT3)
    built, cut = member.built, folder.root / "a" / CUT
    caps = MemoryCaps(built, at_once)
    assert member.initialise()
    batch = member.samples.batch(range(4))
    first = built.replica.run_pass([batch]).loss_sum
    for allowed in (allowing(device="216 kB"), allowing(), allowing("300 kB", "64 MiB")):
        caps.change(allowed)
        assert built.replica.run_pass([batch]).loss_sum == first
    assert built.replica.sequences == 16
    assert [bool(each.resident) for each in arranged] == [True, False, True, True]
    before = cut.read_text()
    with pytest.raises(DeviceError, match="device memory") as refused:
        caps.change(allowing(device="1 kB"))
    assert "leave out [device] and [host] memory" in refused.value.hint
    with pytest.raises(DeviceError, match="host memory"):
        caps.change(allowing(host="9 kB"))

    def short(*arguments: object, **named: object) -> None:
        raise MemoryError("the host cannot give 4096 bytes")

    monkeypatch.setattr(DeviceSlots, "allocate", short)
    with pytest.raises(ShortageError, match="rearranged: the host cannot give 4096 bytes"):
        caps.change(allowing())
    assert cut.read_text() == before
    assert built.replica.run_pass([batch]).loss_sum == first


def test_a_worker_that_does_not_come_to_it_changes_nothing_later(
    folder: Folder, arranged: list[Arrangement]
) -> None:
    built, cut = folder.found(GPT3).built, folder.root / "a" / CUT
    before, busy = cut.read_text(), Busy()
    with pytest.raises(DeviceError, match="cannot be broken off"):
        MemoryCaps(built, busy.submit_soon, patience_s=0.0).change(allowing(device="216 kB"))
    patient = MemoryCaps(built, busy.submit_soon)
    failures = list[DeviceError]()

    def change() -> None:
        with pytest.raises(DeviceError) as refused:
            patient.change(allowing(device="216 kB"))
        failures.append(refused.value)

    busy.asked.clear()
    thread = threading.Thread(target=change)
    thread.start()
    assert busy.asked.wait(20.0)
    patient.close()
    thread.join()
    assert len(failures) == 1
    for command in busy.commands:
        command()
    assert len(arranged) == 1
    assert cut.read_text() == before
