"""A wrong clock is reported before the peer becomes invisible, and only then."""

import itertools

import pytest

from atom.daemon.peer.news import WINDOW_S, ClockWatch, clock_offset_s
from atom.swarm.identity import Identity
from atom.swarm.records.lease import LEASE_SECONDS, RENEW_SECONDS, Lease
from tests.event_list import EventList
from tests.swarm.swarm_samples import a_lease

ME, *OTHERS = (Identity.create().peer_id for _ in range(5))


class Watched:
    """A peer whose clock is `offset_s` ahead, in a swarm whose peers renew in turn."""

    def __init__(self, peers: int) -> None:
        self.events, self.notes = EventList(), list[str]()
        self.watch = ClockWatch(ME, self.events, self.notes.append)
        self.peers, self.now = OTHERS[:peers], 1000.0
        self.false: dict[str, float] = {}
        """Seconds by which a peer's own clock is wrong."""
        self.last_issued_at: float | None = None
        """Time at which all other peers stopped renewing their leases; None: they go on."""

    def reading(self, offset_s: float) -> dict[str, Lease]:
        leases = {}
        for number, peer in enumerate(self.peers):
            phase_s = number * RENEW_SECONDS / len(self.peers)
            alive_until = self.last_issued_at or self.now
            issued_at = (alive_until - phase_s) // RENEW_SECONDS * RENEW_SECONDS + phase_s
            if self.now < issued_at + LEASE_SECONDS:
                issued_at += self.false.get(peer, 0.0)
                leases[peer] = a_lease(peer, issued_at=issued_at)
        leases[ME] = a_lease(ME, issued_at=self.now + offset_s)
        return leases

    def live(self, offset_s: float, seconds: float = 2 * WINDOW_S) -> None:
        """Read leases every 0.7 s, and have them 0.3 s late."""
        for _ in range(int(seconds / 0.7)):
            leases = self.reading(offset_s)
            self.watch.look(leases, self.now + offset_s + 0.3, self.now)
            self.now += 0.7


@pytest.mark.parametrize("peers", [1, 2, 4])
@pytest.mark.parametrize("offset_s", [-7.5, -4.5, 4.8, 7.5])
def test_it_is_reported_once_while_others_still_see_this_peer(peers: int, offset_s: float) -> None:
    watched = Watched(peers)
    watched.live(offset_s)
    (event,) = watched.events.events
    assert event["event"] == "wrong-clock"
    assert abs(event["offset_s"] - offset_s) <= RENEW_SECONDS + 0.5
    (note,) = watched.notes
    assert ("ahead of" if offset_s > 0 else "behind") in note
    assert watched.watch.problem
    watched.live(0.0)
    assert watched.watch.problem == "", "it was set"


@pytest.mark.parametrize("peers", [0, 1, 4])
@pytest.mark.parametrize("offset_s", [-1.5, 0.0, 1.5])
def test_a_clock_that_is_right_enough_is_not(peers: int, offset_s: float) -> None:
    watched = Watched(peers)
    watched.live(offset_s)
    assert (watched.watch.problem, watched.notes) == ("", [])


def test_a_swarm_that_fell_silent_is_no_wrong_clock() -> None:
    """The DHT shows its leases until they expire, and they grow old."""
    watched = Watched(4)
    watched.live(0.0)
    watched.last_issued_at = watched.now
    watched.live(0.0)
    assert watched.notes == []


def test_a_minority_of_liars_says_nothing_of_our_clock() -> None:
    watched = Watched(4)
    watched.false = {OTHERS[0]: 1e9}
    watched.live(0.0)
    assert watched.notes == []


def test_the_last_lease_of_a_dead_peer_says_nothing() -> None:
    """A peer that starts again finds it, up to 8 s old."""
    watched = Watched(1)
    watched.last_issued_at = watched.now - 6.0
    watched.live(0.0)
    assert watched.notes == []


def test_as_many_as_disagree_decide() -> None:
    ages = {"a": -3.0, "b": -4.0, "c": 1.0}
    for order in itertools.permutations(ages.items()):
        assert clock_offset_s(order) == -3.0
    assert clock_offset_s([("a", 5.0), ("a", 1.0)]) == 0.0, "the youngest of a peer's counts"
    assert clock_offset_s([]) == 0.0
