"""Which peers are alive, judged by our own clock alone.

A lease proves life only by *changing*: a serial (or an incarnation) we have not seen before. How
long ago that was is measured on our clock, so a wrong wall clock, a replayed record or a slow
DHT replica cannot keep a dead peer alive. When we ourselves were not looking (frozen, suspended,
DHT unreachable), everything is unknown again and every timer starts over.
"""

import itertools
from collections.abc import Mapping
from dataclasses import dataclass

from atom.swarm.chain.commit import Voter
from atom.swarm.records.lease import LEASE_SECONDS, Lease, PeerState

GAP_SECONDS = 4.0
"""Longer than this between two readings, and what happened meanwhile is unknown."""
MAX_PEERS = 1024
"""Who was in no reading for the longest time makes room for others."""
MAX_INCARNATIONS = 4
"""Incarnations remembered per peer, for replay protection."""
MAX_ASKED = 256
_NEVER = float("-inf")
_TWIN_SIGNS = 2
"""An older lease of a dead process may turn up after a newer one; hardly twice."""


@dataclass
class _Sighting:
    """What we saw of one incarnation of one peer."""

    lease: Lease
    first_seen: float
    """When its first lease was read."""
    last_sign: float
    """When its serial was last news, if that was since the last gap; else `_NEVER`."""
    last_progress: float = _NEVER
    """Like `last_sign`, but the first lease does not count: it may be an old record."""


class LeaseBook:
    """Fed with each reading of the DHT; answers who is fresh, silent or gone.

    Times are seconds of one monotonic clock that also runs while the machine sleeps. Not
    thread-safe. `head`, counts and states in the leases are the peers' own words.
    """

    def __init__(self) -> None:
        self._peers: dict[str, dict[bytes, _Sighting]] = {}
        """By incarnation; whose lease was read last at the end."""
        self._asked_at: dict[Voter, float] = {}
        self.updated_at = _NEVER
        """When the last reading was."""
        self._watching_since = _NEVER

    def update(self, leases: Mapping[str, Lease], now: float) -> None:
        """Takes one successful reading (verified leases by peer id). Never call it for a failed
        one: an empty mapping means "nobody is there", which counts against everybody."""
        if not self.is_watching(now):
            self._forget_signs()
            self._watching_since = now
        self.updated_at = now
        for peer_id, lease in leases.items():
            self._see(peer_id, lease, now)
        for peer_id in list(self._peers)[:-MAX_PEERS]:
            del self._peers[peer_id]

    def is_watching(self, now: float) -> bool:
        """Whether our own readings have been close enough together to judge anybody."""
        return now - self.updated_at <= GAP_SECONDS

    def fresh(self, now: float) -> dict[str, Lease]:
        """The current lease of every peer that is alive: news within the lease time, neither
        left nor doubled. Empty while we are not watching."""
        living = (self._living(peer_id, now) for peer_id in self._peers)
        return {
            lease.peer_id: lease
            for lease in living
            if lease is not None and lease.state != PeerState.LEFT
        }

    def missing_for(self, voter: Voter, now: float) -> float:
        """Seconds of silence of exactly this incarnation, as far as we watched without a gap.

        Counted from its last sign of life; without one since our watch began, from the moment
        we watched *and* were first asked about it (a new voter's lease may still be on its way).
        Of one that lives twice, from when it did: what is sent to it may go to the other.
        Compare it with the whole grace time, lease time included. 0 while we are blind.
        """
        if not self.is_watching(now):
            return 0.0
        asked_at = self._asked_at.setdefault(voter, now)
        if len(self._asked_at) > MAX_ASKED:
            del self._asked_at[next(iter(self._asked_at))]
        sighting = self._peers.get(voter.peer_id, {}).get(voter.incarnation)
        if sighting is None or sighting.last_sign == _NEVER:
            return now - max(self._watching_since, asked_at)
        doubled_since = self._doubled_since(voter.peer_id, now)
        return now - (sighting.last_sign if doubled_since is None else doubled_since)

    def is_dead(self, voter: Voter, now: float) -> bool:
        """Whether this incarnation said goodbye, which is final; or is silent while its peer lives
        on as another one."""
        sighting = self._peers.get(voter.peer_id, {}).get(voter.incarnation)
        if sighting is not None and sighting.lease.state == PeerState.LEFT:
            return True
        current = self._living(voter.peer_id, now)
        return current is not None and current.incarnation != voter.incarnation

    def _living(self, peer_id: str, now: float) -> Lease | None:
        """Of the one incarnation that lives, as far as we know."""
        recent = self._recent(peer_id, now)
        if not recent or self._doubled_since(peer_id, now) is not None:
            return None
        return max(recent, key=lambda each: (each.last_sign, each.first_seen)).lease

    def _doubled_since(self, peer_id: str, now: float) -> float | None:
        """Since when two incarnations of one id live side by side (a cloned machine): trust
        neither. After a restart the old one makes no progress once the new one is seen."""
        recent = self._recent(peer_id, now)
        if any(
            a.last_progress > b.first_seen and b.last_progress > a.first_seen
            for a, b in itertools.combinations(recent, 2)
        ):
            return max(self._watching_since, *(each.first_seen for each in recent))
        return None

    def _recent(self, peer_id: str, now: float) -> list[_Sighting]:
        """Its incarnations that were news within the lease time. None while we are blind."""
        known = self._peers.get(peer_id, {}).values() if self.is_watching(now) else ()
        return [each for each in known if now - each.last_sign <= LEASE_SECONDS]

    def _see(self, peer_id: str, lease: Lease, now: float) -> None:
        known = self._peers[peer_id] = self._peers.pop(peer_id, {})
        sighting = known.get(lease.incarnation)
        if sighting is None:
            if len(known) >= MAX_INCARNATIONS:
                del known[min(known, key=lambda each: known[each].last_sign)]
            known[lease.incarnation] = _Sighting(lease, now, now)
        elif lease.serial > sighting.lease.serial and sighting.lease.state != PeerState.LEFT:
            sighting.lease = lease
            sighting.last_sign = sighting.last_progress = now

    def _forget_signs(self) -> None:
        """After a gap: serials stay known (against replays), signs of life do not."""
        for incarnations in self._peers.values():
            for sighting in incarnations.values():
                sighting.last_sign = _NEVER


class TwinWatch:
    """Looks at what the directory has under our own name: another process may live there, as the
    key was copied. What the others see of it is the book's: for them, both are silent."""

    def __init__(self) -> None:
        self._other: Lease | None = None
        self._signs = 0

    def sees(self, lease: Lease | None, me: Voter) -> bool:
        """Whether this lease shows that another process lives under our name. Of one that ended
        before we began the lease is there for a while, but it does not change."""
        if lease is None or lease.incarnation == me.incarnation:
            return False
        if self._other is None or lease.incarnation != self._other.incarnation:
            self._other, self._signs = lease, 0
        elif lease.serial > self._other.serial:
            self._other, self._signs = lease, self._signs + 1
        return self._signs >= _TWIN_SIGNS
