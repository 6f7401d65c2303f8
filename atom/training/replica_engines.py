"""The memory that a replica trains in, and the engines that share it."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from atom.graph.ir import Program
from atom.graph.program import load
from atom.swap.device import Device
from atom.swap.device_slots import DeviceSlots, Factory
from atom.swap.engine import Engine
from atom.swap.host_store import HostStore
from atom.training.replica_settings import ReplicaSettings


@dataclass(frozen=True)
class ReplicaEngines:
    """Both engines use the same store and slots, in turn."""

    store: HostStore
    slots: DeviceSlots
    training: Engine
    evaluation: Engine
    """The training one, if there is no program for it."""

    @classmethod
    def allocate(
        cls,
        program: Program,
        evaluation: Program | None,
        settings: ReplicaSettings,
        device: Device,
    ) -> "ReplicaEngines":
        """All zeros. Raises: as `Replica` does."""
        programs = [program, *([evaluation] if evaluation else [])]
        _require_one_model(programs, settings.precision)
        store = HostStore.allocate(
            program.layout,
            settings.precision,
            device.host_memory,
            settings.state_form,
            settings.gradients,
        )
        slots = DeviceSlots.allocate(
            programs,
            device,
            settings.precision,
            settings.arrangement,
            settings.micro_batches,
            settings.gradients,
        )
        factories: list[Sequence[Factory]] = [load(each, device.torch_device) for each in programs]
        if settings.compilation is not None:
            factories[0] = settings.compilation.of(factories[0])
        engines = [
            Engine(each, made, store, slots, device)
            for each, made in zip(programs, factories, strict=True)
        ]
        return cls(store, slots, engines[0], engines[-1])


def _require_one_model(programs: Sequence[Program], precision: torch.dtype) -> None:
    for program in programs:
        if program.layout != programs[0].layout:
            raise ValueError("the programs for training and evaluation are of different models")
        if program.parameter_dtype != precision:
            raise ValueError(f"traced in {program.parameter_dtype}, to be run in {precision}")
