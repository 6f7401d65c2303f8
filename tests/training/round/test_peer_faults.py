"""Whom a replica goes on without: peers that spoil rings, and heads at which nothing is decided."""

from dataclasses import replace

import pytest
from test_electorate import A, B, C, head_of, lease, view

from atom.swarm.chain.commit import Voter
from atom.swarm.records.lease import PeerState
from atom.training.round import Terms
from atom.training.round.attempt import Attempt, Stage
from atom.training.round.batch_policy import GlobalBatch
from atom.training.round.electorate import Electorate
from atom.training.round.events import Phase, View
from atom.training.round.faults import (
    FIRST_HOLD_S,
    HOLD_OUT,
    Backoff,
    RingFaults,
    StallDetector,
)
from atom.training.round.round_state import RoundContext, RoundState

HEAD = head_of(A, B, C)
CHOSEN = Electorate(HEAD.voters)


def context_of(*others: Voter) -> RoundContext:
    """A's, with the leases of these."""
    terms, state = Terms(GlobalBatch(8)), RoundState(HEAD, b"s" * 32, 0.0)
    context = RoundContext(A, terms, lambda domain, payload: b"", state)
    context.view = view(*map(lease, others))
    return context


LIMIT_S = HOLD_OUT * (12.0 + context_of(B, C).promise_patience())


# ---- backing off


def test_backoff_doubles_and_forgets() -> None:
    waits = Backoff(10.0, 40.0)
    ends = [0.0]
    for _ in range(4):
        waits.fail("a", ends[-1])
        ends.append(ends[-1] + min(10.0 * 2 ** (len(ends) - 1), 40.0))
        assert waits.holds("a", ends[-1] - 0.1)
        assert not waits.holds("a", ends[-1])
    assert waits.failures("a") == 4
    waits.fail("a", ends[-1] + 10_000.0)
    assert waits.failures("a") == 1
    waits.forgive("a")
    assert waits.held(ends[-1] + 10_000.0) == frozenset()


# ---- rings


class Rings:
    """A's memory of rings of A, B and C that break as it is told."""

    def __init__(self, mate: Voter = B) -> None:
        self.context = context_of(mate, C)
        self.faults = RingFaults(self.context)

    def break_between(self, speaker: Voter, suspect: Voter) -> None:
        self.faults.broke(frozenset({(speaker.peer_id, suspect.peer_id)}))

    def next_head(self) -> None:
        """All three arrive there."""
        following = replace(HEAD, digest=b"i" * 32, round=HEAD.round + 1)
        self.context.enter_head(following, b"t" * 32)
        self.context.view = view(*(lease(voter, head=following.digest) for voter in (B, C)))
        self.faults.new_head()

    def left_out(self) -> set[str]:
        return set(self.faults.left_out())


@pytest.mark.parametrize(
    ("mate", "without"), [(B, {C.peer_id}), (Voter(B.peer_id, b"n" * 16), set())]
)
def test_ring_faults_dispense_with_nobody_that_a_quorum_needs(
    mate: Voter, without: set[str]
) -> None:
    """A restarted mate has no vote that would make another's needless."""
    rings = Rings(mate)
    rings.break_between(A, C)
    invited = {A.peer_id, B.peer_id, C.peer_id}
    assert rings.faults.dispensable(CHOSEN, invited) == without


def test_ring_faults_leave_out_the_accused_and_then_whoever_is_in_both_pairs() -> None:
    rings = Rings()
    rings.break_between(B, C)
    assert rings.left_out() == {C.peer_id}
    rings.break_between(A, B)
    assert rings.left_out() == {B.peer_id}
    rings.break_between(A, C)
    assert rings.left_out() == set(), "nobody else has anything to average"
    rings.context.view = replace(rings.context.view, sequences=8)
    assert rings.left_out() == {B.peer_id, C.peer_id}, "everybody named"


def test_ring_faults_that_all_have_us_in_common_let_others_lead() -> None:
    rings = Rings()
    rings.break_between(B, A)
    assert not rings.faults.our_fault_it_seems, "one of two, and nobody knows which"
    rings.break_between(C, A)
    assert rings.faults.our_fault_it_seems


def test_ring_faults_by_our_own_word_let_others_lead() -> None:
    rings = Rings()
    rings.break_between(A, A)
    assert rings.faults.our_fault_it_seems
    assert rings.left_out() == set(), "never ourselves"


