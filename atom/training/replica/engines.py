"""The memory that a replica trains in, and the engines that share it."""

from collections.abc import Sequence
from dataclasses import dataclass

from atom.graph.ir import Program
from atom.graph.program import load
from atom.swap.device import Device
from atom.swap.device_slots import DeviceSlots, Factory
from atom.swap.engine import Engine
from atom.swap.host_store import HostStore
from atom.training.replica.settings import ReplicaSettings


@dataclass(frozen=True)
class ReplicaEngines:
    """Both engines use the same store and slots, in turn."""

    store: HostStore
    slots: DeviceSlots
    training: Engine
    evaluation: Engine
    """The training one, if there is no program for it."""

    @classmethod
    def over(
        cls,
        store: HostStore,
        program: Program,
        evaluation: Program | None,
        settings: ReplicaSettings,
        device: Device,
    ) -> "ReplicaEngines":
        """Of the model that the store holds. Raises: as `Replica` does."""
        programs = [program, *([evaluation] if evaluation else [])]
        _require_one_model(programs, store)
        factories: list[Sequence[Factory]] = [load(each, device.torch_device) for each in programs]
        if settings.compilation is not None:
            factories[0] = settings.compilation.of(factories[0])
        slots = DeviceSlots.allocate(
            programs,
            device,
            settings.precision,
            settings.arrangement,
            settings.micro_batches,
            settings.gradients,
        )
        engines = [
            Engine(each, made, store, slots, device)
            for each, made in zip(programs, factories, strict=True)
        ]
        return cls(store, slots, engines[0], engines[-1])

    def release(self) -> None:
        """They run no further pass."""
        for engine in {self.training, self.evaluation}:
            engine.release()


def store_for(program: Program, settings: ReplicaSettings, device: Device) -> HostStore:
    """All zeros. Raises: as `Replica` does."""
    return HostStore.allocate(
        program.layout,
        settings.precision,
        device.host_memory,
        settings.state_form,
        settings.gradients,
    )


def _require_one_model(programs: Sequence[Program], store: HostStore) -> None:
    for program in programs:
        if program.layout != store.layout:
            raise ValueError("the programs for training and evaluation are of different models")
        if program.parameter_dtype != store.precision:
            raise ValueError(f"traced in {program.parameter_dtype}, to be run in {store.precision}")
