"""A replica gives devices back and takes them again: no work is lost, and no bit changed."""

import itertools
import threading
from collections.abc import Callable
from typing import Any

import pytest
from device_rig import FORMS, OFFLOADED, WAIT_S, NewRig, Rig, alike, together, twin

from atom.swap.engine import PassCancelled
from atom.swap.voided import PassVoided
from atom.training.replica.engines import DeviceTaken
from atom.training.replica.work_sharing import FIRST_WAIT_S, LONGEST_WAIT_S
from tests.training.small_replica import batches

PASS = 2
"""Micro-batches of one pass."""


@pytest.fixture
def rig(new_rig: NewRig) -> Rig:
    return new_rig(1, is_late=False, arrangement=OFFLOADED)


@pytest.mark.parametrize(
    ("devices", "group", "form"),
    [
        (1, 1, "offloaded"),
        (1, 1, "gradients-too"),
        (2, 1, "float32"),
        (2, 1, "offloaded"),
        (2, 1, "resident"),
        (2, 2, "bfloat16"),
        (4, 2, "bfloat16"),
    ],
)
def test_a_pause_at_any_event_changes_no_bit(
    new_rig: NewRig, devices: int, group: int, form: str
) -> None:
    """A pause comes in the first pass of a round, during a step, and in the second pass: an
    interrupted pass is repeated, and a pass that may not be interrupted ends first."""
    whole = new_rig(1, is_late=False, **FORMS[form])
    rig = new_rig(devices, is_late=devices > 1, **FORMS[form], **together(group))
    count = PASS * devices // group
    broken_off = finished = 0
    for event in range(0, 70, 10):
        for counted in (0, 2 * count):
            try:
                loss = rig.train(count, pausing(rig, event))
                finished += not rig.devices[0].has_slots
            except PassCancelled:
                broken_off += 1
                assert not any(device.has_slots for device in rig.devices)
                assert rig.replica.sequences == counted, "what was counted is still there"
                rig.replica.engines.resume()
                loss = rig.train(count)
            rig.replica.engines.resume()
            assert loss == whole.train(count)
            assert alike(rig, whole)
        for each in (whole, rig):
            each.step()
    assert broken_off > 2
    assert finished or devices > 1, "passes too late to be broken off"


def pausing(rig: Rig, event: int) -> Callable[[], bool]:
    """Asked at each event of a pass, it wants the memory back from that event on."""
    events = itertools.count()

    def should_stop() -> bool:
        if next(events) < event:
            return False
        rig.replica.engines.preempt(0)
        return rig.replica.breakable

    return should_stop


def test_whoever_wants_the_memory_back_does_not_wait_for_ever(rig: Rig) -> None:
    began, may_end = threading.Event(), threading.Event()

    def wait() -> bool:
        began.set()
        return not may_end.wait(WAIT_S)

    passing = threading.Thread(target=rig.train, args=(PASS, wait))
    passing.start()
    assert began.wait(WAIT_S)
    assert not rig.replica.engines.preempt(0.01)
    may_end.set()
    passing.join()
    assert not rig.devices[0].has_slots


@pytest.mark.parametrize(
    ("devices", "settings"), [(1, {"arrangement": OFFLOADED}), (2, {}), (3, together(3))]
)
def test_memory_that_another_program_has_is_waited_for(
    new_rig: NewRig, devices: int, settings: dict[str, Any]
) -> None:
    rig = new_rig(devices, **settings)
    rig.train(4)
    assert rig.replica.engines.preempt(WAIT_S)
    assert not any(device.has_slots for device in rig.devices)
    for use in (lambda: rig.train(4), lambda: rig.replica.evaluate(batches(1, 1))):
        with pytest.raises(PassCancelled):
            use()
    rig.replica.engines.resume()
    for device in rig.devices:
        device.fails_at = 0
    for _ in range(2):
        with pytest.raises(DeviceTaken):
            rig.train(4)
    for device in rig.devices:
        device.fails_at = float("inf")
    rig.clock.advance(LONGEST_WAIT_S)
    rig.train(4)
    assert alike(rig, twin(new_rig, [4, 4]))


def test_one_that_is_due_comes_in_the_place_of_one_without_memory(new_rig: NewRig) -> None:
    rig = new_rig(2)
    assert rig.replica.engines.preempt(WAIT_S)
    rig.replica.engines.resume()
    rig.devices[0].fails_at = 0
    rig.train(4)
    assert list(rig.left_out) == ["cpu (1)"]
    assert rig.replica.engines.preempt(WAIT_S)
    rig.replica.engines.resume()
    rig.clock.advance(FIRST_WAIT_S)
    rig.devices[0].fails_at, rig.devices[1].fails_at = float("inf"), 0
    rig.train(4)
    assert list(rig.left_out) == ["cpu (2)"]
    assert alike(rig, twin(new_rig, [4, 4]))


def test_memory_is_given_back_though_gradients_did_not_land(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The lost gradients are reported to the caller of the sums, and to the next pass."""
    rig.train(PASS)
    engines = rig.replica.engines
    monkeypatch.setattr(engines.training._gate, "failure", MemoryError("no room"))
    assert engines.preempt(WAIT_S)
    assert not rig.devices[0].has_slots
    engines.resume()
    with pytest.raises(MemoryError, match="no room"):
        rig.replica.contribution()
    with pytest.raises(PassVoided, match="no room") as void:
        rig.train(PASS)
    assert void.value.sequences_lost == 4
    assert rig.replica.sequences == 0
