import itertools
from collections.abc import Iterator
from typing import Any

import pytest
from device_rig import NewRig, Rig


@pytest.fixture
def new_rig() -> Iterator[NewRig]:
    rigs = list[Rig]()

    def make(devices: int, **changes: Any) -> Rig:
        rigs.append(Rig(devices, **changes))
        return rigs[-1]

    yield make
    for device in itertools.chain.from_iterable(rig.devices for rig in rigs):
        device.close()
