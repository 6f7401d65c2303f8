"""A replica gives its device back and takes it again: nothing counted is lost, no bit changed."""

import itertools
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest
import torch
from torch import Tensor

from atom.optim.adamw import AdamW
from atom.swap.arrangement import Arrangement
from atom.swap.device import CpuDevice
from atom.swap.engine import PassCancelled
from atom.swap.voided import PassVoided
from atom.training.replica.engines import DeviceTaken
from atom.training.replica.replica import Replica, ReplicaSettings
from tests.training.small_replica import FIRST_VALUE, RATE, batches, program, same

NARROW = {"precision": torch.bfloat16, "gradients": torch.bfloat16}
FORMS = pytest.mark.parametrize("changes", [{}, NARROW], ids=["float32", "bfloat16"])
SWAPPED = Arrangement(2, offloaded=frozenset({1}), least_offloaded_bytes=0)
WAIT_S = 20.0


class SmallDevice(CpuDevice):
    """Device that may have no memory left for the buffers that it released."""

    def __init__(self) -> None:
        super().__init__()
        self.room_for: float = float("inf")
        self.free = False
        """The slots were given back."""

    def give_back(self, slots: Sequence[Tensor]) -> None:
        super().give_back(slots)
        self.free = True

    def take_again(self, slots: Sequence[Tensor]) -> None:
        self.room_for -= 1
        if self.room_for < 0:
            raise torch.OutOfMemoryError("CUDA out of memory")
        super().take_again(slots)
        self.free = False


class Rig:
    """One replica; passes are numbered, and so are their samples."""

    def __init__(self, **changes: Any) -> None:
        self.device, self.done = SmallDevice(), 0
        settings = ReplicaSettings(
            RATE, AdamW(seed=3), clip_norm=0.5, micro_batches=2, arrangement=SWAPPED, **changes
        )
        made = program(0.1, settings.precision, blocks=3)
        self.replica = Replica(made, None, settings, self.device)
        self.engines = self.replica.engines
        self.replica.initialise(FIRST_VALUE)

    def train(self, should_stop: Callable[[], bool] = lambda: False) -> float:
        """The next pass; its loss."""
        self.replica.run_pass(batches(2, self.done), should_stop)
        self.done += 1
        return self.replica.loss_sum

    def step(self) -> None:
        """Begun only: it ends under whatever comes next."""
        self.replica.begin_own_step()
        self.replica.reset_gradients()


@pytest.fixture
def new_rig() -> Iterator[Callable[..., Rig]]:
    rigs = list[Rig]()

    def make(**changes: Any) -> Rig:
        rigs.append(Rig(**changes))
        return rigs[-1]

    yield make
    for rig in rigs:
        rig.device.close()


@pytest.fixture
def rig(new_rig: Callable[..., Rig]) -> Rig:
    return new_rig()


def alike(one: Rig, other: Rig) -> bool:
    counted = torch.equal(one.replica.gradient_sums(), other.replica.gradient_sums())
    return counted and same(one.replica, other.replica)


@FORMS
def test_a_pause_at_any_event_changes_no_bit(
    new_rig: Callable[..., Rig], changes: dict[str, torch.dtype]
) -> None:
    """A pause comes in the first pass of a round, during a step, and in the second pass: an
    interrupted pass is repeated, and a pass that may not be interrupted ends first."""
    whole, rig = new_rig(**changes), new_rig(**changes)
    broken_off = finished = 0
    for event in range(0, 70, 7):
        for counted in (0, 4):
            try:
                loss = rig.train(pausing(rig, event))
                finished += rig.device.free
            except PassCancelled:
                broken_off += 1
                assert rig.device.free
                assert rig.replica.sequences == counted, "what was counted is still there"
                rig.engines.resume()
                loss = rig.train()
            rig.engines.resume()
            assert loss == whole.train()
            assert alike(rig, whole)
        for each in (whole, rig):
            each.step()
    assert broken_off > 8
    assert finished > 1, "passes too late to be broken off"


def pausing(rig: Rig, event: int) -> Callable[[], bool]:
    """Asked at each event of a pass, it wants the memory back from that event on."""
    events = itertools.count()

    def should_stop() -> bool:
        if next(events) < event:
            return False
        rig.engines.preempt(0)
        return rig.replica.breakable

    return should_stop


def test_whoever_wants_the_memory_back_does_not_wait_for_ever(rig: Rig) -> None:
    began, may_end = threading.Event(), threading.Event()

    def wait() -> bool:
        began.set()
        return not may_end.wait(WAIT_S)

    passing = threading.Thread(target=rig.train, args=(wait,))
    passing.start()
    assert began.wait(WAIT_S)
    assert not rig.engines.preempt(0.01)
    may_end.set()
    passing.join()
    assert rig.device.free


def test_memory_that_others_took_is_waited_for(new_rig: Callable[..., Rig]) -> None:
    rig, untouched = new_rig(), new_rig()
    rig.engines.preempt(WAIT_S)
    for use in (rig.train, lambda: rig.replica.evaluate(batches(1, 1))):
        with pytest.raises(PassCancelled):
            use()
    rig.engines.resume()
    rig.device.room_for = 0
    for _ in range(3):
        with pytest.raises(DeviceTaken):
            rig.train()
    assert rig.device.free
    rig.device.room_for = 1
    assert rig.train() == untouched.train()
    assert alike(rig, untouched)


def test_memory_is_given_back_though_gradients_did_not_land(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The lost gradients are reported to the caller of the sums, and to the next pass."""
    rig.train()
    monkeypatch.setattr(rig.engines.training._gate, "failure", MemoryError("no room"))
    assert rig.engines.preempt(WAIT_S)
    assert rig.device.free
    rig.engines.resume()
    with pytest.raises(MemoryError, match="no room"):
        rig.replica.contribution()
    with pytest.raises(PassVoided, match="no room") as void:
        rig.train()
    assert void.value.sequences_lost == 4
    assert rig.replica.sequences == 0
