"""Local steps: as plain PyTorch's DiLoCo, shared bit by bit, and no peer's work is lost."""

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from atom.models.gpt3 import GPT3, initialise
from atom.optim.adamw import AdamW
from atom.optim.rate import RateSettings
from atom.swap.engine import PassCancelled
from atom.swap.host_store import StateForm
from atom.swarm.state.arenas import state_digest
from atom.training.replica.local_steps import WARM_UP_STEPS, LocalSteps
from atom.training.replica.replica import Replica
from atom.training.storage.run_storage import write_snapshot
from tests.training.conftest import NewDevice
from tests.training.plain_training import adamw
from tests.training.small_replica import (
    SEED,
    SEQUENCES,
    MicroBatch,
    apply,
    batches,
    config,
    contributed,
    filled,
    program,
    same,
)

RATE, OUTER_RATE, OUTER_MOMENTUM, CLIP_NORM = 1e-2, 0.7, 0.9, 0.5
PASSES = (2, 4)
"""Passes of the two peers in each round: each takes an inner step every two passes."""
INNER = 2 * SEQUENCES
NewReplica = Callable[..., Replica]


@pytest.fixture
def new_replica(new_device: NewDevice) -> NewReplica:
    def make(
        precision: torch.dtype = torch.float32, keeps_lost: bool = False, **settings: Any
    ) -> Replica:
        rule = partial(
            LocalSteps,
            keeps_lost=keeps_lost,
            inner_sequences=INNER,
            outer_rate=OUTER_RATE,
            outer_momentum=OUTER_MOMENTUM,
        )
        given = {
            "rate": RateSettings(RATE),
            "optimizer": AdamW(weight_decay=0.1),
            "clip_norm": CLIP_NORM,
            "update_rule": rule,
            "precision": precision,
        }
        return filled(new_device(), program(precision=precision), **{**given, **settings})

    return make


def batch(round: int, peer: int, place: int) -> MicroBatch:
    return batches(1, round * 100 + peer * 10 + place)[0]


def train(replica: Replica, round: int, peer: int, passes: int) -> None:
    replica.reset_gradients()
    for place in range(passes):
        replica.run_pass([batch(round, peer, place)])


def mean_of(replicas: Sequence[Replica]) -> Tensor:
    sums = sum(map(contributed, replicas), torch.zeros(replicas[0].elements))
    return sums / sum(replica.sequences for replica in replicas)


def take(replica: Replica, mean: Tensor, round: int, ours: int | None = None) -> None:
    ours = replica.sequences if ours is None else ours
    replica.begin_step(mean, float(mean.norm()), round, ours)
    replica.finish_step()


def play_round(replicas: Sequence[Replica], round: int) -> Tensor:
    for peer, replica in enumerate(replicas):
        train(replica, round, peer, PASSES[peer])
    mean = mean_of(replicas)
    for replica in replicas:
        take(replica, mean, round)
    return mean


def theta(replica: Replica) -> Tensor:
    return replica.state_arenas()["master"]


def weights(replica: Replica) -> Tensor:
    """Return the weights that passes use, as one vector."""
    return torch.cat([value.flatten() for value in replica.export_parameters().values()])


class DiLoCo:
    """The published algorithm in plain PyTorch: nothing of ours but model and samples."""

    def __init__(self) -> None:
        self.shared = GPT3(config())
        initialise(self.shared, SEED)
        self.outer = torch.optim.SGD(
            self.shared.parameters(), lr=OUTER_RATE, momentum=OUTER_MOMENTUM, nesterov=True
        )
        self.peers = [GPT3(config()) for _ in PASSES]
        self.inner = [adamw(peer, 0.1, lr=RATE, betas=(0.9, 0.95)) for peer in self.peers]

    def play_round(self, round: int) -> None:
        for number, (peer, inner) in enumerate(zip(self.peers, self.inner, strict=True)):
            peer.load_state_dict(self.shared.state_dict())
            for place in range(0, PASSES[number], 2):
                inner.zero_grad()
                losses = [peer(**batch(round, number, place + n)) for n in range(2)]
                torch.stack(losses).mean().backward()
                torch.nn.utils.clip_grad_norm_(peer.parameters(), CLIP_NORM)
                inner.step()
        shared = dict(self.shared.named_parameters())
        for name, parameter in shared.items():
            parameter.grad = sum(
                (
                    (parameter - dict(peer.named_parameters())[name]).detach() * passes
                    for peer, passes in zip(self.peers, PASSES, strict=True)
                ),
                torch.zeros_like(parameter),
            ) / sum(PASSES)
        self.outer.step()


