"""What counts as being held up, and who is given up for it."""

from dataclasses import replace

import pytest
from test_silent_peers import GONE, HEAD, MATE, ME, STATE, US, VOTERS, lease

from atom.base.reasons import Reason
from atom.swarm.chain.commit import Voter
from atom.swarm.records.lease import PeerState
from atom.training.round import Terms
from atom.training.round.attempt import Attempt, Stage
from atom.training.round.desk import Desk, HeadState
from atom.training.round.electorate import Electorate
from atom.training.round.events import Phase, View
from atom.training.round.hold_up import HOLD_OUT, HoldUp

LIMIT_S = HOLD_OUT * (12.0 + 1.0)


class Waiting:
    """We, at a head at which nothing is decided."""

    def __init__(self) -> None:
        self.desk = Desk(ME, Terms(96), US.sign, HeadState(HEAD, STATE, 0.0))
        self.desk.view = View(fresh={v.peer_id: lease(v, 32) for v in (MATE, GONE)})
        self.hold_up = HoldUp(self.desk)

    def wait(self, seconds: float, cause: bool = True) -> float:
        ends_at = self.desk.now + seconds
        while self.desk.now < ends_at:
            self.desk.now += 0.5
            self.hold_up.tick(cause, leading=False)
        return self.desk.patience_lost

    def fails(self, stage: Stage, refused: bool = False, of: Voter = GONE) -> None:
        """An attempt of ours, because of one of the three."""
        attempt = Attempt(Electorate(VOTERS), stage, 0.0, 0.0)
        attempt.agreeable = {*VOTERS} - {of}
        attempt.refused = {of.peer_id} if refused else set()
        attempt.votes = dict.fromkeys(attempt.agreeable, b"")
        self.hold_up.learn(attempt, Reason.NO_QUORUM)


def test_a_head_is_overdue_when_it_could_have_been_decided_for_so_long() -> None:
    waiting = Waiting()
    assert waiting.wait(10 * LIMIT_S, cause=False) == 0
    assert waiting.wait(0.9 * LIMIT_S) < 1
    assert waiting.wait(0.2 * LIMIT_S) >= 1
    assert waiting.wait(LIMIT_S) >= 2


@pytest.mark.parametrize("phase", [Phase.PROMISED, Phase.HOLDING])
def test_who_promised_has_a_cause(phase: Phase) -> None:
    waiting = Waiting()
    waiting.desk.phase = phase
    assert waiting.wait(1.1 * LIMIT_S, cause=False) >= 1


def test_a_ring_takes_as_long_as_it_takes() -> None:
    waiting = Waiting()
    waiting.desk.phase = Phase.REDUCING
    assert waiting.wait(10 * LIMIT_S) == 0


def test_seen_from_outside_a_ring_may_take_longer_but_not_for_ever() -> None:
    waiting = Waiting()
    fresh = waiting.desk.view.fresh.values()
    rings = {each.peer_id: replace(each, state=PeerState.REDUCING) for each in fresh}
    waiting.desk.view = View(fresh=rings)
    assert waiting.wait(9 * LIMIT_S) < 1
    assert waiting.wait(2 * LIMIT_S) >= 1


def test_who_sees_nobody_is_not_held_up_by_anybody() -> None:
    waiting = Waiting()
    waiting.desk.view = View()
    assert waiting.wait(10 * LIMIT_S) == 0


def test_long_rings_take_long_attempts() -> None:
    waiting = Waiting()
    waiting.desk.ring_s = 100.0
    assert waiting.wait(5 * LIMIT_S) < 1


def test_the_silent_are_given_up_first_then_who_refused() -> None:
    silent, unwilling = Waiting(), Waiting()
    silent.fails(Stage.ACCEPT)
    unwilling.fails(Stage.ACCEPT, refused=True)
    for waiting in (silent, unwilling):
        assert not waiting.hold_up.given_up()
        waiting.wait(1.1 * LIMIT_S)
    assert silent.hold_up.given_up() == {GONE}
    assert not unwilling.hold_up.given_up()
    unwilling.wait(LIMIT_S)
    assert unwilling.hold_up.given_up() == {GONE}


def test_only_the_deed_itself_makes_good() -> None:
    waiting = Waiting()
    waiting.fails(Stage.ACCEPT)
    waiting.wait(1.1 * LIMIT_S)
    waiting.hold_up.forgive(GONE, Stage.PREPARE)
    assert waiting.hold_up.given_up() == {GONE}, "it promises each time"
    waiting.hold_up.forgive(GONE, Stage.ACCEPT)
    assert not waiting.hold_up.given_up()


def test_who_shows_another_head_all_the_while_is_given_up() -> None:
    waiting = Waiting()
    waiting.wait(1.1 * LIMIT_S)
    fresh = dict(waiting.desk.view.fresh)
    fresh[GONE.peer_id] = replace(fresh[GONE.peer_id], head=b"x" * 32)
    waiting.desk.view = View(fresh=fresh)
    assert waiting.hold_up.given_up() == {GONE}


def test_who_is_given_up_is_asked_again_when_it_does_not_go_without() -> None:
    waiting = Waiting()
    waiting.fails(Stage.ACCEPT)
    waiting.fails(Stage.ACCEPT, of=MATE)
    waiting.wait(1.1 * LIMIT_S)
    alone = waiting.hold_up.chosen()
    assert alone is not None
    assert alone.survivors == (ME,)
    waiting.hold_up.learn(Attempt(alone, Stage.PREPARE, 0.0, 0.0), Reason.SUPERSEDED)
    assert waiting.hold_up.chosen() == Electorate(VOTERS)
    waiting.hold_up.learn(Attempt(Electorate(VOTERS), Stage.RING, 0.0, 0.0), Reason.RING_BROKEN)
    assert waiting.hold_up.chosen() == alone


def test_who_was_restarted_has_no_vote_to_ask_them_with() -> None:
    waiting = Waiting()
    waiting.desk.me = again = Voter(ME.peer_id, b"n" * 16)
    waiting.wait(2.2 * LIMIT_S)
    alone = waiting.hold_up.chosen()
    assert alone is not None
    assert again in alone.survivors
    waiting.hold_up.learn(Attempt(alone, Stage.PREPARE, 0.0, 0.0), Reason.SUPERSEDED)
    assert waiting.hold_up.chosen() == alone
