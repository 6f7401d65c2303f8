"""How one model goes through one device: engines and slots. It may be changed.

What is counted and what is trained is on the host, in the store, and stays as it is.
"""

from collections.abc import Sequence

from atom.graph.ir import Program
from atom.graph.program import load
from atom.optim.optimizer import optimizer_state
from atom.swap.device import Device
from atom.swap.device_slots import DeviceSlots, Factory
from atom.swap.engine import Engine
from atom.swap.host_store import HostStore
from atom.training.replica.device_hold import DeviceHold
from atom.training.replica.settings import ReplicaSettings


class ReplicaEngines:
    """Both engines use the same store and slots, in turn. On the replica's thread."""

    training: Engine
    evaluation: Engine
    """The training one, if there is no program for it."""

    def __init__(
        self,
        program: Program,
        evaluation: Program | None,
        settings: ReplicaSettings,
        device: Device,
    ) -> None:
        """Allocates everything, the host's store too. Raises: as `Replica` does."""
        self._device = device
        self.store = HostStore.allocate(
            program.layout,
            settings.precision,
            device.host_memory,
            settings.state_form,
            settings.gradients,
            optimizer_state(settings.optimizer, program.layout, settings.state_form),
        )
        self.hold = DeviceHold(device, self._make(program, evaluation, settings))

    def rearrange(
        self, program: Program, evaluation: Program | None, settings: ReplicaSettings
    ) -> None:
        """The same model in another way, from the next pass on. No pass and no step is under way.

        Raises: as `Replica` does; then everything is as before.
        """
        before = {self.training, self.evaluation}
        self.hold.exchange(lambda: self._make(program, evaluation, settings))
        for engine in before:
            engine.release()

    def _make(
        self, program: Program, evaluation: Program | None, settings: ReplicaSettings
    ) -> DeviceSlots:
        programs = [program, *([evaluation] if evaluation else [])]
        _require_one_model(programs, self.store)
        factories: list[Sequence[Factory]] = [
            load(each, self._device.torch_device) for each in programs
        ]
        if settings.compilation is not None:
            factories[0] = settings.compilation.of(factories[0])
        slots = DeviceSlots.allocate(
            programs,
            self._device,
            settings.precision,
            settings.arrangement,
            settings.micro_batches,
            settings.gradients,
        )
        # From here on the device expects the gradients of these.
        engines = [
            Engine(each, made, self.store, slots, self._device)
            for each, made in zip(programs, factories, strict=True)
        ]
        self.training, self.evaluation = engines[0], engines[-1]
        return slots


def _require_one_model(programs: Sequence[Program], store: HostStore) -> None:
    for program in programs:
        if program.layout != store.layout:
            raise ValueError("the programs for training and evaluation are of different models")
        if program.parameter_dtype != store.precision:
            raise ValueError(f"traced in {program.parameter_dtype}, to be run in {store.precision}")
