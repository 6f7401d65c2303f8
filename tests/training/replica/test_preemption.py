"""A replica gives its device back and takes it again, or goes through it in another way: nothing
counted is lost, no bit changed."""

import itertools
import threading
import weakref
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from atom.graph.ir import Program
from atom.optim.adamw import AdamW
from atom.swap.arrangement import Arrangement
from atom.swap.device import CpuDevice
from atom.swap.engine import PassCancelled
from atom.swap.voided import PassVoided
from atom.training.replica import engines
from atom.training.replica.engines import DeviceTaken
from atom.training.replica.replica import Replica, ReplicaSettings
from tests.training.small_replica import (
    FIRST_VALUE,
    RATE,
    batches,
    program,
    same,
)

NARROW = {"precision": torch.bfloat16, "gradients": torch.bfloat16}
FORMS = pytest.mark.parametrize("changes", [{}, NARROW], ids=["float32", "bfloat16"])
SWAPPED = Arrangement(2, offloaded=frozenset({1}), least_offloaded_bytes=0)
STAYING = Arrangement(2, resident=frozenset({0, 1}), kept=frozenset({1}))
WAYS = [(None, SWAPPED), (((0, 1), (2, 4)), STAYING), (((0, 0), (1, 3), (4, 4)), SWAPPED)]
"""Ways through the device: how the layers are cut, and how that is arranged."""
WAIT_S = 20.0


class SmallDevice(CpuDevice):
    """May have no memory for anything new, or only for some. Knows what it gave."""

    def __init__(self) -> None:
        super().__init__()
        self.room_for: float = float("inf")
        self.free = False
        """The slots were given back."""
        self._slots = list[weakref.ref[Tensor]]()
        self._host = dict[int, torch.dtype]()

    def slot_memory(self, elements: int, dtype: torch.dtype) -> Tensor:
        self._take_room()
        memory = super().slot_memory(elements, dtype)
        self._slots.append(weakref.ref(memory))
        self.free = False
        return memory

    def give_back(self, slots: Sequence[Tensor]) -> None:
        super().give_back(slots)
        self.free = True

    def take_again(self, slots: Sequence[Tensor]) -> None:
        self._take_room()
        super().take_again(slots)
        self.free = False

    def reserve_gradients(
        self, slots: int, elements: int, dtype: torch.dtype = torch.float32
    ) -> None:
        self._take_room()
        super().reserve_gradients(slots, elements, dtype)

    def _take_room(self) -> None:
        self.room_for -= 1
        if self.room_for < 0:
            raise torch.OutOfMemoryError("CUDA out of memory")

    def host_memory(self, elements: int, dtype: torch.dtype) -> Tensor:
        memory = super().host_memory(elements, dtype)
        self._host[memory.data_ptr()] = dtype
        return memory

    def give_back_host(self, memory: Tensor) -> None:
        super().give_back_host(memory)
        self._host.pop(memory.data_ptr(), None)

    def take_again_host(self, memory: Tensor) -> None:
        super().take_again_host(memory)
        self._host[memory.data_ptr()] = memory.dtype

    def held(self) -> tuple[int, int]:
        """Slots, and arenas on the host."""
        slots = sum(slot() is not None for slot in self._slots)
        return slots, sum(dtype != torch.bool for dtype in self._host.values())


class Rig:
    """One replica; passes are numbered, and so are their samples."""

    def __init__(self, **changes: Any) -> None:
        self.device, self.done = SmallDevice(), 0
        self.settings = ReplicaSettings(
            RATE, AdamW(seed=3), clip_norm=0.5, micro_batches=2, **changes
        )
        made, settings = self._way(0)
        self.replica = Replica(made, None, settings, self.device)
        self.engines = self.replica.engines
        self.replica.initialise(FIRST_VALUE)

    def _way(self, way: int) -> tuple[Program, ReplicaSettings]:
        cut, arrangement = WAYS[way]
        if self.settings.gradients != torch.float32:
            cut = None  # noise differs from sub-model to sub-model
        settings = replace(self.settings, arrangement=arrangement)
        return program(0.1, settings.precision, cut, blocks=3), settings

    def rearrange(self, way: int) -> None:
        made, settings = self._way(way)
        self.replica.rearrange(made, None, settings)

    def train(self, should_stop: Callable[[], bool] = lambda: False) -> float:
        """The next pass; its loss."""
        result = self.replica.run_pass(batches(2, self.done), should_stop)
        self.done += 1
        return result.loss_sum

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


