"""A GPU's own memory: taken by others, given back, and host memory that its driver refuses."""

import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
import torch
from replicas import ROUNDS, batches, new_replica, train

from atom.swap.device import Device
from atom.swap.host_memory import register
from atom.swap.streams import CudaDevice, give_back_cache
from atom.swap.voided import Cause, PassVoided
from tests.training.small_replica import same

GIVEN_BACK_WITHIN_S = 2.0
LEFT_BYTES = 2**21
"""Memory outside slots: constants, and a segment of the allocator for the smallest."""


@contextmanager
def no_memory_left() -> Iterator[None]:
    """Limit the device memory to PyTorch's reservation, as if other programs had the remaining
    memory."""
    give_back_cache()
    total = torch.cuda.get_device_properties(0).total_memory
    torch.cuda.set_per_process_memory_fraction(torch.cuda.memory_reserved() / total)
    try:
        yield
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0)


def test_a_pass_without_memory_is_void_and_the_next_one_is_as_if_it_had_not_been(
    device: Device,
) -> None:
    """The other replica's first pass is thrown away too: dropout draws for each."""
    untouched, replica = new_replica(device, {}), new_replica(device, {})
    untouched.reset_gradients()
    untouched.run_pass(batches(0))
    replica.reset_gradients()
    with no_memory_left(), pytest.raises(PassVoided) as voided:
        replica.run_pass(batches(0))
    assert voided.value.cause is Cause.MEMORY
    assert replica.micro_batches == 1
    for each in (untouched, replica):
        for number in range(ROUNDS):
            each.reset_gradients()
            each.run_pass(batches(number)[:1])
            each.begin_own_step()
        each.finish_step()
    assert same(replica, untouched)


def test_a_pause_gives_the_memory_back(device: Device) -> None:
    replica = new_replica(device, {})
    train(replica)
    before = torch.cuda.memory_reserved()
    began = time.monotonic()
    assert replica.engines.preempt(GIVEN_BACK_WITHIN_S)
    assert time.monotonic() - began < GIVEN_BACK_WITHIN_S
    assert torch.cuda.memory_reserved() < before
    assert torch.cuda.memory_reserved() <= LEFT_BYTES


def test_what_the_allocator_takes_grows_in_place(device: Device) -> None:
    """Pieces that were given up become one again: there is room for all of them together."""
    give_back_cache()
    pieces = [device.slot_memory(2**24, torch.float32) for _ in range(4)]
    assert all(each["is_expandable"] for each in torch.cuda.memory_snapshot())
    before = torch.cuda.memory_reserved()
    pieces.clear()
    pieces.append(device.slot_memory(2**26, torch.float32))
    assert torch.cuda.memory_reserved() == before


def test_more_than_the_cap_is_not_taken() -> None:
    capped = CudaDevice(0, memory_bytes=2**26)
    try:
        with pytest.raises(torch.cuda.OutOfMemoryError):
            capped.slot_memory(2**25, torch.float32)
    finally:
        capped.close()
        CudaDevice(0).close()


def test_a_registration_that_the_driver_refuses_harms_nothing_else(device: Device) -> None:
    """A second registration of the same memory is refused."""
    memory = device.host_memory(2**20, torch.float32)
    assert not register(memory)
    assert torch.ones(8, device="cuda").add_(1).sum().item() == 16
