"""A replica gives its device back and takes it again: nothing counted is lost, no bit changed."""

import ctypes
import mmap
import threading
from collections.abc import Iterator, Sequence

import pytest
import torch
from torch import Tensor

from atom.swap.arrangement import Arrangement
from atom.swap.device import CpuDevice
from atom.swap.engine import PassCancelled
from atom.swap.schedule import Shape, training_pass
from atom.training.replica.engines import DeviceTaken
from tests.training.small_replica import MicroBatch, batches, filled, program

ARRANGEMENT = Arrangement(2, resident=frozenset({0}), offloaded=frozenset({1}))
NARROW = {"precision": torch.bfloat16, "gradients": torch.bfloat16}
WAIT_S = 20.0


class CountedDevice(CpuDevice):
    """Knows its slots, and may have no memory for them."""

    def __init__(self) -> None:
        super().__init__()
        self.slots: list[Tensor] = []
        self.taken = False

    def slot_memory(self, elements: int, dtype: torch.dtype) -> Tensor:
        self.slots.append(super().slot_memory(elements, dtype))
        return self.slots[-1]

    def take_again(self, slots: Sequence[Tensor]) -> None:
        if self.taken:
            raise torch.OutOfMemoryError("CUDA out of memory")
        super().take_again(slots)

    def resident_bytes(self) -> int:
        """Of the slots' pages, as the kernel counts them."""
        return sum(map(_resident_bytes, self.slots))


def _resident_bytes(memory: Tensor) -> int:
    size = memory.numel() * memory.element_size()
    pages = (ctypes.c_ubyte * -(-size // mmap.PAGESIZE))()
    address = ctypes.c_void_p(memory.data_ptr())
    assert ctypes.CDLL(None).mincore(address, ctypes.c_size_t(size), pages) == 0
    return sum(page & 1 for page in pages) * mmap.PAGESIZE


class Rig:
    def __init__(self, **changes: torch.dtype) -> None:
        self.device = CountedDevice()
        made = program(0.1, changes.get("precision", torch.float32))
        plan = {"arrangement": ARRANGEMENT, "micro_batches": 2}
        self.replica = filled(self.device, made, **plan, **changes)

    def train(self, passes: int = 2) -> list[float]:
        return [self.replica.run_pass(batches(2, n)).loss_sum for n in range(passes)]


@pytest.fixture
def rig() -> Iterator[Rig]:
    rig = Rig()
    yield rig
    rig.device.close()


def test_what_is_given_back_is_the_systems(rig: Rig) -> None:
    rig.train(1)
    assert rig.device.resident_bytes() >= sum(slot.nbytes for slot in rig.device.slots)
    counted = rig.replica.gradients.clone()
    assert rig.replica.engines.preempt(WAIT_S)
    assert rig.device.resident_bytes() == 0
    with pytest.raises(PassCancelled):
        rig.train(1)
    with pytest.raises(PassCancelled):
        rig.replica.evaluate(batches(1, 1))
    assert rig.device.resident_bytes() == 0
    assert rig.replica.sequences == 4
    assert torch.equal(rig.replica.gradients, counted)


@pytest.mark.parametrize("changes", [{}, NARROW], ids=["float32", "bfloat16"])
def test_a_pause_at_any_event_changes_no_bit(changes: dict[str, torch.dtype]) -> None:
    """In the first pass of a round and in the second: what is broken off is done again."""
    whole = Rig(**changes)
    losses = whole.train()
    events = len(training_pass(Shape(len(program(0.1).sub_models), 2, ARRANGEMENT)))
    rig = Rig(**changes)
    finished = 0
    for at in range(0, 2 * events, 9):
        rig.replica.engines.resume()
        rig.replica.reset_gradients()
        rig.replica._seeds.manual_seed(0)
        told = []
        for n in range(2):
            try:
                told.append(_paused_at(rig, batches(2, n), at - n * events))
            except PassCancelled:
                assert rig.replica.sequences == 4 * n, "what was counted is still there"
                assert rig.replica.engines.preempt(0)
                rig.replica.engines.resume()
                told.append(rig.replica.run_pass(batches(2, n)).loss_sum)
            else:
                finished += at >= n * events
        assert told == losses
        assert torch.equal(rig.replica.gradients, whole.replica.gradients)
    assert finished > 1, "passes too late to be broken off"
    for each in (rig, whole):
        each.device.close()


def _paused_at(rig: Rig, some: Sequence[MicroBatch], event: int) -> float:
    """The pass's loss, if it is told to pause at that event and goes on. Raises: PassCancelled."""
    asked = iter(range(10_000))
    engines = rig.replica.engines

    def should_stop() -> bool:
        if next(asked) < event or event < 0:
            return False
        engines.preempt(0)
        return rig.replica.breakable

    loss = rig.replica.run_pass(some, should_stop).loss_sum
    if event >= 0 and next(asked) > event:
        assert rig.device.resident_bytes() == 0, "as soon as the pass had ended"
    engines.resume()
    return loss


def test_whoever_wants_the_memory_back_does_not_wait_for_ever(rig: Rig) -> None:
    began, may_end = threading.Event(), threading.Event()

    def wait() -> bool:
        began.set()
        return not may_end.wait(WAIT_S)

    passing = threading.Thread(target=lambda: rig.replica.run_pass(batches(1, 1), wait))
    passing.start()
    assert began.wait(WAIT_S)
    assert not rig.replica.engines.preempt(0.01)
    may_end.set()
    passing.join()
    assert rig.device.resident_bytes() == 0


def test_memory_that_others_took_is_waited_for(rig: Rig) -> None:
    losses = rig.train(1)
    rig.replica.engines.preempt(WAIT_S)
    rig.replica.engines.resume()
    rig.replica.reset_gradients()
    rig.replica._seeds.manual_seed(0)
    rig.device.taken = True
    for _ in range(3):
        with pytest.raises(DeviceTaken):
            rig.train(1)
    assert rig.device.resident_bytes() == 0
    rig.device.taken = False
    assert rig.train(1) == losses
