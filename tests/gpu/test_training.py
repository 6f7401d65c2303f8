"""Steps under passes, pauses and other arrangements change no bit."""

import itertools
from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from replicas import EVERY, batches, new_replica, train

from atom.swap.device import Device
from atom.swap.engine import PassCancelled
from atom.swap.schedule import Arrangement
from atom.training.replica.replica import Replica
from tests.training.small_replica import same

WAIT_S = 20.0
NARROW = {"precision": torch.bfloat16, "gradients": torch.bfloat16}
FORMS = pytest.mark.parametrize("changes", [{}, NARROW], ids=["float32", "bfloat16"])
STAYING = Arrangement(2, EVERY, frozenset({1, 3}))
TOGETHER = Arrangement(devices=2)
OFFLOADING = Arrangement(3, offloaded=EVERY, least_offloaded_bytes=0)


def assert_trained_alike(
    device: Device,
    changes: dict[str, torch.dtype],
    between: Callable[[Replica, int], None],
    arrangement: Arrangement | None = None,
) -> None:
    plain = new_replica(device, changes)
    expected = train(plain, lambda replica, number: replica.finish_step())
    other = new_replica(device, changes, arrangement)
    assert train(other, between) == expected
    assert same(other, plain)


@FORMS
@pytest.mark.parametrize("arrangement", [Arrangement(), STAYING, OFFLOADING])
def test_a_step_under_the_next_pass_changes_no_bit(
    changes: dict[str, torch.dtype], arrangement: Arrangement, device: Device
) -> None:
    assert_trained_alike(device, changes, lambda replica, number: None, arrangement)


@FORMS
@pytest.mark.parametrize(
    "arrangement", [Arrangement(), STAYING, OFFLOADING, TOGETHER, replace(STAYING, devices=2)]
)
def test_a_second_device_changes_no_bit(
    changes: dict[str, torch.dtype],
    arrangement: Arrangement,
    device: Device,
    second_device: Device,
) -> None:
    """The second device may be the same GPU, without dropout, because a GPU has one generator."""
    alone = new_replica(device, changes, replace(arrangement, devices=1), dropout=0.0)
    both = new_replica(device, changes, arrangement, 0.0, [second_device])
    for seed in (0, 3):
        for replica, calls in ((alone, 3), (both, 1 if arrangement.devices == 1 else 3)):
            replica.reset_gradients()
            some = [each for number in range(3) for each in batches(seed + number)]
            size = len(some) // calls
            for start in range(0, len(some), size):
                replica.run_pass(some[start : start + size])
            replica.begin_own_step()
    assert same(alone, both)
    assert not any(both.engines.devices.values())


@FORMS
def test_a_pause_changes_no_bit(changes: dict[str, torch.dtype], device: Device) -> None:
    def pause(replica: Replica, number: int) -> None:
        assert replica.engines.preempt(WAIT_S)
        with pytest.raises(PassCancelled):
            replica.run_pass(batches(number))
        replica.engines.resume()

    assert_trained_alike(device, changes, pause)


@FORMS
def test_a_pass_broken_off_is_repeated_with_the_same_bits(
    changes: dict[str, torch.dtype], device: Device
) -> None:
    """A round's first pass anywhere, its second one before gradients leave."""

    def break_off(replica: Replica, number: int) -> None:
        events, last = itertools.count(), number if number % 2 else 6 * number
        with pytest.raises(PassCancelled):
            replica.run_pass(batches(number), lambda: replica.breakable and next(events) > last)

    assert_trained_alike(device, changes, break_off)
