"""An engine over the hand-written program, ready to run; and a device that is as late as it may."""

from collections.abc import Iterator, Sequence
from typing import Any

import pytest
import torch
from hand_written_program import compile_by_hand, initial_value
from torch import Tensor

from atom.optim.adamw import AdamW
from atom.swap.device import Copy, CpuDevice, Device
from atom.swap.device_slots import DeviceSlots
from atom.swap.engine import Engine, PassCancelled
from atom.swap.host_store import StateForm
from atom.swap.schedule import Arrangement, Observer
from atom.swap.timeline import Recording
from tests.one_step import allocate_store

_OPEN: list[Device] = []


@pytest.fixture(autouse=True)
def surroundings() -> Iterator[None]:
    """Close the devices of rigs."""
    yield
    while _OPEN:
        _OPEN.pop().close()


def opened() -> Device:
    """Return a CPU device that is closed when the test ends."""
    _OPEN.append(CpuDevice())
    return _OPEN[-1]


class EngineRig:
    """Everything that an engine needs, with the program's own first values."""

    def __init__(
        self,
        cut: Sequence[Sequence[str]],
        precision: torch.dtype = torch.float32,
        device: Device | None = None,
        observer: Observer | None = None,
        gradients: torch.dtype = torch.float32,
        dropout: float = 0.1,
        gain: bool = False,
        arrangement: Arrangement | None = None,
        loss_scale: float = 1.0,
        form: StateForm = StateForm.EXACT,
        evaluation_cut: Sequence[Sequence[str]] | None = None,
    ) -> None:
        """`evaluation_cut`: of a program for evaluation, without dropout, in the same slots."""
        self.cut = cut
        self.program, self.classes = compile_by_hand(cut, dropout, gain)
        evaluation, classes = compile_by_hand(evaluation_cut or cut, 0.0, gain)
        self.device, layout = device or opened(), self.program.layout
        self.store = allocate_store(AdamW(), layout, precision, form, gradients=gradients)
        for spec in layout.specs:
            self.store.write_weights(spec.name, initial_value(spec.name, spec.shape))
        self.store.changed()
        programs = [self.program, *([evaluation] if evaluation_cut else [])]
        self.slots = DeviceSlots.allocate(
            programs, self.device, precision, arrangement, gradients=gradients
        )
        parts = (self.store, self.slots, self.device)
        self.engine = Engine(self.program, self.classes, *parts)
        self.engine.loss_scale, self.engine.observer = loss_scale, observer
        self.evaluated = Recording()
        if evaluation_cut:
            self.evaluation = Engine(evaluation, classes, *parts)
            self.evaluation.observer = self.evaluated

    def parameter(self, name: str) -> Tensor:
        """Return a view of a parameter's master weights.

        Call `store.round_master` after a change.
        """
        return self.program.layout.view(self.store.master, name)

    def parameters(self) -> dict[str, Tensor]:
        return {spec.name: self.parameter(spec.name) for spec in self.program.layout.specs}

    def gradients(self) -> dict[str, Tensor]:
        layout = self.program.layout
        return {spec.name: layout.view(self.store.gradients, spec.name) for spec in layout.specs}


def cancelled(engine: Engine, batches: Sequence[Any], events: int) -> None:
    """A pass that is stopped after so many events."""
    remaining = iter([False] * events)
    with pytest.raises(PassCancelled):
        engine.run_pass(batches, range(len(batches)), lambda: next(remaining, True))


def assert_same(one: object, other: object) -> None:
    """Tensors, bit by bit, in lists and tuples."""
    if isinstance(one, Tensor):
        assert torch.equal(one, other)
    elif isinstance(one, list | tuple):
        for mine, theirs in zip(one, other, strict=True):
            assert_same(mine, theirs)
    else:
        assert one == other


class LateDevice(CpuDevice):
    """Device that does all work as late as possible.

    It copies only when a caller waits, and first overwrites the destination with invalid data. It
    holds gradients back until they are needed. Values that have left are overwritten as well, as if
    their memory had been reused.
    """

    def __init__(self) -> None:
        super().__init__()
        self._loads_held, self._gradients_held, self._leaving = ({} for _ in range(3))

    def load(self, slot: int, copies: Sequence[Copy], *rest: Any) -> None:
        assert slot not in self._loads_held, "no job waited for the earlier load"
        for destination, _ in copies:
            destination.fill_(255 if destination.dtype == torch.uint8 else float("nan"))
        self._loads_held[slot] = (copies, *rest)

    def wait_loaded(self, slot: int) -> None:
        if slot in self._loads_held:
            super().load(slot, *self._loads_held.pop(slot))
        super().wait_loaded(slot)

    def gradients_out(self, gradient_slot: int, *sums: Any) -> None:
        assert gradient_slot not in self._gradients_held, "the last gradients are under way"
        self._gradients_held[gradient_slot] = sums

    def wait_gradients_out(self, gradient_slot: int) -> None:
        if gradient_slot in self._gradients_held:
            super().gradients_out(gradient_slot, *self._gradients_held.pop(gradient_slot))
        super().wait_gradients_out(gradient_slot)

    def values_out(self, key: int, *copies: Any) -> None:
        assert key not in self._leaving, "what left before is still under way"
        self._leaving[key] = copies

    def wait_values_out(self, key: int) -> None:
        super().values_out(key, *self._leaving.pop(key))
        super().wait_values_out(key)

    def drain(self) -> None:
        self._loads_held.clear()
        self._leaving.clear()
        for gradient_slot in list(self._gradients_held):
            self.wait_gradients_out(gradient_slot)
        super().drain()