def test_rounds_are_those_of_plain_pytorch(new_replica: NewReplica) -> None:
    replicas, plain = [new_replica() for _ in PASSES], DiLoCo()
    for round in range(1, 4):
        play_round(replicas, round)
        plain.play_round(round)
        assert same(*replicas)
        for replica in replicas:
            assert torch.equal(weights(replica), weights(replicas[0]))
            for name, expected in plain.shared.named_parameters():
                found = replica.export_parameters()[name]
                torch.testing.assert_close(found, expected.detach(), rtol=1e-3, atol=2e-4)


@pytest.mark.parametrize("form", [StateForm.EXACT, StateForm.SPLIT, StateForm.HALF])
def test_in_sixteen_bits_what_is_shared_is_equal_and_wide(
    new_replica: NewReplica, form: StateForm
) -> None:
    replicas = [new_replica(torch.bfloat16, state_form=form) for _ in PASSES]
    for round in range(1, 3):
        play_round(replicas, round)
    assert same(*replicas)
    assert theta(replicas[0]).dtype == torch.float32
    for replica in replicas:
        assert torch.equal(weights(replica), weights(replicas[0]))


def test_a_joiner_takes_the_snapshot_and_missed_results(
    new_replica: NewReplica, tmp_path: Path
) -> None:
    giver, other, joiner = (new_replica() for _ in range(3))
    play_round([giver, other], 1)
    digest = state_digest(giver.state_arenas())
    snapshot = write_snapshot(tmp_path, 1, b"h" * 32, digest, giver.state_arenas())
    missed = play_round([giver, other], 2)

    joiner.load_state(snapshot.load(), 1)
    apply(joiner, missed, 2)
    assert same(joiner, giver)
    assert torch.equal(weights(joiner), weights(giver))


def test_a_joiner_warms_its_own_optimizer_up(new_replica: NewReplica) -> None:
    founder, joiner = new_replica(), new_replica()
    joiner.load_state(founder.state_arenas(), 5)
    before = weights(founder).clone()
    for replica in (founder, joiner):
        train(replica, 6, 0, 2)
        replica.finish_step()
    whole, first = (torch.linalg.norm(weights(each) - before) for each in (founder, joiner))
    torch.testing.assert_close(first, whole / (WARM_UP_STEPS + 1), rtol=1e-3, atol=0.0)


# ---- nothing is lost


def train_on(replica: Replica, round: int, places: Sequence[int]) -> None:
    """Passes after an offer was made."""
    for place in places:
        replica.run_pass([batch(round, 0, place)])
    replica.finish_step()


