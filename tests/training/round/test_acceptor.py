"""Promises that bind a process: an acceptor promises higher ballots only, accepts at a ballot that
it promised, keeps its slots apart and outlives its head; a coordinator finishes an accepted value;
a participant heeds the attempt that it promised, and no other. A voter that was not in the exchange
votes for a true value, and refuses lies about counts and norms."""

from dataclasses import replace

import pytest
from scene import (
    BALLOT,
    BATCH,
    GONE,
    HEAD,
    MATE,
    ME,
    NORM,
    RESULT,
    STATE,
    US,
    Scene,
    part,
    proposed,
    supported,
    vouched,
)

from atom.base.errors import Reason
from atom.swarm.chain import messages
from atom.swarm.chain.commit import Ballot, MemberCount, Value, Voter
from atom.swarm.chain.messages import Accept, Accepted, AcceptedVote, Prepare, Promise, Vouched
from atom.swarm.chain.succession import Evidence
from atom.training.round.attempt import value_to_finish
from atom.training.round.electorate import ORDINARY
from atom.training.round.events import Frozen, ResultFetched
from atom.training.round.round_state import RoundContext, RoundState, RoundTerms

BEYOND = replace(HEAD, digest=b"n" * 32, round=HEAD.round + 1)
VALUE = proposed(part(MATE, 64), part(GONE, 32))
"""Result of an exchange in which we were not."""
EVIDENCE = supported(VALUE, (MATE, GONE))


def ballot(attempt: int, voter: Voter = MATE) -> Ballot:
    return Ballot(attempt, voter.peer_id, voter.incarnation)


AT_FIVE = supported(VALUE, (MATE, GONE), ballot(5))


def test_a_promise_binds_when_a_catch_up_brings_us_back_to_a_head_that_we_had_left() -> None:
    terms, state = RoundTerms(BATCH), RoundState(HEAD, STATE, 0.0)
    context = RoundContext(ME, terms, US.sign, state)
    context.state.acceptor.promise(ORDINARY, BALLOT)
    context.enter_head(BEYOND, STATE)
    assert context.state.acceptor.highest_promised is None
    context.enter_head(HEAD, STATE)
    assert context.state.acceptor.highest_promised == BALLOT


# ---- what a coordinator has to finish

LOW, HIGH, HIGHER = (Accepted(ballot(n), replace(VALUE, round=n), EVIDENCE) for n in (1, 2, 3))


@pytest.mark.parametrize(
    ("reported", "finished"),
    [
        # nothing
        ([(None, None), (None, None)], None),
        # the highest
        ([(LOW, None), (HIGH, None), (None, None)], HIGH),
        # by a branch: a quorum's
        ([(None, HIGH), (None, LOW)], HIGH),
        # its own slot comes first
        ([(LOW, None), (None, HIGHER)], LOW),
    ],
)
def test_what_was_accepted_is_finished(
    reported: list[tuple[Accepted | None, Accepted | None]],
    finished: Accepted | None,
) -> None:
    promises = {
        Voter(str(n), b"i" * 16): Promise(HEAD.digest, BALLOT, *accepted, 8, 1.0, STATE, bytes(64))
        for n, accepted in enumerate(reported)
    }
    assert value_to_finish(promises) == finished


# ---- what a participant heeds


def promised() -> Scene:
    scene = Scene()
    scene.tick()
    scene.hear(Prepare(HEAD.digest, ballot(5)))
    assert [promise.ballot for promise in scene.sent(Promise)] == [ballot(5)]
    return scene


def call_for_a_branch(scene: Scene, attempt: int = 7) -> None:
    scene.now += 2.0  # a leader that calls again at once is ignored
    scene.machine._context.state.overdue = 2.0  # so no peer objects
    scene.hear(Prepare(HEAD.digest, ballot(attempt), tuple(sorted([ME, MATE]))))


def test_counting_that_stands_still_for_another_ballot_is_no_promise() -> None:
    """Each slot still promises its own."""
    scene = promised()
    call_for_a_branch(scene)
    scene.tell(Frozen(ballot(5), 64, 1.0))
    assert [said.ballot for said in scene.sent(Promise)] == [ballot(5), ballot(7)]


def test_what_was_accepted_is_said_with_every_promise_and_a_branch_hears_of_it() -> None:
    scene = promised()
    scene.hear(Accept(HEAD.digest, ballot(5), VALUE, AT_FIVE, ballot(5)))
    scene.tell(ResultFetched(RESULT, in_memory=True, norm=NORM))
    scene.hear(Prepare(HEAD.digest, ballot(6, GONE)), GONE)
    call_for_a_branch(scene)
    told = [(said.accepted, said.accepted_before_branch) for said in scene.sent(Promise)]
    accepted = Accepted(ballot(5), VALUE, AT_FIVE)
    assert told == [(None, None), (accepted, None), (None, accepted)]


