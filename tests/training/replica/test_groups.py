"""Devices that run each pass together, and fail together."""

import pytest
import torch
from device_rig import WAIT_S, Moody, NewRig, alike, together, twin

from atom.swap.schedule import Arrangement
from atom.swap.voided import Cause, PassVoided
from tests.training.small_replica import batches


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


def test_its_memory_is_given_back_and_taken_again(new_rig: NewRig) -> None:
    rig = new_rig(3, **together(3))
    rig.train(2)
    assert rig.replica.engines.preempt(WAIT_S)
    assert not any(device.has_slots for device in rig.devices)
    rig.replica.engines.resume()
    rig.train(2)
    assert alike(rig, twin(new_rig, [2, 2]))


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
