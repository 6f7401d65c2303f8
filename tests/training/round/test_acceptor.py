"""Promises that bind a process: an acceptor promises higher ballots only, accepts at a ballot that
it promised, keeps its slots apart and outlives its head; a coordinator finishes an accepted value;
a participant heeds the attempt that it promised, and no other."""

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
)

from atom.base.errors import Reason
from atom.swarm.chain.commit import Ballot, Voter
from atom.swarm.chain.messages import Accept, Accepted, Nack, Prepare, Promise
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
        ([(None, None), (None, None)], None),
        ([(LOW, None), (HIGH, None), (None, None)], HIGH),
        ([(None, HIGH), (None, LOW)], HIGH),
        ([(LOW, None), (None, HIGHER)], LOW),
    ],
    ids=["nothing", "the highest", "by a branch: a quorum's", "its own slot comes first"],
)
def test_what_was_accepted_is_finished(
    reported: list[tuple[Accepted | None, Accepted | None]], finished: Accepted | None
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
    assert [(nack.promised, nack.reason) for nack in scene.sent(Nack)] == [
        (ballot(5), Reason.BALLOT_TOO_LOW)
    ]
    assert len(scene.sent(Promise)) == 1
    call_for_a_branch(scene, 6)
    assert scene.sent(Promise)[-1].accepted_before_branch == Accepted(ballot(5), VALUE, AT_FIVE)


def test_the_next_attempt_is_above_what_a_voter_has_promised_to_others() -> None:
    scene = Scene()
    call = scene.until_sent(Prepare)
    for voter in (MATE, GONE):
        refusal = Nack(call.parent, call.ballot, ballot(40, GONE), Reason.BALLOT_TOO_LOW)
        scene.hear(refusal, voter)
    scene.play(10.0)
    attempts = [prepare.ballot.attempt for prepare in scene.sent(Prepare)]
    assert (attempts[0], attempts[-1]) == (call.ballot.attempt, 41)
