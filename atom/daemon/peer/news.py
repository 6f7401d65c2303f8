"""What a daemon says while nobody types, and how often: that it is there, who comes and goes,
rounds, pauses. Pure.

A line is said at once where little happens. Where much happens, lines become rarer and tell of
more: no swarm is so large, no round so short and nobody so restless that the terminal is flooded.
"""

from collections.abc import Collection
from collections.abc import Set as AbstractSet

from atom.swarm.chain.commit import Value
from atom.swarm.identity import short_id

LOST_S = 6.0
"""For so long a lease that had lapsed may come back before it is said."""
GATHER_S = 1.0
"""Those that come and go within such a time are told of together."""
SETTLE_S = 5.0
"""Whoever is seen so soon was there before us. A large swarm's leases take several readings."""
WAITING_S = 60.0
"""Who is waited for so long is told of: usually others go on without them after the grace time."""
MOST_NAMES = 3


class Arrival:
    """That this peer is there, and what it has to catch up with first."""

    def __init__(self) -> None:
        self._told = False
        self._swarm = 0
        """Of those who were ahead, the round that they showed last."""

    def line(self, me: str, ours: int, swarm: int | None) -> str:
        """`ours`: our round; `swarm`: that of those who are ahead; None: nobody is. Empty: nothing
        to say."""
        told, self._told = self._told, True
        if swarm is None and told and ours < self._swarm:
            return f"who was at round {self._swarm:,} is gone: nobody is ahead of round {ours:,}"
        if swarm is None and told:
            return f"caught up: at round {ours:,}, as the swarm is"
        self._swarm = swarm or 0
        if swarm is None:
            return f"peer {me} at round {ours:,}; atom watch shows how it goes"
        what = f"is back from round {ours:,}" if ours else "joins"
        fetched = "what it missed" if ours else "its state"
        words = f"peer {me} {what}: the swarm is at round {swarm:,}, {fetched} is being fetched"
        return "" if told else f"{words}; atom watch shows how it goes"


class Pace:
    """When the next line may be said: after `least_s`, after twice as long each time that one was
    waiting for it, up to `most_s`, and after `least_s` again once it was quiet for twice the time.
    """

    def __init__(self, least_s: float, most_s: float) -> None:
        self._least_s, self._most_s = least_s, most_s
        self._wait_s, self._said_at = least_s, float("-inf")

    def is_due(self, now: float) -> bool:
        return now - self._said_at >= self._wait_s

    def said(self, now: float) -> None:
        quiet = now - self._said_at >= 2 * self._wait_s
        self._wait_s = self._least_s if quiet else min(2 * self._wait_s, self._most_s)
        self._said_at = now


class Names:
    """Some peers of which a line tells: the first few by name, the others by number."""

    def __init__(self) -> None:
        self._first: list[str] = []
        self._number = 0

    def __bool__(self) -> bool:
        return self._number > 0

    def add(self, peer_id: str) -> None:
        self._number += 1
        if len(self._first) < MOST_NAMES:
            self._first.append(short_id(peer_id))

    def __str__(self) -> str:
        more = self._number - len(self._first)
        return ", ".join(self._first) + (f" and {more:,} more" if more else "")


class Company:
    """Who joined, who left, and who is not seen any more, among the others."""

    def __init__(self) -> None:
        self._known: set[str] = set()
        self._missing: dict[str, float] = {}
        self._pace = Pace(10.0, 600.0)
        self._began: float | None = None
        self._empty()

    def _empty(self) -> None:
        self._here, self._joined, self._left, self._lost = Names(), Names(), Names(), Names()
        self._news_since: float | None = None

    def line(self, present: Collection[str], left: AbstractSet[str], now: float) -> str:
        """`present`: whose leases are fresh; `left`: who said goodbye. Empty: nothing to say."""
        self._began = now if self._began is None else self._began
        settled = now - self._began >= SETTLE_S
        here = set(present)
        for peer in sorted(here - self._known):
            (self._joined if settled else self._here).add(peer)
        self._known |= here
        self._miss(self._known - here, left, now)
        if not (self._left or self._lost or self._joined or self._here):
            return ""
        self._news_since = now if self._news_since is None else self._news_since
        ripe = settled and now - self._news_since >= GATHER_S
        return self._tell(now) if ripe and self._pace.is_due(now) else ""

    def _miss(self, missing: AbstractSet[str], left: AbstractSet[str], now: float) -> None:
        since = self._missing
        self._missing = {peer: since.get(peer, now) for peer in missing}
        for peer, began in list(self._missing.items()):
            if peer in left or now - began >= LOST_S:
                (self._left if peer in left else self._lost).add(peer)
                self._known.discard(peer)
                del self._missing[peer]

    def _tell(self, now: float) -> str:
        kinds = {
            "here already": self._here,
            "left": self._left,
            "no longer seen": self._lost,
            "joined": self._joined,
        }
        words = "; ".join(f"{what}: {names}" for what, names in kinds.items() if names)
        self._empty()
        self._pace.said(now)
        others = len(self._known)
        return f"{words}; {others + 1:,} peers now" if others else f"{words}; alone now"


class Rounds:
    """The committed ones."""

    def __init__(self, me: str) -> None:
        self._me = me
        self._told: int | None = None
        self._pace = Pace(10.0, 60.0)

    def line(self, last: Value | None, now: float) -> str:
        """`last`: what was committed last, since we began. Empty: nothing to say."""
        if last is None or last.round == self._told or not self._pace.is_due(now):
            return ""
        first = last.round if self._told is None else min(self._told + 1, last.round)
        self._told = last.round
        self._pace.said(now)
        which = f"round {last.round:,}"
        if first < last.round:
            which = f"rounds {first:,} to {last.round:,}, the last"
        parts = [part for part in last.contributions if part.sequences]
        ours = sum(part.sequences for part in parts if part.peer_id == self._me)
        peers = "1 peer" if len(parts) == 1 else f"{len(parts):,} peers"
        of = (
            f" of {peers}, {ours:,} of them ours" if ours < last.sequences else ", all of them ours"
        )
        return f"{which}: loss {last.loss:.4f}, {last.sequences:,} mini-batches{of}"


class Waiting:
    """That no round can be decided, for want of whom, and what to do."""

    def __init__(self) -> None:
        self._since: float | None = None
        self._told = False

    def line(self, missing: Collection[str], now: float) -> str:
        """`missing`: voters that are waited for. Empty: nothing to say: others may go on without
        them soon, or it was said."""
        if not missing:
            self._since, self._told = None, False
            return ""
        self._since = now if self._since is None else self._since
        if self._told or now - self._since < WAITING_S:
            return ""
        self._told, names = True, Names()
        for peer in sorted(missing):
            names.add(peer)
        return (
            f"no round can be decided without {names}, not in sight: it goes on by itself once "
            "one can be; if that takes long, ask the run's owner"
        )


class Standstill:
    """That this peer is paused, and why, and that it is not any more."""

    def __init__(self) -> None:
        self._told = ""
        self._pace = Pace(2.0, 60.0)

    def line(self, reason: str, now: float) -> str:
        """`reason`: why it stands still; empty: it does not. Empty: nothing to say."""
        if reason == self._told or not self._pace.is_due(now):
            return ""
        self._told = reason
        self._pace.said(now)
        return f"paused: {reason}" if reason else "resumed"
