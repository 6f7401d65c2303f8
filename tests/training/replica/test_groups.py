"""Devices that run each pass together: the bits of one device, whatever becomes of them."""

from contextlib import suppress
from typing import Any

import pytest
import torch
from device_rig import HALF, NARROW, WAIT_S, Moody, NewRig, alike, in_passes, twin

from atom.swap.arrangement import Arrangement
from atom.swap.voided import Cause, PassVoided
from tests.training.small_replica import batches

STAY = {"resident": frozenset({1, 2}), "kept": frozenset({1})}
FORMS = pytest.mark.parametrize("changes", [{}, HALF, NARROW], ids=["float32", "bfloat16", "both"])
GRIDS = [(2, 2), (3, 3), (4, 2), (4, 4)]
"""Devices, and how many of them run a pass together."""


def together(devices: int, **stay: Any) -> dict[str, Any]:
    return {"arrangement": Arrangement(2, devices=devices, **stay)}


@FORMS
@pytest.mark.parametrize("stay", [{}, STAY], ids=["swapped", "some stay"])
@pytest.mark.parametrize(("devices", "group"), GRIDS)
def test_every_grid_gives_the_bits_of_one_device(
    new_rig: NewRig, devices: int, group: int, stay: dict[str, Any], changes: dict[str, Any]
) -> None:
    one, several = new_rig(1, **changes), new_rig(devices, **changes, **together(group, **stay))
    random = torch.get_rng_state()
    for _ in range(2):
        for count in (2 * devices + 1, 2):
            loss = several.train(count)
            for some in in_passes(count, several.done - 1):
                one.replica.run_pass(some)
            assert loss == one.replica.loss_sum
        one.step()
        several.step()
    assert alike(one, several)
    assert torch.equal(random, torch.get_rng_state())
    assert several.replica.evaluate(batches(7, 1)) == one.replica.evaluate(batches(7, 1))


@pytest.mark.parametrize("number", range(4))
def test_what_a_group_leaves_another_does(new_rig: NewRig, number: int) -> None:
    """One of its devices fails at any of its moves: nothing is lost or counted twice."""
    failed = 0
    for moves in (0, 1, 2, 5, 8):
        rig = new_rig(4, is_late=False, **HALF, **together(2))
        rig.train(6)
        rig.replica.gradient_sums()
        moody = rig.devices[number]
        moody.fails_at = moody.moves + moves
        rig.train(6)
        if moody.has_slots:  # it may still fail, when all is counted
            with suppress(torch.OutOfMemoryError):
                assert alike(rig, twin(new_rig, rig, [6, 6], **HALF))
            continue
        assert alike(rig, twin(new_rig, rig, [6, 6], **HALF))
        failed += 1
        name = f"cpu + cpu ({number // 2 + 1})"
        assert rig.told == [f"{name} is excluded for 10 s: CUDA out of memory"]
    assert failed


@pytest.mark.parametrize("number", range(2))
def test_the_only_group_fails_as_an_only_device_does(new_rig: NewRig, number: int) -> None:
    rig = new_rig(2, is_late=False, **together(2))
    rig.train(2)
    moody = rig.devices[number]
    moody.fails_at = moody.moves
    with pytest.raises(PassVoided) as void:
        rig.train(2)
    assert void.value.cause is Cause.MEMORY
    assert rig.replica.micro_batches == 1
    moody.fails_at = float("inf")
    counted = rig.replica.sequences
    rig.replica.run_pass(batches(1, 9))
    assert rig.replica.sequences == counted + 2


@pytest.mark.parametrize(("devices", "group"), [(2, 2), (4, 2)])
def test_a_pause_at_any_event_changes_no_bit(new_rig: NewRig, devices: int, group: int) -> None:
    broken_off = 0
    for events in range(0, 90, 13):
        rig = new_rig(devices, **HALF, **together(group))
        rig.train(4)
        broken_off += rig.train_with_a_pause(2, events)
        assert alike(rig, twin(new_rig, rig, [4, 2], **HALF))
    assert broken_off


def test_its_memory_is_given_back_and_taken_again(new_rig: NewRig) -> None:
    rig = new_rig(3, **together(3))
    rig.train(2)
    assert rig.replica.engines.preempt(WAIT_S)
    assert not any(device.has_slots for device in rig.devices)
    rig.replica.engines.resume()
    rig.train(2)
    assert alike(rig, twin(new_rig, rig, [2, 2]))


def test_one_that_fails_keeps_nothing_of_the_others(
    new_rig: NewRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One device's counted gradients are not added, and its memory stays in use; the other device's
    gradients are added by the time of the report, and its memory is released."""
    rig = new_rig(2, **together(2))
    failing, other = rig.devices
    rig.train(2)
    first = failing.moves
    rig.train(2)
    rig.replica.gradient_sums()
    failing.fails_at = 2 * failing.moves - first - 1
    landed = list[bool]()
    monkeypatch.setattr(other, "drain", lambda: (Moody.drain(other), landed.append(True)))
    rig.train(2)
    with pytest.raises(torch.OutOfMemoryError):
        rig.replica.gradient_sums()
    assert landed

    def gone(slots: object) -> None:
        raise RuntimeError("CUDA error: unspecified launch failure")

    monkeypatch.setattr(failing, "give_back", gone)
    with pytest.raises(RuntimeError, match="launch failure"):
        rig.replica.engines.preempt(WAIT_S)
    assert not other.has_slots


@pytest.mark.parametrize("number", range(2))
def test_nonsense_voids_the_pass(new_rig: NewRig, number: int) -> None:
    causes = set[Cause]()
    for moves in range(1, 14, 2):
        rig = new_rig(2, is_late=False, **together(2))
        rig.train(2)
        moody = rig.devices[number]
        moody.poisons = moody.moves + moves
        try:
            rig.train(2)
            continue  # these were loads
        except PassVoided as problem:
            causes.add(problem.cause)
        rig.train(2)
        assert torch.isfinite(rig.replica.gradient_sums()).all()
    assert causes == {Cause.GRADIENTS}


def test_a_loss_that_is_not_finite_is_what_is_told(new_rig: NewRig) -> None:
    for group in (2, 4):
        rig = new_rig(group, **together(group))
        state = {n: torch.full_like(a, torch.inf) for n, a in rig.replica.state_arenas().items()}
        rig.replica.load_state(state, 0)
        with pytest.raises(PassVoided) as void:
            rig.train(2)
        assert void.value.cause is Cause.LOSS


def test_devices_that_cannot_be_grouped(new_rig: NewRig) -> None:
    with pytest.raises(ValueError, match="3 devices cannot run passes in groups of 2"):
        new_rig(3, **together(2))
    with pytest.raises(ValueError, match="no schedule exists"):
        new_rig(6, **together(6))
    with pytest.raises(ValueError, match="offloads no values"):
        Arrangement(2, offloaded=frozenset({0}), devices=2)
