"""Whichever layers stay, are offloaded or are trained on the device, no bit changes."""

import itertools
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch
from replicas import EVERY, batches, new_replica, program_in, settings_of, train

from atom.optim.adamw import AdamW8Bit
from atom.optim.clipping import gradient_norm
from atom.swap.device import Device
from atom.swap.engine import PassCancelled
from atom.swap.host_store import StateForm
from atom.swap.schedule import Arrangement
from atom.swap.voided import PassVoided
from atom.swarm.state.arenas import state_digest
from atom.training.replica.replica import Replica
from tests.training.small_replica import same

WAIT_S = 20.0
HALF_OF_THEM = frozenset({1, 3, 5})
FORMS = {
    "float32": {},
    "bfloat16": {"precision": torch.bfloat16},
    "float16": {"precision": torch.float16},
    "split": {"precision": torch.bfloat16, "state_form": StateForm.SPLIT},
    "half": {"precision": torch.bfloat16, "state_form": StateForm.HALF},
    "narrow": {"precision": torch.bfloat16, "gradients": torch.bfloat16},
}
STAYING = Arrangement(2, EVERY, frozenset({1, 3}))
OFFLOADING = Arrangement(3, offloaded=EVERY, least_offloaded_bytes=0)
ON_THE_HOST = {"swapped": Arrangement(), "staying": STAYING, "offloading": OFFLOADING}
"""Arrangements that train nothing on the device."""
ARRANGEMENTS = {
    "half": Arrangement(2, HALF_OF_THEM, trained=HALF_OF_THEM),
    "half, others stay": Arrangement(2, EVERY, trained=HALF_OF_THEM),
    "all": Arrangement(2, EVERY, trained=EVERY),
    "all, kept": Arrangement(2, EVERY, EVERY, trained=EVERY),
}
arranged = pytest.mark.parametrize("arrangement", ARRANGEMENTS.values(), ids=ARRANGEMENTS.keys())
PAIRS = [
    (form, name)
    for place, form in enumerate(["float32", "bfloat16", "float16", "split", "half"])
    for other, name in enumerate(ARRANGEMENTS)
    if (place + other) % 2 == 0
]
"""Each form that a device trains in, with two arrangements."""
EVERY_PAIR = [*PAIRS, *((form, name) for name in ON_THE_HOST for form in ("float32", "narrow"))]


def of_pairs(pairs: Sequence[tuple[str, str]]) -> pytest.MarkDecorator:
    named = ON_THE_HOST | ARRANGEMENTS
    cases = [(form, named[name]) for form, name in pairs]
    ids = [f"{form}-{name}" for form, name in pairs]
    return pytest.mark.parametrize(("form", "arrangement"), cases, ids=ids)


Between = Callable[[Replica, int], None]
_plain: dict[str, tuple[list[float], bytes]] = {}


def trained_plainly(device: Device, form: str) -> tuple[list[float], bytes]:
    """Return the losses and the digest of the state of a replica whose layers are not trained on
    the device, and whose steps end before the next pass. It is the same in all tests."""
    if form not in _plain:
        replica = new_replica(device, FORMS[form])
        losses = train(replica, lambda replica, number: replica.finish_step())
        _plain[form] = losses, state_digest(replica.state_arenas())
    return _plain[form]


def assert_trained_alike(
    device: Device, form: str, arrangement: Arrangement, between: Between
) -> None:
    losses, digest = trained_plainly(device, form)
    other = new_replica(device, FORMS[form], arrangement)
    assert train(other, between) == losses
    assert state_digest(other.state_arenas()) == digest


@of_pairs(EVERY_PAIR)
def test_steps_under_passes(form: str, arrangement: Arrangement, device: Device) -> None:
    assert_trained_alike(device, form, arrangement, lambda replica, number: None)


def test_the_last_sub_model_shares_a_tied_parameter_with_the_first(device: Device) -> None:
    """Neither sub-model alone keeps the parameter on the device."""
    first = new_replica(device, {}, Arrangement(2, EVERY, trained=frozenset({0})))
    both = new_replica(device, {}, Arrangement(2, EVERY, trained=EVERY))
    live = [replica.engines.store.on_device for replica in (first, both)]
    assert [each is not None and "embedding.tokens.weight" in each.names for each in live] == [
        False,
        True,
    ]


@of_pairs(EVERY_PAIR)
def test_pauses_with_a_step_under_way(form: str, arrangement: Arrangement, device: Device) -> None:
    """The remaining parameters are stepped on the host."""

    def pause(replica: Replica, number: int) -> None:
        assert replica.engines.preempt(WAIT_S)
        with pytest.raises(PassCancelled):
            replica.run_pass(batches(number))
        replica.engines.resume()

    assert_trained_alike(device, form, arrangement, pause)


@pytest.mark.parametrize("arrangement", (ON_THE_HOST | ARRANGEMENTS).values())
def test_passes_that_are_broken_off(arrangement: Arrangement, device: Device) -> None:
    """A round's first pass anywhere, its second one before gradients leave."""

    def break_off(replica: Replica, number: int) -> None:
        events, last = itertools.count(), number if number % 2 else 4 * number
        with pytest.raises(PassCancelled):
            replica.run_pass(batches(number), lambda: replica.breakable and next(events) > last)

    assert_trained_alike(device, "bfloat16", arrangement, break_off)


