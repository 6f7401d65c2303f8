"""Whom a coordinator goes without: nobody whose vote the rest would lack."""

from dataclasses import replace

import pytest
from test_electorate import A, B, C, head_of, lease, view

from atom.swarm.chain.commit import Ballot, Contribution, Voter
from atom.swarm.chain.messages import Promise, Suspect
from atom.training.round import Terms
from atom.training.round.attempt import Attempt, Stage
from atom.training.round.desk import Desk, HeadState
from atom.training.round.electorate import Electorate
from atom.training.round.ring_watch import RingWatch
from atom.training.round.suspicions import FIRST_HOLD_S, REMEMBERED_S

HEAD = head_of(A, B, C)
CHOSEN = Electorate(HEAD.voters)


def watch_of(mate: Voter) -> RingWatch:
    """A's, after a ring that broke because of C, with `mate` in the place of B."""
    desk = Desk(A, Terms(8), lambda domain, payload: b"", HeadState(HEAD, b"s" * 32, 0.0))
    desk.view = view(lease(mate), lease(C))
    watch, ballot = RingWatch(desk), Ballot(1, A.peer_id, A.incarnation)
    attempt = Attempt(CHOSEN, Stage.RING, 0.0, 9.0, ballot=ballot)
    attempt.members = tuple(Contribution(v.peer_id, v.incarnation, 4, 1.0) for v in (A, mate, C))
    watch.hear(attempt, A.peer_id, Suspect(HEAD.digest, ballot, C.peer_id, "closed"))
    watch.judge(attempt)
    assert watch.left_out() == {C.peer_id}
    return watch


@pytest.mark.parametrize(
    ("mate", "without"), [(B, {C.peer_id}), (Voter(B.peer_id, b"n" * 16), set())]
)
def test_who_was_restarted_has_no_vote_to_make_another_s_needless(
    mate: Voter, without: set[str]
) -> None:
    invited = {A.peer_id, B.peer_id, C.peer_id}
    assert watch_of(mate).dispensable(CHOSEN, invited) == without


def promise(attempt: Attempt, sequences: int) -> Promise:
    assert attempt.ballot is not None
    return Promise(HEAD.digest, attempt.ballot, None, None, sequences, 1.0, b"s" * 32)


class Rings:
    """A's watch over rings of A, B and C that break as it is told."""

    def __init__(self) -> None:
        self.desk = Desk(A, Terms(8), lambda domain, payload: b"", HeadState(HEAD, b"s" * 32, 0.0))
        self.desk.view = view(lease(B), lease(C))
        self.watch = RingWatch(self.desk)

    def attempt(self) -> Attempt:
        return Attempt(CHOSEN, Stage.RING, 0.0, 9.0, ballot=Ballot(1, A.peer_id, A.incarnation))

    def breaks(self, speaker: Voter, suspect: Voter | None) -> None:
        """Of ours, and this is what was said."""
        attempt = self.attempt()
        attempt.members = tuple(Contribution(v.peer_id, v.incarnation, 4, 1.0) for v in (A, B, C))
        assert attempt.ballot is not None
        named = suspect.peer_id if suspect else ""
        words = Suspect(self.desk.head.digest, attempt.ballot, named, "closed")
        self.watch.hear(attempt, speaker.peer_id, words)
        self.watch.judge(attempt)

    def next_head(self) -> None:
        """All three arrive there."""
        following = replace(HEAD, digest=b"i" * 32, round=HEAD.round + 1)
        self.desk.enter(following, b"t" * 32)
        leases = (lease(voter, head=following.digest) for voter in (B, C))
        self.desk.view = view(*leases)


def test_who_breaks_every_ring_with_somebody_else_lets_others_lead() -> None:
    rings = Rings()
    rings.breaks(B, A)
    assert not rings.watch.our_fault_it_seems, "one of two, and nobody knows which"
    rings.breaks(C, A)
    assert rings.watch.our_fault_it_seems
    assert not rings.watch.own_fault, "that would be our own word"


def test_who_shares_all_broken_rings_with_one_other_does_not() -> None:
    rings = Rings()
    rings.breaks(A, B)
    rings.breaks(C, B)
    assert not rings.watch.our_fault_it_seems
    assert rings.watch.left_out() == {B.peer_id}


def test_before_it_goes_on_alone_it_tries_again_with_who_failed_in_an_earlier_round() -> None:
    rings = Rings()
    rings.breaks(A, C)
    rings.next_head()
    assert rings.watch.left_out() == {C.peer_id}, "C is still held"
    rings.breaks(A, B)
    assert rings.watch.left_out() == {B.peer_id}, "nobody but C is left"


def test_that_all_others_failed_it_keeps_nobody_out_of_the_next_round() -> None:
    rings = Rings()
    rings.breaks(B, A)
    rings.breaks(C, A)
    assert rings.watch.left_out() == {B.peer_id, C.peer_id}
    rings.next_head()
    assert rings.watch.left_out() == set()


def test_after_a_break_that_nobody_explains_exchanges_are_by_parts_for_a_while() -> None:
    rings = Rings()
    rings.desk.terms = Terms(8, average_bytes=1 << 20)
    attempt = rings.attempt()
    attempt.promises = {voter: promise(attempt, 4) for voter in (A, B, C)}
    rings.watch.compose(attempt)
    assert attempt.shares == ()
    rings.breaks(B, None)
    assert rings.watch.left_out() == set()
    rings.watch.compose(attempt)
    assert len(attempt.shares) == 3
    rings.desk.now += REMEMBERED_S
    rings.watch.compose(attempt)
    assert attempt.shares == ()


def test_two_that_failed_each_other_own_no_part_so_that_nothing_goes_between_them() -> None:
    rings = Rings()
    rings.desk.terms = Terms(8, average_bytes=1 << 20)
    rings.breaks(B, C)
    rings.desk.now += FIRST_HOLD_S
    rings.next_head()
    attempt = rings.attempt()
    attempt.promises = {voter: promise(attempt, 4) for voter in (A, B, C)}
    rings.watch.compose(attempt)
    shares = {m.peer_id: n for m, n in zip(attempt.members, attempt.shares, strict=True)}
    assert shares[A.peer_id] > 0
    assert shares[B.peer_id] == shares[C.peer_id] == 0


def test_who_promised_no_work_is_not_in_the_exchange_unless_it_leads() -> None:
    rings = Rings()
    rings.desk.terms = Terms(8, average_bytes=1 << 20)
    attempt = rings.attempt()
    attempt.promises = {A: promise(attempt, 0), B: promise(attempt, 8), C: promise(attempt, 0)}
    rings.watch.compose(attempt)
    shares = {m.peer_id: n for m, n in zip(attempt.members, attempt.shares, strict=True)}
    assert shares.keys() == {A.peer_id, B.peer_id}
    assert shares[A.peer_id] == 0