def test_a_branch_call_below_the_ordinary_promise_gets_the_number_that_it_has_to_exceed() -> None:
    """A promise would report a value of a higher ballot, which its coordinator takes for a lie."""
    scene = promised()
    scene.hear(Accept(HEAD.digest, ballot(5), VALUE, AT_FIVE, ballot(5)))
    scene.tell(ResultFetched(RESULT, in_memory=True, norm=NORM))
    call_for_a_branch(scene, 3)
    [refusal] = scene.sent(messages.Nack)
    assert (refusal.promised, refusal.reason) == (ballot(5), Reason.BALLOT_TOO_LOW)
    assert len(scene.sent(Promise)) == 1
    call_for_a_branch(scene, 6)
    assert scene.sent(Promise)[-1].accepted_before_branch == Accepted(ballot(5), VALUE, AT_FIVE)


def test_the_next_attempt_is_above_what_a_voter_has_promised_to_others() -> None:
    scene = Scene()
    call = scene.until_sent(Prepare)
    for voter in (MATE, GONE):
        refusal = messages.Nack(call.parent, call.ballot, ballot(40, GONE), Reason.BALLOT_TOO_LOW)
        scene.hear(refusal, voter)
    scene.play(10.0)
    attempts = [prepare.ballot.attempt for prepare in scene.sent(Prepare)]
    assert (attempts[0], attempts[-1]) == (call.ballot.attempt, 41)


# ---- evidence for a value

SUCCESSOR = Ballot(2, GONE.peer_id, GONE.incarnation)


def hear_of(value: Value, evidence: Evidence, norm: float = NORM) -> Scene:
    """Promise to the mate's successor, which asks to finish this value; deliver its result."""
    scene = Scene()
    scene.tick()
    scene.hear(Prepare(HEAD.digest, SUCCESSOR), GONE)
    scene.hear(Accept(HEAD.digest, SUCCESSOR, value, evidence, value.origin), GONE)
    scene.tell(ResultFetched(value.result_digest, in_memory=True, norm=norm))
    return scene


def test_a_voter_that_was_absent_vouches_and_votes_for_an_earlier_value() -> None:
    """The mate died after the successor had accepted its value."""
    scene = hear_of(VALUE, EVIDENCE)
    assert scene.sent(Vouched) == [vouched(SUCCESSOR, ME, VALUE)]
    assert scene.sent(AcceptedVote) == []
    evidence = supported(VALUE, (ME, GONE), SUCCESSOR)
    scene.hear(Accept(HEAD.digest, SUCCESSOR, VALUE, evidence, SUCCESSOR), GONE)
    assert [vote.ballot for vote in scene.sent(AcceptedVote)] == [SUCCESSOR]
    assert scene.refusals == []


def test_a_voter_vouches_for_one_value_at_a_ballot() -> None:
    """A coordinator that lies asks for two values, and each is true."""
    scene = hear_of(VALUE, EVIDENCE)
    other = proposed(part(MATE, 64), part(GONE, 64))
    evidence = supported(other, (MATE, GONE))
    scene.hear(Accept(HEAD.digest, SUCCESSOR, other, evidence, other.origin), GONE)
    assert scene.sent(Vouched) == [vouched(SUCCESSOR, ME, VALUE)]
    assert scene.sent(AcceptedVote) == []


# ---- lies: most of them are in tests/attacks/test_one_lying_voter.py


@pytest.mark.parametrize(
    "parts",
    [
        (part(MATE, 64), part(ME, 32)),  # we never entered that exchange
        (part(MATE, 32), part(GONE, 32)),  # less than a batch
    ],
)
def test_counts_that_cannot_be_true_are_refused(parts: tuple[MemberCount, ...]) -> None:
    value = proposed(*parts)
    scene = hear_of(value, supported(value, (parts[0].voter, parts[1].voter)))
    assert scene.refusals == [Reason.BAD_WEIGHT]
    assert scene.sent(Vouched) == scene.sent(AcceptedVote) == []


def test_a_norm_that_the_result_does_not_have_is_refused() -> None:
    """Even a quorum of members may have signed it."""
    scene = hear_of(VALUE, EVIDENCE, norm=2.0)
    assert scene.refusals == [Reason.DIGEST_MISMATCH]
    assert f"value-refused {Reason.DIGEST_MISMATCH}" in scene.reports
    assert scene.sent(Vouched) == scene.sent(AcceptedVote) == []
