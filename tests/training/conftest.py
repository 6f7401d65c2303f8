"""Devices of replicas, and rooms of peers in parts, closed when a test ends."""

from collections.abc import Callable, Iterator

import pytest
import torch

from atom.swap.device import CpuDevice
from atom.swap.state_form import StateForm
from tests.training.parts_room import Room, cut_small

NewDevice = Callable[[], CpuDevice]
NewRoom = Callable[[int, torch.dtype, StateForm], Room]


@pytest.fixture
def new_device() -> Iterator[NewDevice]:
    made: list[CpuDevice] = []

    def make() -> CpuDevice:
        made.append(CpuDevice())
        return made[-1]

    yield make
    for device in made:
        device.close()


@pytest.fixture
def device(new_device: NewDevice) -> CpuDevice:
    return new_device()


@pytest.fixture
def new_room(monkeypatch: pytest.MonkeyPatch) -> Iterator[NewRoom]:
    """Of small parts."""
    cut_small(monkeypatch)
    made: list[Room] = []

    def make(members: int, precision: torch.dtype, form: StateForm) -> Room:
        made.append(Room(members, precision, form))
        return made[-1]

    yield make
    for room in made:
        room.swarm.close()


@pytest.fixture
def room(new_room: NewRoom) -> Room:
    return new_room(3, torch.bfloat16, StateForm.SPLIT)
