"""How one model goes through one device: engines, slots, a share of the step. It may be changed.

What is counted and what is trained is on the host, in the store, and stays as it is.
"""

from atom.graph.ir import Program
from atom.optim.conveyor import Conveyor
from atom.optim.device_share import DeviceShare
from atom.optim.open_share import open_share
from atom.swap.device import Device
from atom.swap.device_slots import DeviceSlots
from atom.training.replica.device_hold import DeviceHold
from atom.training.replica.engines import ReplicaEngines, store_for
from atom.training.replica.settings import ReplicaSettings


class DeviceSide:
    """Of one replica, on its thread."""

    def __init__(
        self,
        program: Program,
        evaluation: Program | None,
        settings: ReplicaSettings,
        device: Device,
    ) -> None:
        """Allocates everything, the host's store too. Raises: as `Replica` does."""
        self._device = device
        self.store = store_for(program, settings, device)
        self.engines = ReplicaEngines.over(self.store, program, evaluation, settings, device)
        self.share = self._open_share(settings)
        self._updated_before = 0
        self.hold = DeviceHold(device, self.engines.slots, self._conveyor)

    @property
    def updated_elements(self) -> int:
        """By the device, over all steps."""
        now = 0 if self._conveyor is None else self._conveyor.updated_elements
        return self._updated_before + now

    def rearrange(
        self, program: Program, evaluation: Program | None, settings: ReplicaSettings
    ) -> None:
        """The same model in another way, from the next pass on. No pass and no step is under way.

        Raises: as `Replica` does; then everything is as before.
        """
        before, updated = self.engines, self.updated_elements

        def make() -> tuple[DeviceSlots, Conveyor | None]:
            share = self._open_share(settings)
            # Last: from then on the device expects the gradients of these.
            engines = ReplicaEngines.over(self.store, program, evaluation, settings, self._device)
            self.engines, self.share = engines, share
            return engines.slots, self._conveyor

        self.hold.exchange(make)
        self._updated_before = updated
        before.release()

    @property
    def _conveyor(self) -> Conveyor | None:
        return None if self.share is None else self.share.conveyor

    def _open_share(self, settings: ReplicaSettings) -> DeviceShare | None:
        wanted = settings.step_share
        if wanted is None:
            return None
        return open_share(self._device, self.store, settings.adamw, wanted)
