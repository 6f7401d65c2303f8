"""How one model goes through one device: engines and slots. It may be changed.

What is counted and what is trained is on the host, in the store, and stays as it is.
"""

from atom.graph.ir import Program
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
        self.hold = DeviceHold(device, self.engines.slots)

    def rearrange(
        self, program: Program, evaluation: Program | None, settings: ReplicaSettings
    ) -> None:
        """The same model in another way, from the next pass on. No pass and no step is under way.

        Raises: as `Replica` does; then everything is as before.
        """
        before = self.engines

        def make() -> DeviceSlots:
            # From then on the device expects the gradients of these.
            self.engines = ReplicaEngines.over(
                self.store, program, evaluation, settings, self._device
            )
            return self.engines.slots

        self.hold.exchange(make)
        before.release()
