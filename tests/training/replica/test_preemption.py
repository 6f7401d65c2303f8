"""A replica gives its device back and takes it again: nothing counted is lost, no bit changed."""

import itertools
import threading
from collections.abc import Callable

import pytest
from device_rig import FORMS, OFFLOADED, WAIT_S, NewRig, Rig, alike

from atom.swap.engine import PassCancelled
from atom.swap.voided import PassVoided
from atom.training.replica.engines import DeviceTaken
from tests.training.small_replica import batches

PASS = 2
"""Micro-batches of one pass."""


@pytest.fixture
def rig(new_rig: NewRig) -> Rig:
    return new_rig(1, is_late=False, arrangement=OFFLOADED)


@pytest.mark.parametrize("form", ["float32", "gradients-too"])
def test_a_pause_at_any_event_changes_no_bit(new_rig: NewRig, form: str) -> None:
    """A pause comes in the first pass of a round, during a step, and in the second pass: an
    interrupted pass is repeated, and a pass that may not be interrupted ends first."""
    given = {"is_late": False, "arrangement": OFFLOADED, **FORMS[form]}
    whole, rig = new_rig(1, **given), new_rig(1, **given)
    broken_off = finished = 0
    for event in range(0, 70, 7):
        for counted in (0, 4):
            try:
                loss = rig.train(PASS, pausing(rig, event))
                finished += not rig.devices[0].has_slots
            except PassCancelled:
                broken_off += 1
                assert not rig.devices[0].has_slots
                assert rig.replica.sequences == counted, "what was counted is still there"
                rig.replica.engines.resume()
                loss = rig.train(PASS)
            rig.replica.engines.resume()
            assert loss == whole.train(PASS)
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


def test_memory_that_others_took_is_waited_for(rig: Rig, new_rig: NewRig) -> None:
    untouched, (device,) = new_rig(1, arrangement=OFFLOADED), rig.devices
    rig.replica.engines.preempt(WAIT_S)
    for use in (lambda: rig.train(PASS), lambda: rig.replica.evaluate(batches(1, 1))):
        with pytest.raises(PassCancelled):
            use()
    rig.replica.engines.resume()
    device.fails_at = 0
    for _ in range(3):
        with pytest.raises(DeviceTaken):
            rig.train(PASS)
    assert not device.has_slots
    device.fails_at = float("inf")
    assert rig.train(PASS) == untouched.train(PASS)
    assert alike(rig, untouched)


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
