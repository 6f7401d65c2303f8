"""Which paused peers nobody waits for any more."""

import pytest
from test_round_loop import ANN, BOB, lease

from atom.swarm.chain.commit import Voter
from atom.swarm.records.lease import Lease, PeerState
from atom.training.membership_view import COUNTS_ON_S, PausedPeers

WORKS, PAUSED = PeerState.ACCUMULATING, PeerState.PAUSED


def reading(**states: PeerState) -> dict[str, Lease]:
    """Leases that say this of each."""
    voters = {"ann": ANN, "bob": BOB}
    told = {voters[name]: state for name, state in states.items()}
    return {voter.peer_id: lease(voter, state=state) for voter, state in told.items()}


def after(seen: PausedPeers, now: float, **states: PeerState) -> PausedPeers:
    return seen.after(reading(**states), True, now)


def ids(*voters: Voter) -> frozenset[str]:
    return frozenset(voter.peer_id for voter in voters)


def test_who_is_paused_counts_on_for_the_time_of_a_lease() -> None:
    seen = after(PausedPeers(), 10.0, ann=PAUSED, bob=WORKS)
    seen = after(seen, 12.0, ann=PAUSED, bob=PAUSED)
    assert seen.away(9.9 + COUNTS_ON_S) == ids()
    assert seen.away(10.0 + COUNTS_ON_S) == ids(ANN)
    assert seen.away(12.0 + COUNTS_ON_S) == ids(ANN, BOB)


def test_who_works_again_counts_at_once() -> None:
    seen = after(after(PausedPeers(), 0.0, ann=PAUSED), 50.0, ann=WORKS)
    assert seen.away(50.0) == ids()
    assert after(seen, 51.0, ann=PAUSED).away(52.0) == ids(), "and from the beginning"


def test_who_is_not_seen_any_more_is_forgotten() -> None:
    assert after(after(PausedPeers(), 0.0, ann=PAUSED), 50.0) == PausedPeers()


@pytest.mark.parametrize("state", [PeerState.REDUCING, PeerState.STEPPING, PeerState.SYNCING])
def test_a_round_does_not_end_a_pause_nor_begin_one(state: PeerState) -> None:
    seen = after(PausedPeers(), 0.0, ann=PAUSED, bob=WORKS)
    seen = after(seen, 1.0, ann=state, bob=state)
    assert seen.away(100.0) == ids(ANN)


def test_a_swarm_that_is_resumed_waits_for_those_after_us() -> None:
    """However long we all were paused: the time counts from when we work ourselves."""
    seen = after(PausedPeers(), 0.0, ann=PAUSED)
    seen = seen.after(reading(ann=PAUSED), False, 900.0)
    assert seen.away(900.0) == ids()
    seen = after(seen, 1000.0, ann=PAUSED)
    assert seen.away(999.0 + COUNTS_ON_S) == ids()
    assert seen.away(1000.0 + COUNTS_ON_S) == ids(ANN)