def test_ring_faults_keep_a_culprit_out_of_the_next_rounds_for_a_while() -> None:
    rings = Rings()
    rings.break_between(A, C)
    rings.next_head()
    assert rings.left_out() == {C.peer_id}
    rings.context.now += FIRST_HOLD_S
    assert rings.left_out() == set()


def test_ring_faults_try_earlier_culprits_again_before_we_go_on_alone() -> None:
    rings = Rings()
    rings.break_between(A, C)
    rings.next_head()
    rings.break_between(A, B)
    assert rings.left_out() == {B.peer_id}, "nobody but C is left"


def test_ring_faults_leave_out_a_peer_that_cannot_hand_out_what_it_accepted() -> None:
    rings = Rings()
    rings.faults.not_served({A, C})
    assert rings.left_out() == {C.peer_id}
    rings.next_head()
    assert rings.left_out() == set()


# ---- heads at which nothing is decided


class Waiting:
    """We, at a head at which nothing is decided."""

    def __init__(self) -> None:
        self.context = context_of(B, C)
        self.stall = StallDetector(self.context)

    def wait(self, seconds: float, cause: bool = True) -> float:
        ends_at = self.context.now + seconds
        while self.context.now < ends_at:
            self.context.now += 0.5
            self.stall.tick(cause, leading=False)
        return self.context.patience_lost

    def fail(self, stage: Stage, refused: bool = False) -> None:
        """An attempt of ours, because of C."""
        attempt = Attempt(CHOSEN, stage, 0.0, 0.0)
        attempt.agreeable = {A, B}
        attempt.refused = {C.peer_id} if refused else set()
        attempt.votes = dict.fromkeys(attempt.agreeable, b"")
        self.stall.learn(attempt)


def test_stall_is_time_in_which_the_head_could_have_been_decided() -> None:
    waiting = Waiting()
    assert waiting.wait(10 * LIMIT_S, cause=False) == 0
    assert waiting.wait(0.9 * LIMIT_S) < 1
    assert waiting.wait(0.2 * LIMIT_S) >= 1


@pytest.mark.parametrize("phase", [Phase.PROMISED, Phase.HOLDING])
def test_stall_goes_on_while_we_wait_for_a_coordinator(phase: Phase) -> None:
    waiting = Waiting()
    waiting.context.phase = phase
    assert waiting.wait(1.1 * LIMIT_S, cause=False) >= 1


def test_stall_stands_still_in_a_ring_ours_or_the_others() -> None:
    ours, theirs = Waiting(), Waiting()
    ours.context.phase = Phase.REDUCING
    assert ours.wait(10 * LIMIT_S) == 0
    fresh = theirs.context.view.fresh.values()
    rings = {each.peer_id: replace(each, state=PeerState.REDUCING) for each in fresh}
    theirs.context.view = View(fresh=rings)
    assert theirs.wait(10 * LIMIT_S) == 0


def test_stall_needs_others_in_sight() -> None:
    waiting = Waiting()
    waiting.context.view = View()
    assert waiting.wait(10 * LIMIT_S) == 0


def test_stall_takes_longer_where_rings_do() -> None:
    waiting = Waiting()
    waiting.context.ring_s = 100.0
    assert waiting.wait(5 * LIMIT_S) < 1


def test_stall_gives_up_the_silent_and_not_those_that_refuse() -> None:
    silent, unwilling = Waiting(), Waiting()
    silent.fail(Stage.ACCEPT)
    unwilling.fail(Stage.ACCEPT, refused=True)
    assert not silent.stall.given_up()
    assert silent.wait(1.1 * LIMIT_S) >= 1
    assert unwilling.wait(1.1 * LIMIT_S) >= 1
    assert silent.stall.given_up() == {C}
    assert not unwilling.stall.given_up()


def test_stall_is_made_good_by_the_deed_itself_only() -> None:
    waiting = Waiting()
    waiting.fail(Stage.ACCEPT)
    waiting.wait(1.1 * LIMIT_S)
    waiting.stall.forgive(C, Stage.PREPARE)
    assert waiting.stall.given_up() == {C}, "it promises each time"
    waiting.stall.forgive(C, Stage.ACCEPT)
    assert not waiting.stall.given_up()


def test_stall_gives_up_a_voter_that_shows_another_head_all_the_while() -> None:
    waiting = Waiting()
    waiting.wait(1.1 * LIMIT_S)
    fresh = dict(waiting.context.view.fresh)
    fresh[C.peer_id] = replace(fresh[C.peer_id], head=b"x" * 32)
    waiting.context.view = View(fresh=fresh)
    assert waiting.stall.given_up() == {C}
