"""Evidence for a value: a voter that was not in the exchange votes for a true value, and refuses
each lie about counts, voters, the result and its norm."""

from collections.abc import Callable
from dataclasses import replace

import pytest
from scene import (
    BALLOT,
    GONE,
    HEAD,
    MATE,
    ME,
    NORM,
    Scene,
    part,
    proposed,
    strangers,
    supported,
    vouched,
)

from atom.base.errors import Reason
from atom.swarm.chain.commit import Ballot, Value
from atom.swarm.chain.messages import Accept, AcceptedVote, Nack, Prepare, Ring, Vouched
from atom.swarm.chain.succession import Evidence
from atom.training.round.events import ResultFetched, Send

VALUE = proposed(part(MATE, 64), part(GONE, 32))
"""Result of an exchange in which we were not, led by the mate."""
EVIDENCE = supported(VALUE, (MATE, GONE))
SUCCESSOR = Ballot(2, GONE.peer_id, GONE.incarnation)
Proposal = tuple[Value, Evidence]


def hear_of(value: Value, evidence: Evidence, norm: float = NORM) -> Scene:
    """Promise to the mate's successor, which asks to finish this value; deliver its result."""
    scene = Scene()
    scene.tick()
    scene.hear(Prepare(HEAD.digest, SUCCESSOR), GONE)
    scene.hear(Accept(HEAD.digest, SUCCESSOR, value, evidence, value.origin), GONE)
    scene.tell(ResultFetched(value.result_digest, in_memory=True, norm=norm))
    return scene


def test_a_voter_that_was_absent_vouches_and_votes_for_the_value_that_a_successor_finishes() -> (
    None
):
    """The mate died after the successor had accepted its value."""
    scene = hear_of(VALUE, EVIDENCE)
    assert scene.sent(Vouched) == [vouched(SUCCESSOR, ME, VALUE)]
    assert scene.sent(AcceptedVote) == []
    evidence = supported(VALUE, (ME, GONE), SUCCESSOR)
    scene.hear(Accept(HEAD.digest, SUCCESSOR, VALUE, evidence, SUCCESSOR), GONE)
    assert [vote.ballot for vote in scene.sent(AcceptedVote)] == [SUCCESSOR]
    assert scene.sent(Nack) == []


def test_a_voter_vouches_for_one_value_at_a_ballot() -> None:
    """A coordinator that lies asks for two values, and each is true."""
    scene = hear_of(VALUE, EVIDENCE)
    other = proposed(part(MATE, 64), part(GONE, 64))
    evidence = supported(other, (MATE, GONE))
    scene.hear(Accept(HEAD.digest, SUCCESSOR, other, evidence, other.origin), GONE)
    assert scene.sent(Vouched) == [vouched(SUCCESSOR, ME, VALUE)]
    assert scene.sent(AcceptedVote) == []


# ---- lies: one for each check; each lie alone is in tests/swarm/chain/test_succession.py


def an_invented_count() -> Proposal:
    return replace(VALUE, contributions=(part(MATE, 640), part(GONE, 32))), EVIDENCE


def too_few_sequences() -> Proposal:
    value = proposed(part(MATE, 32), part(GONE, 32))
    return value, supported(value, (MATE, GONE))


def our_count_in_an_exchange_that_we_never_entered() -> Proposal:
    value = proposed(part(MATE, 64), part(ME, 32))
    return value, supported(value, (MATE, ME))


def another_norm() -> Proposal:
    return replace(VALUE, gradient_norm=2.0), EVIDENCE


@pytest.mark.parametrize(
    ("lie", "reason"),
    [
        (an_invented_count, Reason.BAD_SIGNATURE),
        (too_few_sequences, Reason.BAD_WEIGHT),
        (our_count_in_an_exchange_that_we_never_entered, Reason.BAD_WEIGHT),
        (another_norm, Reason.DIGEST_MISMATCH),
    ],
)
def test_each_lie_of_a_coordinator_is_refused_by_name(
    lie: Callable[[], Proposal], reason: Reason
) -> None:
    scene = hear_of(*lie())
    assert [nack.reason for nack in scene.sent(Nack)] == [reason]
    assert f"value-refused {reason}" in scene.reports
    assert scene.sent(Vouched) == scene.sent(AcceptedVote) == []


def test_a_norm_that_the_result_does_not_have_is_refused() -> None:
    """Even a quorum of members may have signed it."""
    scene = hear_of(VALUE, EVIDENCE, norm=2.0)
    assert [nack.reason for nack in scene.sent(Nack)] == [Reason.DIGEST_MISMATCH]
    assert scene.sent(Vouched) == scene.sent(AcceptedVote) == []


# ---- calls in vain, and strangers


def test_a_leader_that_calls_in_vain_is_ignored_for_longer_each_time() -> None:
    scene, answers = Scene(), list[str]()
    scene.tick()
    waits_s = (0.0, 0.4, 0.2, 0.8, 0.3, 1.2, 0.4)
    for attempt, wait_s in enumerate(waits_s, start=1):
        scene.tick(wait_s)
        refused = len(scene.sent(Nack))
        scene.hear(Prepare(HEAD.digest, replace(BALLOT, attempt=attempt)))
        answers += [nack.reason for nack in scene.sent(Nack)[refused:]] or ["heeded"]
    heeded, busy = "heeded", str(Reason.BUSY)
    assert answers == [heeded, heeded, busy, heeded, busy, heeded, busy]


def test_claims_of_strangers_start_no_round() -> None:
    scene = Scene(mate_counts=0)
    scene.show(strangers(5).values(), 96)
    scene.show([MATE, GONE], 16)
    scene.play(10.0)
    assert scene.sent(Prepare) == []


def test_strangers_are_asked_and_not_waited_for() -> None:
    scene, crowd = Scene(), strangers(5)
    del scene.leases[GONE.peer_id]
    scene.show(crowd.values(), 96)
    scene.show([MATE], 64)
    scene.until_sent(Prepare)
    called_at = scene.now
    scene.until_sent(Ring)
    asked = {send.to for send in scene.done(Send) if isinstance(send.message, Prepare)}
    assert asked == {MATE.peer_id, *crowd}
    assert scene.now - called_at < 0.5, "promises are waited for one second at least"
