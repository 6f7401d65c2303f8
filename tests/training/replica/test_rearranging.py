"""A replica goes through its device in another way from one pass to the next: no bit is another."""

import weakref
from collections.abc import Iterator
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from atom.graph.ir import Program
from atom.optim.adamw import AdamW
from atom.swap.arrangement import Arrangement
from atom.swap.device import CpuDevice
from atom.swap.engine import PassCancelled
from atom.training.replica.pass_limits import PassLimits
from atom.training.replica.replica import Replica, ReplicaSettings
from tests.training.small_replica import FIRST_VALUE, RATE, batches, program, same

NARROW = {"precision": torch.bfloat16, "gradients": torch.bfloat16}
FORMS: list[dict[str, torch.dtype]] = [{}, NARROW]
SWAPPED = Arrangement(2, offloaded=frozenset({1}), least_offloaded_bytes=0)
STAYING = Arrangement(2, resident=frozenset({0, 1}), kept=frozenset({1}))
WAIT_S = 20.0


WAYS = [(None, SWAPPED), (((0, 1), (2, 4)), STAYING), (((0, 0), (1, 3), (4, 4)), SWAPPED)]
"""Ways through the device: how the layers are cut, and how that is arranged."""


class SmallDevice(CpuDevice):
    """May have no memory for anything new, or only for some. Knows what it gave."""

    def __init__(self) -> None:
        super().__init__()
        self.room_for: float = float("inf")
        self.slots = list[weakref.ref[Tensor]]()
        self.host = dict[int, torch.dtype]()

    def slot_memory(self, elements: int, dtype: torch.dtype) -> Tensor:
        self._take_room()
        memory = super().slot_memory(elements, dtype)
        self.slots.append(weakref.ref(memory))
        return memory

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
        self.host[memory.data_ptr()] = dtype
        return memory

    def give_back_host(self, memory: Tensor) -> None:
        super().give_back_host(memory)
        self.host.pop(memory.data_ptr(), None)

    def take_again_host(self, memory: Tensor) -> None:
        super().take_again_host(memory)
        self.host[memory.data_ptr()] = memory.dtype

    def held(self) -> tuple[int, int]:
        """Slots, and arenas on the host."""
        slots = sum(slot() is not None for slot in self.slots)
        return slots, sum(dtype != torch.bool for dtype in self.host.values())


class Rig:
    """One replica; passes are numbered, and so are their samples."""

    def __init__(self, **changes: torch.dtype) -> None:
        self.device, self.done = SmallDevice(), 0
        self.settings = ReplicaSettings(
            RATE, AdamW(seed=3), clip_norm=0.5, micro_batches=2, **changes
        )
        made, settings = self._way(0)
        self.replica = Replica(made, None, settings, self.device)
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

    def train(self, passes: int) -> None:
        for _ in range(passes):
            self.replica.run_pass(batches(2, self.done))
            self.done += 1

    def step(self) -> None:
        """Begun only: it ends under whatever comes next."""
        replica = self.replica
        norm = replica.gradient_norm() / replica.sequences
        mean = replica.gradients.div_(replica.sequences)
        replica.begin_step(mean, norm, replica.round + 1)
        replica.reset_gradients()


@pytest.fixture
def rigs() -> Iterator[list[Rig]]:
    rigs = list[Rig]()
    yield rigs
    for rig in rigs:
        rig.device.close()


@pytest.mark.parametrize("changes", FORMS, ids=["float32", "bfloat16"])
def test_changed_in_the_middle_of_rounds_it_is_as_if_never_changed(
    rigs: list[Rig], changes: dict[str, torch.dtype]
) -> None:
    """Dropout and all: also under a step, and while paused."""
    rigs += [Rig(**changes), Rig(**changes)]
    changed, untouched = rigs
    for round, way in enumerate((1, 2, 0, 1)):
        for rig in rigs:
            rig.train(1)
        counted = changed.replica.gradients.clone()
        if round == 2:
            assert changed.replica.engines.preempt(WAIT_S)
        changed.rearrange(way)
        if round == 2:
            with pytest.raises(PassCancelled):
                changed.train(1)
            changed.replica.engines.resume()
        assert changed.replica.sequences == 4
        assert torch.equal(changed.replica.gradients, counted)
        for rig in rigs:
            rig.train(1)
            assert rig.replica.sequences == 8
        assert torch.equal(changed.replica.gradients, untouched.replica.gradients)
        for rig in rigs:
            rig.step()
        changed.rearrange(round % 3)
    assert same(changed.replica, untouched.replica)
    assert changed.replica.round == 4
    assert changed.replica.watch.figures() is None, "sub-models of before are nobody's"


def test_a_device_without_room_for_it_leaves_everything_as_it_was(rigs: list[Rig]) -> None:
    rigs += [Rig(), Rig()]
    changed, untouched = rigs
    for rig in rigs:
        rig.train(1)
    changed.device.room_for = 0
    for way in (1, 2):
        with pytest.raises(torch.OutOfMemoryError):
            changed.rearrange(way)
    for rig in rigs:
        rig.train(1)
        rig.step()
    assert same(changed.replica, untouched.replica)
    changed.device.room_for = float("inf")
    changed.rearrange(1)
    for rig in rigs:
        rig.train(2)
    assert torch.equal(changed.replica.gradients, untouched.replica.gradients)


@pytest.mark.parametrize("way", [0, 1])
def test_of_what_was_half_made_nothing_is_kept(rigs: list[Rig], way: int) -> None:
    """However far it came; and though whoever asked for it keeps the failure."""
    rigs.append(Rig())
    rig, room_for = rigs[0], 0
    before, failures = rig.device.held(), list[BaseException]()
    while len(failures) == room_for:
        rig.device.room_for = room_for
        try:
            rig.rearrange(way)
        except torch.OutOfMemoryError as failure:
            failures.append(failure)
            assert rig.device.held() == before, f"with room for {room_for}"
        room_for += 1
    assert len(failures) > 6


def test_fewer_micro_batches_learned_of_another_plan_are_forgotten(rigs: list[Rig]) -> None:
    rigs.append(Rig())
    replica = rigs[0].replica
    replica._limits = PassLimits(1)
    rigs[0].rearrange(1)
    assert replica.micro_batches == 2
