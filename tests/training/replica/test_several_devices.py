"""Several devices fill one store: the bits of one device, whatever becomes of the others."""

import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from typing import Any

import pytest
import torch
from device_rig import FORMS, HALF, STAY, WAIT_S, Moody, NewRig, alike, in_passes, together, twin

from atom.swap import host_sums
from atom.swap.engine import Engine, PassCancelled
from atom.swap.host_sums import Gate, HostSum
from atom.swap.schedule import Arrangement
from atom.swap.voided import Cause, PassVoided
from atom.training.replica.local_steps import LocalSteps
from atom.training.replica.work_sharing import FIRST_WAIT_S, LONGEST_WAIT_S, left_out, shared_out
from tests.training.small_replica import batches

ALONE = [(2, 1, {}, form) for form in FORMS] + [(4, 1, {}, "bfloat16")]
GROUPS = [
    (2, 2, {}, "float32"),
    (3, 3, STAY, "gradients-too"),
    (4, 2, STAY, "bfloat16"),
    (4, 4, {}, "bfloat16"),
]


@pytest.mark.parametrize(("devices", "group", "stay", "form"), ALONE + GROUPS)
def test_every_grid_gives_the_bits_of_one_device(
    new_rig: NewRig, devices: int, group: int, stay: dict[str, Any], form: str
) -> None:
    """Two rounds of two calls each, some with a remainder; with dropout."""
    grid = {**FORMS[form], **together(group, **stay)}
    one, several = new_rig(1, **FORMS[form]), new_rig(devices, **grid)
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
    assert not several.told
    assert several.replica.evaluate(batches(7, 1)) == one.replica.evaluate(batches(7, 1))


def test_a_slow_device_keeps_the_order(new_rig: NewRig) -> None:
    """The one with the first pass waits until the others have nothing left to do."""
    rig = new_rig(3, **HALF)
    slow = rig.devices[0]
    slow.may_move.clear()
    threading.Timer(0.3, slow.may_move.set).start()
    rig.train(6)
    assert alike(rig, twin(new_rig, [6], **HALF))


LEFT_ALONE = [(place % 3, form, 1) for place, form in enumerate(FORMS)]
LEFT_BY_GROUPS = [(number, "bfloat16", 2) for number in (0, 3)]


@pytest.mark.parametrize(("number", "form", "group"), LEFT_ALONE + LEFT_BY_GROUPS)
def test_what_a_device_or_group_leaves_the_others_do(
    new_rig: NewRig, number: int, form: str, group: int
) -> None:
    """A device fails at any of its moves: no pass is lost or counted twice."""
    failed, changes = 0, FORMS[form]
    name = f"cpu ({number + 1})" if group == 1 else f"cpu + cpu ({number // 2 + 1})"
    whole = twin(new_rig, [6, 6], **changes)
    for moves in range(number, 16, 4) if group == 1 else (0, 2, 5, 8):
        rig = new_rig(2 + group, is_late=group == 1, **changes, **together(group))
        rig.train(6)
        rig.replica.gradient_sums()
        moody = rig.devices[number]
        moody.fails_at = moody.moves + moves
        assert rig.train(6) == whole.replica.loss_sum
        if moody.has_slots:  # it may still fail, when all is counted
            with suppress(PassVoided, torch.OutOfMemoryError):
                assert alike(rig, whole)
            continue
        assert alike(rig, whole)
        failed += 1
        assert rig.told == [f"{name} is excluded for 10 s: CUDA out of memory"]
        assert rig.left_out == {name: "CUDA out of memory"}
        assert rig.replica.micro_batches == 2 * len(rig.devices) // group - 2
    assert failed


@pytest.mark.parametrize(
    ("failure", "asks"), [(torch.OutOfMemoryError, "a pass"), (RuntimeError, "a round")]
)
def test_what_was_counted_and_does_not_land_counts_no_more(
    new_rig: NewRig, failure: type[Exception], asks: str
) -> None:
    """The next caller gets the error, and the call after that starts on the other device."""
    rig = new_rig(2)
    moody = rig.devices[1]
    moody.failure = failure("the card is gone")
    moves = []
    for _ in range(2):
        rig.train(4)
        rig.replica.gradient_sums()
        moves.append(moody.moves)
    first, second = moves
    rig.train(2)  # of the other one
    moody.fails_at = moody.moves + second - first - 1
    rig.train(4)
    with pytest.raises(PassVoided, match="device-failed: the card is gone") as void:
        rig.train(4) if asks == "a pass" else rig.replica.contribution()
    assert void.value.sequences_lost == 2 * (4 + 4 + 2 + 4)
    assert rig.replica.sequences == 0
    assert list(rig.left_out) == ["cpu (2)"]
    one = new_rig(1)
    one.replica._seeds.set_state(rig.replica._seeds.get_state())
    for some in in_passes(4, rig.done):
        one.replica.run_pass(some)
    rig.train(4)
    assert torch.equal(rig.replica.gradient_sums(), one.replica.gradient_sums())


