"""Devices of replicas, closed when a test ends."""

from collections.abc import Callable, Iterator

import pytest

from atom.swap.device import CpuDevice

NewDevice = Callable[[], CpuDevice]


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
