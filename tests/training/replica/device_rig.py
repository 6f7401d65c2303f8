"""Replicas on several devices that can be made to fail, and what the same training gives on one."""

import threading
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from atom.graph.ir import Program
from atom.graph.layers import layer_ends, layers_of
from atom.graph.program import build_program
from atom.graph.trace import trace
from atom.models.gpt3 import GPT3
from atom.swap.device import CpuDevice
from atom.swap.host_sums import Gate, HostSum
from atom.swap.schedule import Arrangement
from atom.training.replica.replica import Replica, ReplicaSettings
from tests.manual_clock import ManualClock
from tests.training.small_replica import FIRST_VALUE, RATE, batches, config, program, same

HALF = {"precision": torch.bfloat16}
NARROW = {**HALF, "gradients": torch.bfloat16}
OFFLOADED = Arrangement(2, offloaded=frozenset({1}), least_offloaded_bytes=0)
FORMS: dict[str, dict[str, Any]] = {
    "float32": {},
    "bfloat16": HALF,
    "gradients-too": NARROW,
    "offloaded": {"arrangement": OFFLOADED},
    "resident": {"arrangement": Arrangement(3, frozenset({2}))},
}
STAY = {"resident": frozenset({1, 2}), "kept": frozenset({1})}


def together(group: int, **stay: Any) -> dict[str, Any]:
    """Return the settings of devices that run each pass in groups of this size."""
    return {} if group == 1 else {"arrangement": Arrangement(2, devices=group, **stay)}


WAIT_S = 20.0


class Moody(CpuDevice):
    """Fails, or computes nonsense, at a move of its choice: a load, or gradients on their way."""

    def __init__(self, is_late: bool) -> None:
        """`is_late`: a pass ends before its last gradients have landed."""
        super().__init__()
        self.moves = 0
        self.fails_at: float = float("inf")
        """After so many moves; at all of them until it is set again."""
        self.failure: Exception = torch.OutOfMemoryError("CUDA out of memory")
        self.poisons = float("inf")
        """The gradients of this move."""
        self.has_slots = True
        self.may_move = threading.Event()
        self.may_move.set()
        self._is_late = is_late

    def load(self, *arguments: Any) -> None:
        if self._moves():
            raise self.failure
        super().load(*arguments)

    def gradients_out(
        self, gradient_slot: int, sums: Sequence[HostSum], gate: Gate, *reports: Any
    ) -> None:
        def fail() -> None:
            with gate.adding():
                raise self.failure

        if self._moves():
            self._gradients.submit(gradient_slot, fail)
            return
        if self.moves == self.poisons:
            sums[0].source[0] = float("nan")
        super().gradients_out(gradient_slot, sums, gate, *reports)

    def _moves(self) -> bool:
        assert self.may_move.wait(WAIT_S)
        self.moves += 1
        return self.moves > self.fails_at

    def settle(self) -> None:
        if not self._is_late:
            super().settle()

    def give_back(self, slots: Sequence[Tensor]) -> None:
        super().give_back(slots)
        self.has_slots = self.has_slots and not slots

    def take_again(self, slots: Sequence[Tensor]) -> None:
        if self.moves >= self.fails_at:
            raise self.failure
        super().take_again(slots)
        self.has_slots = True


def head_apart() -> Program:
    """Return a program in bfloat16 whose last sub-model has only the tied weight."""
    graph = trace(GPT3(config(0.1, blocks=3), dtype=torch.bfloat16), batches(1, 0)[0])
    *ends, last = layer_ends(layers_of(graph))
    made = build_program(graph, [*ends, ends[-1] + 1, last])
    assert [len(part.parameters) for part in made.sub_models[-2:]] == [2, 1]
    return made


class Rig:
    def __init__(
        self, devices: int, is_late: bool = True, head_is_apart: bool = False, **changes: Any
    ) -> None:
        self.devices = [Moody(is_late) for _ in range(devices)]
        self.is_alone = devices == changes.get("arrangement", Arrangement()).devices
        """One device, or one group of them: a call is a pass there."""
        self.clock, self.told = ManualClock(), list[str]()
        settings = ReplicaSettings(rate=RATE, clip_norm=0.5, micro_batches=2, **changes)
        made = head_apart() if head_is_apart else program(0.1, settings.precision, blocks=3)
        first, *beside = self.devices
        self.replica = Replica(
            made,
            None,
            settings,
            first,
            self.clock,
            extra_devices=beside,
            on_message=self.told.append,
        )
        self.replica.initialise(FIRST_VALUE)
        self.done = 0

    @property
    def left_out(self) -> dict[str, str]:
        return {name: why for name, why in self.replica.engines.devices.items() if why}

    def train(self, count: int, should_stop: Callable[[], bool] = lambda: False) -> float:
        """A call of so many micro-batches; the loss of all since the last step."""
        calls = in_passes(count, self.done) if self.is_alone else [batches(count, self.done)]
        sequences = sum(self.replica.run_pass(call, should_stop) for call in calls)
        assert sequences == 2 * count
        self.done += 1
        return self.replica.loss_sum

    def step(self) -> None:
        """Begun only: it ends under whatever comes next."""
        self.replica.begin_own_step()
        self.replica.reset_gradients()


NewRig = Callable[..., Rig]


def alike(one: Rig, other: Rig) -> bool:
    sums = torch.equal(one.replica.gradient_sums(), other.replica.gradient_sums())
    return sums and same(one.replica, other.replica)


def in_passes(count: int, seed: int) -> list[Any]:
    whole = batches(count, seed)
    return [whole[start : start + 2] for start in range(0, count, 2)]


def twin(new_rig: NewRig, counts: Sequence[int], **changes: Any) -> Rig:
    """One device that has trained the same since the beginning."""
    one = new_rig(1, **changes)
    for seed, count in enumerate(counts):
        for some in in_passes(count, seed):
            one.replica.run_pass(some)
    return one