def test_a_step_of_the_peers_own_is_not_taken_on_what_did_not_land(new_rig: NewRig) -> None:
    """Steps before it stay, and their sequences count."""
    rule = partial(LocalSteps, inner_sequences=8, outer_rate=0.9, outer_momentum=0.8)
    rig = new_rig(2, update_rule=rule)
    rig.train(4)
    rig.devices[1].gradients_out = failing(rig.devices[1])  # type: ignore[method-assign]
    with pytest.raises(PassVoided, match="device-failed") as void:
        rig.train(4)
    assert void.value.sequences_lost == rig.replica.sequences == 8
    rig.train(4)
    assert rig.replica.sequences == 16
    assert rig.replica.contribution().is_finite()


def test_it_comes_back(new_rig: NewRig) -> None:
    rig = new_rig(2)
    moody = rig.devices[1]
    moody.fails_at = 0
    rig.train(4)
    before = moody.moves
    rig.train(4)
    assert moody.moves == before, "it is left alone for a while"
    rig.clock.advance(FIRST_WAIT_S)
    rig.train(4)
    assert rig.told[1:] == ["cpu (2) is excluded for 20 s: CUDA out of memory"]
    moody.fails_at = float("inf")
    rig.clock.advance(2 * FIRST_WAIT_S)
    rig.train(4)
    assert moody.moves > before
    assert rig.told[2:] == ["cpu (2) is used again"]
    assert rig.replica.micro_batches == 4
    assert alike(rig, twin(new_rig, [4, 4, 4, 4]))


def test_a_device_that_is_gone(new_rig: NewRig) -> None:
    """Not for want of memory; it cannot even give its memory back."""
    rig = new_rig(2)
    gone = rig.devices[0]
    gone.failure, gone.fails_at = RuntimeError("CUDA error: device not ready"), 5
    gone.give_back = pytest.fail  # type: ignore[method-assign]
    drain = gone.drain

    def drain_what_is_gone() -> None:
        drain()
        if gone.moves > gone.fails_at:
            raise gone.failure

    gone.drain = drain_what_is_gone  # type: ignore[method-assign]
    rig.train(8)
    assert alike(rig, twin(new_rig, [8]))


@pytest.mark.parametrize(
    ("group", "failing"), [(1, (0, 1)), (2, (0,)), (2, (1,))], ids=["last", "first of", "second of"]
)
def test_the_last_device_or_group_fails_as_an_only_device_does(
    new_rig: NewRig, group: int, failing: tuple[int, ...]
) -> None:
    rig = new_rig(2, is_late=group == 1, **together(group))
    rig.train(4)
    for number in failing:
        rig.devices[number].fails_at = rig.devices[number].moves
    with pytest.raises(PassVoided) as void:
        rig.train(4)
    assert void.value.cause is Cause.MEMORY
    assert rig.replica.micro_batches == 1, "half as many on the one that is left"
    counted = rig.replica.sequences
    assert group > 1 or counted == 8
    for device in rig.devices:
        device.fails_at = float("inf")
    rig.replica.run_pass(batches(1, 9))
    assert rig.replica.sequences == counted + 2