# --- given back and taken again -----------------------------------------------------------------


@FORMS
def test_a_pause_at_any_event_changes_no_bit(
    new_rig: Callable[..., Rig], changes: dict[str, torch.dtype]
) -> None:
    """In the first pass of a round and in the second: what is broken off is done again, what may
    not be broken off ends first."""
    whole, rig = new_rig(**changes), new_rig(**changes)
    broken_off = finished = 0
    for event in range(0, 70, 7):
        for each in (whole, rig):
            each.replica.reset_gradients()
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
            assert torch.equal(rig.replica.gradient_sums(), whole.replica.gradient_sums())
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


# --- in another way -----------------------------------------------------------------------------


@FORMS
def test_changed_in_the_middle_of_rounds_it_is_as_if_never_changed(
    new_rig: Callable[..., Rig], changes: dict[str, torch.dtype]
) -> None:
    """Dropout and all: also under a step, and while paused."""
    changed, untouched = new_rig(**changes), new_rig(**changes)
    on_host = {0: changed.device.held()[1]}
    for round, way in enumerate((1, 2, 0, 1)):
        changed.train()
        if round == 2:
            assert changed.engines.preempt(WAIT_S)
        changed.rearrange(way)
        arenas = changed.device.held()[1]
        assert changes or on_host.setdefault(way, arenas) == arenas
        if round == 2:
            assert changed.device.free
            with pytest.raises(PassCancelled):
                changed.train()
            changed.engines.resume()
        changed.train()
        for _ in range(2):
            untouched.train()
        assert torch.equal(changed.replica.gradient_sums(), untouched.replica.gradient_sums())
        for rig in (changed, untouched):
            rig.step()
        changed.rearrange(round % 3)
    assert alike(changed, untouched)
    assert changed.replica.round == 4


@pytest.mark.parametrize("way", [0, 1])
def test_without_room_for_it_everything_is_as_before_and_of_what_was_half_made_nothing_is_kept(
    new_rig: Callable[..., Rig], way: int
) -> None:
    """However far it came; and though whoever asked for it keeps the failure."""
    rig, untouched = new_rig(), new_rig()
    for each in (rig, untouched):
        each.train()
    before, failures, room_for = rig.device.held(), list[BaseException](), 0
    while len(failures) == room_for:
        rig.device.room_for = room_for
        try:
            rig.rearrange(way)
        except torch.OutOfMemoryError as failure:
            failures.append(failure)
            assert rig.device.held() == before, f"with room for {room_for}"
            rig.device.room_for = float("inf")
            for each in (rig, untouched):
                each.train()
            assert alike(rig, untouched)
        room_for += 1
    assert len(failures) > 6


def test_constants_without_room_come_before_anything_is_given_up(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Afterwards the device would expect the gradients of what is not there."""
    reserved = list[object]()

    def full(*_: object) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory")

    with monkeypatch.context() as patch:
        patch.setattr(engines, "load", full)
        patch.setattr(rig.device, "reserve_gradients", lambda *each: reserved.append(each))
        with pytest.raises(torch.OutOfMemoryError):
            rig.rearrange(1)
    assert not reserved
    rig.train()


def test_fewer_micro_batches_learned_of_another_plan_are_forgotten(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(seed: int) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory")

    with monkeypatch.context() as patch:
        patch.setattr(rig.device, "seed", full)
        with pytest.raises(PassVoided):
            rig.train()
    assert rig.replica.micro_batches == 1
    rig.rearrange(1)
    assert rig.replica.micro_batches == 2