@pytest.mark.parametrize(
    "offered_in", [torch.float32, torch.bfloat16], ids=["as it is", "rounded, with a coarse codec"]
)
def test_under_an_exchange_it_goes_on_and_keeps_what_it_does(
    new_replica: NewReplica, offered_in: torch.dtype
) -> None:
    """Check the formula of the module bit by bit: later local steps, and the rounding error of the
    offer, are added to the new weights."""
    coarse = offered_in == torch.bfloat16
    replica, other = (new_replica(keeps_lost=coarse) for _ in PASSES)
    play_round([replica, other], 1)
    train(replica, 2, 0, 2)
    train(other, 2, 1, 4)
    mean, old = mean_of([replica, other]), theta(replica).clone()
    cut, whole = weights_in_place(replica), old - weights_in_place(other)
    offered, of_other = ((old - w).to(offered_in).float() for w in (cut, weights_in_place(other)))
    assert torch.equal(contributed(replica), offered * replica.sequences)
    offered_loss = replica.loss_sum
    train_on(replica, 2, (2, 3, 4))
    led, loss_since = weights_in_place(replica) - old, replica.loss_sum - offered_loss
    take(replica, mean, 2, ours=2 * SEQUENCES)
    take(other, mean, 2)
    assert same(replica, other)
    assert torch.equal(weights_in_place(replica), theta(replica) + (led + offered))
    assert torch.equal(weights_in_place(other), theta(other) - (whole - of_other))
    assert torch.equal(whole, of_other) is not coarse
    assert replica.loss_sum == pytest.approx(loss_since), "of losses, too, what is taken goes"
    assert (replica.sequences, replica.until_step) == (3 * SEQUENCES, INNER - SEQUENCES)


@pytest.mark.parametrize(
    ("taken", "unstepped", "kept"),
    [(2, 0, 0.5), (2, 1, 0.5), (0, 0, 1.0)],
    ids=["an earlier offer was taken", "a pass that no step has used is no part of it", "missing"],
)
def test_what_a_round_did_not_take_of_the_latest_offer_is_in_the_next_one(
    new_replica: NewReplica, taken: int, unstepped: int, kept: float
) -> None:
    """The contributed share of the weight difference equals the share of the sequences."""
    replica, other = new_replica(), new_replica()
    train(replica, 1, 0, 2)
    train(other, 1, 1, 4)
    mean = mean_of([replica if taken else other])
    train_on(replica, 1, (2, 3))
    own = mean_of([replica])
    train_on(replica, 1, range(4, 4 + unstepped))
    take(replica, mean, 1, ours=taken * SEQUENCES)
    take(other, mean, 1, ours=0 if taken else None)
    assert same(replica, other)
    way = theta(replica) - weights_in_place(replica)
    torch.testing.assert_close(way, kept * own, rtol=1e-4, atol=1e-6)
    assert replica.sequences == (4 - taken + unstepped) * SEQUENCES
    if not unstepped:
        torch.testing.assert_close(mean_of([replica]), way, rtol=0.0, atol=1e-6)


def test_a_validation_that_breaks_off_leaves_the_weights(new_replica: NewReplica) -> None:
    replica = new_replica()
    train(replica, 1, 0, 2)
    replica.finish_step()
    before = weights_in_place(replica)
    with pytest.raises(PassCancelled):
        replica.evaluate([batch(9, 9, 9)], lambda: True)
    assert torch.equal(weights_in_place(replica), before)


@pytest.fixture
def coarse_replica(new_replica: NewReplica) -> NewReplica:
    """Return a replica of a run with a coarse codec."""
    return lambda: new_replica(keeps_lost=True)


def contributed_once(replica: Replica) -> tuple[Tensor, Tensor]:
    """Return the replica's contribution, and the part that an exchange sent."""
    offer, share = replica.contribution(), torch.linspace(0.0, 1.0, replica.elements)
    whole = offer.part(0, replica.elements).clone()
    for start in range(0, replica.elements, 64):
        stop = min(start + 64, replica.elements)
        offer.record_lost(start, offer.part(start, stop) * share[start:stop])
    return whole, offer.part(0, replica.elements)


