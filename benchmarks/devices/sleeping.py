"""Atom's replica on devices whose computing and links sleep; also for the papers' rows.

A device of this kind is the CPU twin: all work of the host is real.
"""

import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch

from atom.graph.ir import Program
from atom.graph.program import build_program
from atom.graph.trace import trace
from atom.models.gpt3 import GPT3, initial_value
from atom.optim.rate import RateSettings
from atom.swap.device import Copies, CpuDevice, Device, RandomState, Ready, Report, at_once
from atom.swap.host_sums import HostSum
from atom.swap.schedule import Arrangement
from atom.training.replica.replica import Replica, ReplicaSettings
from benchmarks.devices.torch_sides import Work
from benchmarks.shared.device_memory import Allocated, CountingDevice
from benchmarks.swap.setup import LEARNING_RATE, SEED

MOVES = 100
"""First number of moves on the link before gradients are added, above all gradient slots."""


class _Outside(RandomState):
    """Random state that is read outside computing, so that nothing sleeps for it."""


class SleepingDevice(CpuDevice):
    """CPU twin whose computing and copies sleep. Nothing random may be computed on it."""

    def __init__(self, element_s: float, bytes_per_s: float) -> None:
        """Make a device.

        Args:
            element_s: seconds of a forward per parameter; a backward takes twice as long.
            bytes_per_s: rate of the link, each way.
        """
        super().__init__()
        self._element_s, self._bytes_per_s = element_s, bytes_per_s
        self._elements, self._forward_s = dict[int, int](), 0.0
        """Parameters last loaded into each slot; seconds of the current sub-model's forward."""
        self._computes, self.due_s, self.computed_s = False, 0.0, 0.0

    def random_state(self) -> RandomState:
        state = super().random_state()
        return state if self._computes else _Outside(*state)

    @contextmanager
    def drawing(self, state: RandomState | None = None) -> Iterator[None]:
        began, self._computes = time.perf_counter(), not isinstance(state, _Outside)
        yield
        takes_s = self._forward_s if state is not None else 2 * self._forward_s
        if self._computes:
            time.sleep(max(began + takes_s - time.perf_counter(), 0.0))  # stands for computing
            self.due_s += takes_s
            self.computed_s += time.perf_counter() - began
        self._computes = False

    def load(self, slot: int, copies: Copies, report: Report, ready: Ready = at_once) -> None:
        self._elements[slot] = sum(source.numel() for _, source in copies)

        def arrive() -> None:
            ready()
            self._move(source for _, source in copies)

        super().load(slot, copies, report, arrive)

    def wait_loaded(self, slot: int) -> None:
        super().wait_loaded(slot)
        self._forward_s = self._element_s * self._elements[slot]

    def gradients_out(self, gradient_slot: int, sums: Sequence[HostSum], *rest: Any) -> None:
        way = partial(self._move, [part.source for part in sums])
        self._gradients.submit(MOVES + gradient_slot, way)
        super().gradients_out(gradient_slot, sums, *rest)

    def _move(self, tensors: Iterable[torch.Tensor]) -> None:
        moved_bytes = sum(tensor.nbytes for tensor in tensors)
        time.sleep(moved_bytes / self._bytes_per_s)  # stands for the link


class LookingDevice(CountingDevice):
    """CPU twin that looks at the allocated memory after each computation."""

    allocated = Allocated()

    @contextmanager
    def drawing(self, state: RandomState | None = None) -> Iterator[None]:
        yield
        self.allocated.look()


def made(
    work: Work, devices: Sequence[Device], inter: int, micro_batches: int
) -> tuple[Program, Replica]:
    """Return a program and its replica.

    Args:
        work: model and micro-batches.
        devices: of the replica.
        inter: number of devices that run a pass together.
        micro_batches: of a pass.
    """
    example = dict.fromkeys(("tokens", "targets"), work.tokens()[0])
    program = build_program(trace(GPT3(work.config), example))
    settings = ReplicaSettings(
        rate=RateSettings(LEARNING_RATE),
        arrangement=Arrangement(devices=inter),
        micro_batches=micro_batches,
    )
    replica = Replica(program, None, settings, devices[0], extra_devices=devices[1:])
    replica.initialise(lambda name, shape: initial_value(work.config, name, shape, SEED))
    return program, replica


@contextmanager
def closed(devices: Sequence[Device]) -> Iterator[Sequence[Device]]:
    """Close the devices at the end of the context."""
    try:
        yield devices
    finally:
        for device in devices:
            device.close()


def batches_of(work: Work) -> list[dict[str, torch.Tensor]]:
    """Return the micro-batches of a step."""
    return [{"tokens": each, "targets": each} for each in work.tokens()]


def train(replica: Replica, batches: Sequence[dict[str, torch.Tensor]]) -> float:
    """Take a step; return the mean loss."""
    replica.reset_gradients()
    while batches:
        some, batches = batches[: replica.micro_batches], batches[replica.micro_batches :]
        replica.run_pass(some, last=not batches)
    loss = replica.loss_sum / replica.sequences
    replica.begin_own_step()
    return loss