@pytest.mark.parametrize("form", ["float32", "narrow"])
@pytest.mark.parametrize(
    "arrangement", [*ON_THE_HOST.values(), Arrangement(devices=2), replace(STAYING, devices=2)]
)
def test_a_second_device_changes_no_bit(
    form: str,
    arrangement: Arrangement,
    device: Device,
    second_device: Device,
) -> None:
    """The second device may be the same GPU, without dropout, because a GPU has one generator."""
    alone = new_replica(device, FORMS[form], replace(arrangement, devices=1), dropout=0.0)
    both = new_replica(device, FORMS[form], arrangement, 0.0, [second_device])
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


def swarm_round(replica: Replica, other: torch.Tensor, number: int) -> torch.Tensor:
    """One of two peers: `other` is what the other one contributes. Its own contribution."""
    replica.reset_gradients()
    replica.run_pass(batches(2 * number))
    assert torch.equal(replica.contribution().part(0, 1), replica.contribution().part(0, 1))
    replica.run_pass(batches(2 * number + 1))
    ours = replica.contribution().part(0, replica.elements).clone()
    mean = (ours + other) / (2 * replica.sequences)
    replica.begin_step(mean, gradient_norm(mean), number + 1)
    return ours


@of_pairs(PAIRS)
def test_rounds_of_a_swarm_snapshots_and_a_restart(
    form: str, arrangement: Arrangement, device: Device
) -> None:
    def new() -> list[Replica]:
        return [new_replica(device, FORMS[form], each) for each in (None, arrangement)]

    plain, trained = new()
    other = torch.randn(plain.elements, generator=torch.Generator().manual_seed(1))
    for number in range(3):
        ours = [swarm_round(each, other, number) for each in (plain, trained)]
        assert torch.equal(*ours)
        assert same(plain, trained)
        if number == 1:
            saved = {name: arena.clone() for name, arena in trained.state_arenas().items()}
            plain, trained = new()
            for each in (plain, trained):
                each.load_state(saved, number + 1)


@arranged
def test_a_round_without_passes_and_a_step_while_away(
    arrangement: Arrangement, device: Device
) -> None:
    plain, trained = new_replica(device, {}), new_replica(device, {}, arrangement)
    mean = torch.randn(plain.elements, generator=torch.Generator().manual_seed(1))
    for number, away in enumerate((False, True, True, False)):
        if away:
            assert trained.engines.preempt(WAIT_S)
        for each in (plain, trained):
            each.begin_step(mean, 1.0, number + 1)
            assert not each.contribution().part(0, each.elements).any()
        assert same(plain, trained)
        trained.engines.resume()
        losses = [each.run_pass(batches(number)) and each.loss_sum for each in (plain, trained)]
        assert losses[0] == losses[1]
        assert torch.equal(*(each.gradient_sums() for each in (plain, trained)))


@arranged
def test_a_mean_takes_the_place_of_nothing_that_counts(
    arrangement: Arrangement, device: Device
) -> None:
    """The round's step uses the sums up, whenever the next round begins."""
    both = [new_replica(device, {}, each) for each in (None, arrangement)]
    mean = torch.randn(both[0].elements, generator=torch.Generator().manual_seed(1))
    for each in both:
        each.run_pass(batches(0))
        each.begin_step(mean, 1.0, 1)
        assert each.sequences == 0
        assert not each.contribution().part(0, each.elements).any()
        each.begin_step(mean, 1.0, 2)
        each.run_pass(batches(1))
        assert each.sequences == 4
    assert torch.equal(*(each.contribution().part(0, each.elements) for each in both))
    assert same(*both)


@arranged
def test_void_passes(arrangement: Arrangement, device: Device) -> None:
    """The void pass is a round's first pass or a later pass; a later void pass loses the earlier
    ones' sums that it touched."""
    form = FORMS["float16"]
    both = [new_replica(device, form, each) for each in (None, arrangement)]
    void = 0
    for number in range(6):
        ended = []
        for each in both:
            each._limits = replace(each._limits, exponent=8 + 4 * number)
            try:
                each.run_pass(batches(number))
                ended.append((each.sequences, each.loss_sum))
            except PassVoided as voided:
                void += 1
                ended.append((voided.cause, voided.sequences_lost))
        assert ended[0] == ended[1]
        assert torch.equal(*(each.gradient_sums() for each in both))
        if number % 3 == 2 and both[0].sequences:
            for each in both:
                each.begin_own_step()
                each.reset_gradients()
    assert 0 < void < 12
    assert same(*both)


@pytest.mark.parametrize("changes", [{"gradients": torch.bfloat16}, {"optimizer": AdamW8Bit()}])
def test_what_has_no_kernel_is_refused(changes: dict[str, Any], device: Device) -> None:
    arrangement = Arrangement(2, EVERY, trained=EVERY)
    settings = settings_of({"precision": torch.bfloat16}, arrangement)
    with pytest.raises(ValueError, match="no weights are trained on the device"):
        Replica(program_in(torch.bfloat16), None, replace(settings, **changes), device)
