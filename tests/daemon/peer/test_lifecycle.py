"""States of a peer as other peers see them, and the decision to end."""

from dataclasses import replace

import pytest

from atom.daemon.peer.lifecycle import (
    HEEDED_S,
    LINGER_S,
    LONGEST_HEEDED_S,
    Ending,
    Facts,
    Life,
    ending,
    ending_note,
    peer_state,
)
from atom.swarm.records.lease import PeerState
from atom.training.round.events import Phase
from tests.manual_clock import ManualClock

LIVING = Facts(Phase.ACCUMULATING, now=100.0, started=True)


@pytest.mark.parametrize(
    ("facts", "state"),
    [
        (replace(LIVING, started=False), PeerState.STARTING),
        (LIVING, PeerState.ACCUMULATING),
        (replace(LIVING, paused=True), PeerState.PAUSED),
        (replace(LIVING, leave_by=120.0), PeerState.LEAVING),
        (replace(LIVING, phase=Phase.PROMISED, paused=True), PeerState.REDUCING),
        (replace(LIVING, phase=Phase.HOLDING), PeerState.REDUCING),
        (replace(LIVING, phase=Phase.STEPPING, leave_by=120.0), PeerState.STEPPING),
        (replace(LIVING, phase=Phase.SYNCING, started=False), PeerState.SYNCING),
    ],
)
def test_state_of_the_lease(facts: Facts, state: PeerState) -> None:
    assert peer_state(facts) is state


def test_after_the_last_round_it_waits_for_laggards_but_not_for_ever() -> None:
    done = replace(LIVING, finished_at=95.0)
    assert ending(done) is Ending.ROUNDS_REACHED
    assert ending(replace(done, laggards=1)) is None
    assert ending(replace(done, laggards=1, now=95.0 + LINGER_S)) is Ending.ROUNDS_REACHED
    assert ending(replace(done, phase=Phase.STEPPING)) is None
    seed = replace(done, now=10 * LINGER_S + 95.0, is_seed=True)
    assert ending(seed) is None
    assert ending(replace(seed, leave_by=1e6, settled_at=96.0)) is Ending.LEFT


def test_a_leave_waits_for_the_counted_work() -> None:
    leaving = replace(LIVING, leave_by=160.0, sequences=8)
    assert ending(leaving) is None
    assert ending(replace(leaving, sequences=0, settled_at=100.0)) is Ending.LEFT
    assert ending(replace(leaving, phase=Phase.REDUCING, settled_at=100.0)) is None
    dropped = replace(leaving, sequences=0, settled_at=100.0, work_dropped=True)
    assert ending(dropped) is Ending.LEFT_LATE


def test_a_leave_waits_until_the_others_can_go_on_but_not_for_ever() -> None:
    last = replace(LIVING, leave_by=160.0, settled_at=50.0, others_stuck=True)
    assert ending(last) is None
    assert ending(replace(last, others_stuck=False)) is Ending.LEFT
    assert ending(replace(last, now=160.0)) is Ending.LEFT


def test_the_deadline_ends_it_either_way() -> None:
    late = replace(LIVING, leave_by=99.0)
    assert ending(replace(late, sequences=8)) is Ending.LEFT_LATE
    assert ending(late) is Ending.LEFT
    stuck = replace(late, phase=Phase.REDUCING, sequences=8)
    assert ending(stuck) is Ending.LEFT_LATE


@pytest.mark.parametrize(
    ("ahead", "believed", "phase", "waited_s", "begins"),
    [
        (0, 0, Phase.ACCUMULATING, 0.0, True),
        (1, 1, Phase.ACCUMULATING, 10 * HEEDED_S, False),
        (1, 1, Phase.ACCUMULATING, LONGEST_HEEDED_S, True),
        (1, 0, Phase.ACCUMULATING, 0.0, False),
        (1, 0, Phase.SYNCING, HEEDED_S, False),
        (1, 0, Phase.ACCUMULATING, HEEDED_S, True),
    ],
)
def test_claims_that_nobody_can_prove_keep_nobody_from_work_for_ever(
    ahead: int, believed: int, phase: Phase, waited_s: float, begins: bool
) -> None:
    clock = ManualClock()
    life = Life(clock)
    life.update(phase=phase)
    life.may_begin(1, 1)
    clock.advance(waited_s)
    life.update()
    assert life.may_begin(ahead, believed) is begins


def test_a_peer_says_once_that_it_stays_for_others_and_once_that_the_run_is_finished() -> None:
    life = Life(ManualClock())
    life.leave(60.0)
    told = list[bool]()
    for settled_at in (None, 1.0, 1.0):
        life.update(others_stuck=True, settled_at=settled_at)
        told.append(bool(life.stays_for_others()))
    assert told == [False, True, False]
    assert [life.finished(), life.finished()] == [True, False]


def test_a_leave_is_settled_when_the_last_counted_work_is_committed() -> None:
    clock = ManualClock()
    life = Life(clock)
    life.leave(60.0)
    for _ in range(2):
        clock.advance(1.0)
        life.settled()
    assert life.facts.settled_at == 1.0


def test_the_last_line_names_the_loss_that_was_reached() -> None:
    assert ", loss 2.3441: " in ending_note(Ending.ROUNDS_REACHED, 100, 2.34412)
    assert "loss" not in ending_note(Ending.LEFT, 7)
