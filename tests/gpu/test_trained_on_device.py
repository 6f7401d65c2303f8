"""Layers that are trained on the device: whichever they are, no bit changes."""

import itertools
from collections.abc import Callable
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
}
ARRANGEMENTS = {
    "half": Arrangement(2, HALF_OF_THEM, trained=HALF_OF_THEM),
    "half, others stay": Arrangement(2, EVERY, trained=HALF_OF_THEM),
    "all": Arrangement(2, EVERY, trained=EVERY),
    "all, kept": Arrangement(2, EVERY, EVERY, trained=EVERY),
}
arranged = pytest.mark.parametrize("arrangement", ARRANGEMENTS.values(), ids=ARRANGEMENTS.keys())
PAIRS = [
    (form, name)
    for place, form in enumerate(FORMS)
    for other, name in enumerate(ARRANGEMENTS)
    if (place + other) % 2 == 0
]
paired = pytest.mark.parametrize(
    ("form", "arrangement"),
    [(form, ARRANGEMENTS[name]) for form, name in PAIRS],
    ids=[f"{form}-{name}" for form, name in PAIRS],
)
"""Each form with two arrangements, so each arrangement with two or three forms."""
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


@paired
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


@paired
def test_pauses_with_a_step_under_way(form: str, arrangement: Arrangement, device: Device) -> None:
    """The remaining parameters are stepped on the host."""

    def pause(replica: Replica, number: int) -> None:
        assert replica.engines.preempt(WAIT_S)
        with pytest.raises(PassCancelled):
            replica.run_pass(batches(number))
        replica.engines.resume()

    assert_trained_alike(device, form, arrangement, pause)


@arranged
def test_passes_that_are_broken_off(arrangement: Arrangement, device: Device) -> None:
    def break_off(replica: Replica, number: int) -> None:
        events, last = itertools.count(), number if number % 2 else 4 * number
        with pytest.raises(PassCancelled):
            replica.run_pass(batches(number), lambda: replica.breakable and next(events) > last)

    assert_trained_alike(device, "bfloat16", arrangement, break_off)


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


@paired
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
    for number in range(12):
        ended = []
        for each in both:
            each._limits = replace(each._limits, exponent=8 + 2 * number)
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
    assert 0 < void < 24
    assert same(*both)


@pytest.mark.parametrize("changes", [{"gradients": torch.bfloat16}, {"optimizer": AdamW8Bit()}])
def test_what_has_no_kernel_is_refused(changes: dict[str, Any], device: Device) -> None:
    arrangement = Arrangement(2, EVERY, trained=EVERY)
    settings = settings_of({"precision": torch.bfloat16}, arrangement)
    with pytest.raises(ValueError, match="no weights are trained on the device"):
        Replica(program_in(torch.bfloat16), None, replace(settings, **changes), device)