@pytest.mark.parametrize("goes_on", [False, True])
def test_what_a_codec_took_away_stays_in_the_weights(
    coarse_replica: NewReplica, goes_on: bool
) -> None:
    """Without the sent difference, the weights are at their old values: the remaining error is in
    the peer's next difference, and no other peer gets it."""
    replica, other = coarse_replica(), coarse_replica()
    train(replica, 1, 0, 2)
    whole, sent = contributed_once(replica)
    before, ours = weights_in_place(replica), replica.sequences
    lost, done = whole * torch.linspace(0.0, 1.0, len(whole)), theta(replica) - before
    assert torch.equal(sent, (whole / ours - lost / ours).bfloat16().float() * ours)
    if goes_on:
        train_on(replica, 1, (2, 3))
    since = weights_in_place(replica) - before
    take(replica, whole / ours, 1, ours)
    take(other, whole / ours, 1, ours=0)
    assert same(replica, other)
    way = theta(replica) - weights_in_place(replica)
    torch.testing.assert_close(way, done - sent / ours - since, rtol=0.0, atol=1e-6)
    assert replica.sequences == (2 * SEQUENCES if goes_on else 0)
    before = weights_in_place(replica)
    assert not torch.equal(before, theta(replica))
    assert replica.evaluate([batch(9, 9, 9)]) == other.evaluate([batch(9, 9, 9)])
    assert torch.equal(weights_in_place(replica), before), "validation sees what is shared"
    assert torch.equal(replica.own_state()["master"], before)
    train_on(replica, 2, (0, 1))
    moved = before - weights_in_place(replica)
    torch.testing.assert_close(mean_of([replica]), way + moved, rtol=2**-8, atol=1e-6)


def test_after_an_exchange_in_vain_it_offers_what_that_sent_and_later_all(
    coarse_replica: NewReplica,
) -> None:
    """Either attempt may be committed: the remaining error stays in both cases."""
    replica = coarse_replica()
    train(replica, 1, 0, 2)
    _, sent = contributed_once(replica)
    assert torch.equal(contributed(replica), sent)
    train_on(replica, 1, (2, 3))
    all_of_it = theta(replica) - weights_in_place(replica)
    assert torch.equal(mean_of([replica]), all_of_it.bfloat16().float())


def test_of_a_sum_a_peer_with_few_sequences_keeps_what_one_with_many_would(
    coarse_replica: NewReplica,
) -> None:
    """Else an owner that has just come would go far away."""
    replica = coarse_replica()
    train(replica, 1, 0, 2)
    whole = contributed(replica)
    lost, few = torch.ones(16), replica.sequences
    replica.contribution().record_lost(0, lost.clone(), sequences=100.0 * few)
    replica.contribution().record_lost(16, lost.clone(), sequences=few / 100.0)
    replica.contribution().record_lost(32, lost.clone())
    moved = whole - contributed(replica)
    expected = torch.cat([lost / 100, lost, lost])
    torch.testing.assert_close(moved[:48], expected, rtol=2**-8, atol=1e-4)
    assert not moved[48:].any()


def test_after_a_restart_it_is_still_there(coarse_replica: NewReplica) -> None:
    first, second = coarse_replica(), coarse_replica()
    train(first, 1, 0, 2)
    whole, _ = contributed_once(first)
    take(first, whole / first.sequences, 1)
    restart(first, second)
    assert not torch.equal(weights_in_place(second), theta(second))
    assert torch.equal(weights(second), weights(first))
    assert first.evaluate([batch(9, 9, 9)]) == second.evaluate([batch(9, 9, 9)])


# ---- a peer's own state in the next process


def restart(first: Replica, second: Replica, at_same_state: bool = True) -> dict[str, Tensor]:
    """Let `second` begin with the state of round 1 and with all that `first` saved of its own."""
    own = {name: tensor.clone() for name, tensor in first.own_state().items()}
    second.load_state(first.state_arenas(), 1)
    second.adopt_own(own, at_same_state)
    return own


