"""Real small replicas that meet bad numbers, float16's limits and full memory."""

import math
from collections.abc import Iterator
from typing import Any

import pytest
import torch

from atom.base.errors import DeviceError
from atom.swap.device import CpuDevice, RandomState
from atom.swap.voided import Cause, PassVoided
from atom.training.replica.replica import Replica
from tests.training.small_replica import SEQUENCES, MicroBatch, apply, batches, filled, program


class ScriptedDevice(CpuDevice):
    """Runs out of memory where the script says."""

    def __init__(self) -> None:
        super().__init__()
        self.sums_that_fail: set[int] = set()
        """The n-th gradients to leave, counted from 1."""
        self.micro_batches_that_fit = math.inf
        self._sums = 0
        self._seeds = 0

    def seed(self, seed: int) -> RandomState:
        """The first thing done for every micro-batch of a pass."""
        self._seeds += 1
        if self._seeds > self.micro_batches_that_fit:
            self._seeds = 0
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 GiB")
        return super().seed(seed)

    def drain(self) -> None:
        self._seeds = 0
        super().drain()

    def gradients_out(self, *given: Any) -> None:
        self._sums += 1
        if self._sums in self.sums_that_fail:
            raise MemoryError("scripted")
        super().gradients_out(*given)


@pytest.fixture
def device() -> Iterator[ScriptedDevice]:
    device = ScriptedDevice()
    yield device
    device.close()


def new_replica(device: CpuDevice, precision: torch.dtype = torch.float32) -> Replica:
    replica = filled(device, program(0.0, precision), precision=precision, micro_batches=4)
    replica.reset_gradients()
    return replica


def void_pass(replica: Replica, micro_batches: int = 2) -> PassVoided:
    with pytest.raises(PassVoided) as voided:
        replica.run_pass(batches(micro_batches, 5))
    return voided.value


# --- numbers ----------------------------------------------------------------------------------


def test_float16s_scale_is_lowered_until_nothing_overflows_and_training_goes_on(
    device: ScriptedDevice,
) -> None:
    replica = new_replica(device, torch.float16)
    replica.export_parameters()["final_norm.weight"].mul_(300)
    replica.load_state(replica.state_arenas(), 0)
    losses, voided = list[float](), list[PassVoided]()
    while replica.step_count < 12:
        try:
            replica.run_pass(batches(2, 5))
        except PassVoided as void:
            voided.append(void)
        else:
            losses.append(replica.loss_sum)
            assert replica.sequences == 2 * SEQUENCES
            apply(replica, replica.gradient_sums() / replica.sequences, replica.step_count + 1)
    assert len(voided) >= 2
    assert {void.cause for void in voided} == {Cause.GRADIENTS}
    for number, void in enumerate(voided, start=1):
        assert f"the loss scale is {2**15 >> number} " in void.hint
    assert losses[-1] < 0.9 * losses[0]


# --- memory -----------------------------------------------------------------------------------


def test_fewer_micro_batches_are_tried_until_they_fit_or_not_even_one_does(
    device: ScriptedDevice,
) -> None:
    replica = new_replica(device)
    replica.run_pass(batches(4, 1))
    device.micro_batches_that_fit = 1
    for most in (2, 1):
        void = void_pass(replica, replica.micro_batches)
        assert (void.cause, void.sequences_lost) == (Cause.MEMORY, 0)
        for said in (f"at most {most} per pass", "[device] memory", "micro_batch_sequences"):
            assert said in void.hint
        assert replica.micro_batches == most
    replica.run_pass(batches(1, 2))
    device.micro_batches_that_fit = 0
    void_pass(replica, 1)
    with pytest.raises(DeviceError, match="not even one micro-batch") as given_up:
        replica.run_pass(batches(1, 2))
    assert "[device] memory" in given_up.value.hint
    device.micro_batches_that_fit = 1
    replica.run_pass(batches(1, 2))
    assert replica.sequences == 6 * SEQUENCES, "earlier sums are still there"
    device.micro_batches_that_fit = 0
    assert void_pass(replica, 1).cause is Cause.MEMORY, "the other program may have ended"


def test_an_evaluation_that_does_not_fit_takes_fewer_at_a_time(device: ScriptedDevice) -> None:
    replica = new_replica(device)
    expected = replica.evaluate(batches(4, 1))
    device.micro_batches_that_fit = 3
    with pytest.raises(PassVoided, match="out-of-memory"):
        replica.evaluate(batches(4, 1))
    assert replica.evaluate(batches(4, 1)) == expected
    assert not replica.gradient_sums().any()


# --- what is counted is what is in the sums ---------------------------------------------------


@pytest.mark.parametrize("failing", [(1,), (2,), (4, 5), (3, 8, 13)])
def test_the_sums_are_of_what_was_counted(device: ScriptedDevice, failing: tuple[int, ...]) -> None:
    """Memory runs out now and then; a second replica trains on the passes that still count."""
    replica, plain = new_replica(device), new_replica(device)
    counting, voided, number = list[list[MicroBatch]](), 0, 0
    device.sums_that_fail = set(failing)
    while replica.sequences < 8 * SEQUENCES:
        some, number = batches(min(replica.micro_batches, 2), number), number + 1
        try:
            replica.run_pass(some)
        except PassVoided as void:
            voided += 1
            if void.sequences_lost:
                counting.clear()
        else:
            counting.append(some)
    device.sums_that_fail.clear()
    assert voided
    for counted in counting:
        plain.run_pass(counted)
    assert (plain.sequences, plain.loss_sum) == (replica.sequences, replica.loss_sum)
    assert torch.equal(plain.gradient_sums(), replica.gradient_sums())
