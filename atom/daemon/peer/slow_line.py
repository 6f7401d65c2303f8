"""Whether this peer's line costs the swarm more than the peer gives: found out by trying.

It stands aside for a few rounds, and stays there if the swarm is faster without it. That is a
pause: it has nothing to give, so no exchange waits for it, and it votes as before. Each peer judges
its own line, so nobody has to agree with anybody. Leases only say when a try is worth while; what
decides was measured here. A wrong guess costs some rounds without this peer, never a round.
"""

import statistics
from collections.abc import Mapping
from dataclasses import dataclass

from atom.base.units import format_seconds
from atom.swarm.chain.commit import Value
from atom.swarm.records.lease import Lease, PeerState, RoundUse
from atom.training.round.attempt import known_lines

SETTLING, ROUNDS = 2, 3
"""Rounds after each change that say nothing yet, and those that are compared."""
WORTHWHILE = 1.1
"""Times as fast as with this peer."""
CLEARLY = 2.0
"""Times faster than this line all others are: else it is not this one that the swarm waits for."""
EXPLAINED = 0.5
"""Of the time that passes wait for: what this line takes for an average."""
RESTS_S, RESTS_ROUNDS = 1800.0, 20
"""Until the next change, the longer of the two: a line may be another one by then."""
PATIENCE = 4.0
"""Times as long as it should take: then a try has failed."""
LEAST_OTHERS = 2
"""At work: one alone decides and averages nothing."""
Caps = tuple[float | None, float | None]
"""Of a line, up and down, in bits per second; None: no limit."""
_WORKS = {PeerState.ACCUMULATING, PeerState.REDUCING, PeerState.STEPPING}


@dataclass(frozen=True)
class Seen:
    """After a round."""

    round: int
    seconds: float
    sequences_per_s: float
    """Of the whole swarm."""
    has_ours: bool
    """Something of this peer's is in it."""
    suspect: bool
    """This line may be what the others wait for."""


def seen_after(
    last: Value, use: RoundUse, me: str, leases: Mapping[str, Lease], average_bytes: float
) -> Seen:
    """`last`, which took `use` of this peer, and what leases say of everybody's lines."""
    given = sum(part.sequences for part in last.contributions if part.peer_id == me)
    passes_s = use.utilisation * use.seconds
    waits_s = use.seconds - passes_s
    costly = 0 < given < last.sequences and waits_s > passes_s * given / (last.sequences - given)
    return Seen(
        last.round,
        use.seconds,
        last.sequences / use.seconds,
        given > 0,
        costly and _is_slowest(me, leases, average_bytes, EXPLAINED * waits_s),
    )


def _is_slowest(me: str, leases: Mapping[str, Lease], average_bytes: float, least_s: float) -> bool:
    lines = known_lines(leases, leases)
    ours = lines.pop(me, None)
    clearly = ours is not None and all(rate >= CLEARLY * ours for rate in lines.values())
    return clearly and ours is not None and average_bytes / ours >= least_s


class SlowLine:
    """For one thread. Times are of one clock."""

    def __init__(self) -> None:
        self.aside = ""
        """Why the peer is to stand aside, in words; empty: it is not."""
        self._paces: list[float] = []
        """Sequences per second of the rounds since the last change."""
        self.round = 0
        """The last that was looked at."""
        self._pace_with = self._seconds_with = 0.0
        self._is_trial = False
        self._until = float("-inf")
        self._caps: Caps = (None, None)

    def look(self, seen: Seen | None, others: int, now: float, caps: Caps = (None, None)) -> None:
        """`seen`: of a round that is new; `others`: peers at work now; `caps`: in force now. What
        was found of a line with other caps counts no more."""
        if caps != self._caps:
            self._caps, self._until, self._is_trial = caps, now, False
            self._change("")
        if seen is not None:
            self.round = seen.round
            if self.aside or seen.has_ours:
                self._paces.append(seen.sequences_per_s)
            self._after_round(seen, now, others >= LEAST_OTHERS)
        if self.aside and (others < LEAST_OTHERS or now >= self._until):
            self._come_back(now)

    def _after_round(self, seen: Seen, now: float, company: bool) -> None:
        known = self._paces[SETTLING:][-ROUNDS:]
        if len(known) < ROUNDS:
            return
        pace = statistics.median(known)
        if self._is_trial:
            self._judge(pace, now)
        elif seen.suspect and company and not self.aside and now >= self._until:
            self._pace_with, self._seconds_with, self._is_trial = pace, seen.seconds, True
            self._until = now + PATIENCE * (SETTLING + ROUNDS) * seen.seconds
            self._change("to see whether its line costs the swarm more than it gives")

    def _judge(self, pace: float, now: float) -> None:
        self._is_trial = False
        self._until = now + self._rests_s
        if pace < WORTHWHILE * self._pace_with:
            self._change("")
            return
        gain, minutes = pace / self._pace_with, 60 * round(self._rests_s / 60)
        self.aside = (
            f"its line costs the swarm more than it gives: {gain:.1f} times as fast without it; "
            f"it tries again after {format_seconds(minutes)}"
        )

    def _come_back(self, now: float) -> None:
        """For another look; after a trial that came to no end, not soon again."""
        self._until = now + self._rests_s if self._is_trial else now
        self._is_trial = False
        self._change("")

    @property
    def _rests_s(self) -> float:
        return max(RESTS_S, RESTS_ROUNDS * self._seconds_with)

    def _change(self, words: str) -> None:
        self.aside, self._paces = words, []


def at_work(me: str, leases: Mapping[str, Lease]) -> int:
    """Other peers that are."""
    return sum(each.state in _WORKS for peer, each in leases.items() if peer != me)