@pytest.mark.parametrize("form", [StateForm.EXACT, StateForm.HALF])
def test_it_goes_on_where_it_was(new_replica: NewReplica, form: StateForm) -> None:
    settings = {"precision": torch.bfloat16, "state_form": form}
    first, second = new_replica(**settings), new_replica(**settings)
    play_round([first], 1)
    train(first, 2, 0, 2)
    if form == StateForm.EXACT:  # what is done under an offer is saved, too
        first.contribution()
        train_on(first, 2, (2, 3))
    restart(first, second)
    assert torch.equal(weights(second), weights(first))
    assert (second.sequences, second.loss_sum) == (first.sequences, first.loss_sum)
    assert second.sequences == (4 if form == StateForm.EXACT else 2) * SEQUENCES
    train(second, 3, 0, 2)
    train(first, 3, 0, 2)
    for replica in (first, second):
        replica.finish_step()
    torch.testing.assert_close(weights(second), weights(first), rtol=0.0, atol=3e-4)


def test_at_another_head_only_its_optimizer_goes_on(new_replica: NewReplica) -> None:
    first, second = new_replica(), new_replica()
    play_round([first], 1)
    train(first, 2, 0, 2)
    own = restart(first, second, at_same_state=False)
    assert torch.equal(weights_in_place(second), theta(second))
    again = dict(second.own_state())
    assert again.keys() == own.keys() - {"master"}, "its weights are the shared ones"
    assert not again.pop("count").any()
    assert all(torch.equal(again[name], own[name]) for name in again)


def test_what_does_not_fit_is_refused_and_changes_nothing(new_replica: NewReplica) -> None:
    replica = new_replica()
    train(replica, 1, 0, 2)
    own = {name: tensor.clone() for name, tensor in replica.own_state().items()}
    before = weights(replica).clone()
    for wrong in (
        {**own, "master": own["master"][1:]},
        {**own, "steps": torch.zeros(2)},
        {**own, "count": torch.zeros(2)},
        {name: tensor for name, tensor in own.items() if name != "exp_avg"},
    ):
        with pytest.raises(ValueError, match="does not fit"):
            replica.adopt_own(wrong, at_same_state=True)
    assert torch.equal(weights(replica), before)


def test_few_sequences_take_a_small_step(new_replica: NewReplica) -> None:
    """One pass of the two that an inner step wants: half the rate, once the round is frozen."""
    whole, half = new_replica(), new_replica()
    train(whole, 1, 0, 2)
    train(half, 1, 0, 1)
    assert not (theta(half) - weights_in_place(half)).any()
    for replica in (whole, half):
        replica.contribution()
    torch.testing.assert_close(
        torch.linalg.norm(theta(half) - weights_in_place(half)),
        torch.linalg.norm(theta(whole) - weights_in_place(whole)) / 2,
        rtol=0.05,
        atol=0.0,
    )


def test_a_mean_that_is_not_finite_changes_nothing(new_replica: NewReplica) -> None:
    replica = new_replica()
    before = state_digest(replica.state_arenas())
    with pytest.raises(ValueError, match="norm"):
        replica.begin_step(torch.zeros(replica.elements), float("inf"), 1)
    assert state_digest(replica.state_arenas()) == before
    assert replica.step_count == 0


def test_dropped_work_leaves_the_shared_weights(new_replica: NewReplica) -> None:
    replica, untouched = new_replica(), new_replica()
    train(replica, 1, 0, 2)
    assert replica.contribution().is_finite()
    replica.contribution().record_lost(0, torch.tensor([float("nan")]))
    assert not replica.contribution().is_finite()
    replica.drop_contribution()
    assert replica.sequences == 0
    assert torch.equal(weights(replica), weights(untouched))
    for each in (replica, untouched):
        train(each, 1, 0, 2)
    assert torch.equal(contributed(replica), contributed(untouched))


def weights_in_place(replica: Replica) -> Tensor:
    """The weights that passes use, as `theta` lies."""
    layout = replica.engines.store.layout
    flat = torch.zeros(replica.elements)
    for name, value in replica.export_parameters().items():
        layout.view(flat, name).copy_(value)
    return flat