def test_what_the_model_cannot_compute_is_raised_by_the_last_device(
    new_rig: NewRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    rig, some, run_pass = new_rig(4), batches(16, 0), Engine.run_pass

    def refuse_one(engine: Engine, of_pass: Sequence[Any], *rest: Any) -> list[float]:
        if any(each is some[3] for each in of_pass):
            raise RuntimeError("shapes cannot be multiplied")
        return run_pass(engine, of_pass, *rest)

    monkeypatch.setattr(Engine, "run_pass", refuse_one)
    with pytest.raises(RuntimeError, match="cannot be multiplied"):
        rig.replica.run_pass(some)
    assert len(rig.told) == 3
    assert all("shapes cannot be multiplied" in left_out for left_out in rig.told)
    assert rig.replica.engines.at_work == 1


@pytest.mark.parametrize(("group", "number"), [(1, 0), (1, 1), (2, 0), (2, 1)])
def test_nonsense_voids_the_call(new_rig: NewRig, group: int, number: int) -> None:
    """Earlier counted passes are lost too if a part of the call had been added."""
    lost, whole = list[int](), twin(new_rig, [4])
    for moves in range(1, 14, 2):
        rig = new_rig(2, is_late=False, **together(group))
        rig.train(4)
        moody = rig.devices[number]
        moody.poisons = moody.moves + moves
        try:
            rig.train(4)
            continue  # these were loads
        except PassVoided as problem:
            void = problem
        assert void.cause is Cause.GRADIENTS
        lost.append(void.sequences_lost)
        if void.sequences_lost or group == 2:
            rig.train(4)
            assert torch.isfinite(rig.replica.gradient_sums()).all()
        else:
            assert rig.replica.sequences == 8
            assert alike(rig, whole)
    assert 8 in lost if group == 1 else lost
    assert not rig.told


def test_what_only_waits_for_an_earlier_sub_model_has_its_turn_again(new_rig: NewRig) -> None:
    """After passes that were broken off, whose numbers do not come again."""
    rig = new_rig(2, head_is_apart=True, **HALF)
    rig.train(4)
    with pytest.raises(PassCancelled):
        rig.train(4, lambda: True)
    rig.train(4)
    assert alike(rig, twin(new_rig, [4, 4], head_is_apart=True, **HALF))


def test_a_sum_that_broke_off_is_not_made_again(new_rig: NewRig) -> None:
    """A part of the sum may have been added, so earlier counted passes are lost too."""
    rig = new_rig(2)
    rig.train(4)
    rig.replica.gradient_sums()
    (lane,) = rig.devices[1]._gradients._executor._threads
    add, breaks = host_sums.add, iter([True])

    def breaking(*given: Any) -> None:
        add(*given)
        if threading.current_thread() is lane and next(breaks, False):
            raise MemoryError

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(host_sums, "add", breaking)
        with pytest.raises(PassVoided):
            rig.train(8)
    assert rig.replica.sequences == 0


def test_a_device_whose_gradients_never_land(new_rig: NewRig) -> None:
    """The device computes without a report: it has one pass, and its lane fails at the end of that
    pass."""
    rig = new_rig(2)
    rig.train(4)
    rig.replica.gradient_sums()
    rig.devices[0].gradients_out = failing(rig.devices[0])  # type: ignore[method-assign]
    rig.train(4)
    assert rig.told == ["cpu (1) is excluded for 10 s: CUDA out of memory"]
    assert alike(rig, twin(new_rig, [4, 4]))


def test_what_did_not_land_is_told_after_a_pause_as_well(new_rig: NewRig) -> None:
    rig = new_rig(2)
    rig.train(4)
    rig.replica.gradient_sums()
    for device in rig.devices:
        device.gradients_out = failing(device)  # type: ignore[method-assign]
    rig.train(2)
    assert rig.replica.engines.preempt(WAIT_S)
    rig.replica.engines.resume()
    for device in rig.devices:
        del device.gradients_out
    with pytest.raises(PassVoided):
        rig.train(4)
    assert rig.replica.sequences == 0


def failing(device: Moody) -> Callable[..., None]:
    def gradients_out(slot: int, sums: Sequence[HostSum], gate: Gate, *reports: Any) -> None:
        def fail() -> None:
            with gate.adding():
                raise device.failure

        device._gradients._executor.submit(fail)

    return gradients_out


def test_one_of_a_group_that_fails_keeps_nothing_of_the_others(
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


def test_a_loss_that_is_not_finite_voids_the_pass_of_a_group(new_rig: NewRig) -> None:
    for group in (2, 4):
        rig = new_rig(group, **together(group))
        state = {n: torch.full_like(a, torch.inf) for n, a in rig.replica.state_arenas().items()}
        rig.replica.load_state(state, 0)
        with pytest.raises(PassVoided) as void:
            rig.train(2)
        assert void.value.cause is Cause.LOSS


def test_an_evaluation_outlives_a_device(new_rig: NewRig) -> None:
    one, several = new_rig(1), new_rig(3)
    several.devices[2].fails_at = several.devices[2].moves + 3
    assert several.replica.evaluate(batches(7, 1)) == one.replica.evaluate(batches(7, 1))
    assert several.left_out == {"cpu (3)": "CUDA out of memory"}


def test_devices_that_cannot_work_together_are_refused(new_rig: NewRig) -> None:
    trained = Arrangement(2, frozenset({1}), trained=frozenset({1}))
    with pytest.raises(ValueError, match="one of several devices"):
        new_rig(2, arrangement=trained)
    with pytest.raises(ValueError, match="3 devices cannot run passes in groups of 2"):
        new_rig(3, **together(2))
    with pytest.raises(ValueError, match="no schedule exists"):
        new_rig(6, **together(6))
    with pytest.raises(ValueError, match="offloads no values"):
        Arrangement(2, offloaded=frozenset({0}), devices=2)


@pytest.mark.parametrize(
    ("seconds", "taken"),
    [
        ([1.0, 1.0], [0, 1, 0, 1, 0]),
        ([1.0, 2.1], [0, 0, 1, 0, 0]),
        ([3.0, 1.0, 1.0], [1, 2, 1, 2, 0]),
    ],
)
def test_work_is_shared_out_by_speed(seconds: list[float], taken: list[int]) -> None:
    assert shared_out(5, seconds) == taken


def test_the_longer_it_fails_the_longer_it_is_left_alone() -> None:
    out, now, waits = None, 0.0, list[float]()
    for _ in range(8):
        out = left_out(RuntimeError("gone\nthe stack"), out, now)
        waits.append(out.wait_s)
        now = out.again_at
    assert waits == [10, 20, 40, 80, 160, 320, 600, 600]
    assert out.why == "gone"
    assert left_out(RuntimeError(), out, now + LONGEST_WAIT_S).wait_s == FIRST_WAIT_S
