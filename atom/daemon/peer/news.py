"""Lines that a daemon prints while it runs: arrival, rounds, pauses, missing peers, a wrong clock.

Rounds are reported at most every half a minute, in one line. The clock is injected, and nothing is
printed here.

A wrong clock on this machine is noticed while other peers can still see this peer.
A lease expires by wall time, 8 s after it was issued. If a peer's clock is 8 s behind, its leases
are expired when they arrive. If it is 8 s ahead, the peer sees no valid leases. In both cases the
peer is alone, and no error says why. hivemind compares clocks only when a node joins the DHT.

An offset shows in the age that other peers' leases seem to have when they are renewed. With equal
clocks the youngest lease of the last 20 s seems at least 0 s old, and at most about 2 s: the time
between two renewals, or two readings. A lease that is not renewed grows old and does not count.
"""

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping

from atom.base.events import EventSink
from atom.swarm.chain.commit import Value
from atom.swarm.identity import short_id
from atom.swarm.records.lease import GAP_SECONDS, RENEW_SECONDS, Lease

EVERY_S = 30.0
"""Shortest time between two lines about rounds."""
PAUSES_S = 2.0
"""Shortest time between two lines about pauses."""
LOOK_AROUND_S = 5.0
"""Time before the first line about other peers: reading a large swarm's leases takes a while."""
WAITING_S = 60.0
"""Time for which voters must be missing before a line names them. Usually the others go on without
them sooner."""
UNREACHED_S = 30.0
"""Time without a way to any other peer before a line says so."""
UNREACHED = (
    "no other peer can be reached, and none can reach this machine, so no round takes both in. One "
    "peer that others can dial is enough: start a peer with --map-ports; or forward the port of "
    "[network] data_port in a router, and name the router's public address in announce; or let a "
    "machine with a public address join"
)
MOST_NAMES = 3
"""Number of peers that a line names at most."""
WRONG_S = 2.0
"""Smallest offset that is reported: far below the 8 s at which a peer becomes invisible."""
WINDOW_S = 20.0
"""Age of the oldest reading that counts: some ten renewals, so that slow ones do not matter."""


class News:
    """State of the reports to the owner, so that each line is printed once.

    `lines` and `arrival` are called often, on one thread; `hear` is thread-safe.
    """

    def __init__(self, me: str, now: float) -> None:
        self._me = me
        self._due = now + LOOK_AROUND_S
        self._pauses_due = now
        self._heard_at = float("-inf")
        self._has_arrived = False
        self._swarm = 0
        """Newest round claimed by peers ahead of us, at the last look that saw such peers."""
        self._reason = ""
        self._round: int | None = None
        self._waiting_since: float | None = None
        self._has_told_lack = self._is_unreached = False

    def hear(self, now: float) -> None:
        """Note that the leases were read. Thread-safe."""
        self._heard_at = now

    def arrival(self, ours: int, ahead: Collection[int]) -> str:
        """Return a line about this peer's arrival, or about having caught up.

        Called again and again until no peer is ahead.

        Args:
            ours: our round.
            ahead: the rounds of all peers that claim a better head.

        Returns:
            The line; empty if nothing is new.
        """
        told, self._has_arrived = self._has_arrived, True
        if ahead:
            self._swarm = max(ahead)
            what = f"is back from round {ours:,}" if ours else "joins"
            fetched = "the missed rounds" if ours else "the state"
            words = f"the swarm is at round {self._swarm:,}; fetching {fetched}"
            return "" if told else f"peer {self._me} {what}: {words}; atom watch shows the swarm"
        if not told:
            return f"peer {self._me} at round {ours:,}; atom watch shows the swarm"
        if ours < self._swarm:
            return f"peers at round {self._swarm:,} are gone: no peer is ahead of round {ours:,}"
        return f"caught up: at round {ours:,}, like the swarm"

    def lines(
        self,
        reason: str,
        last: Value | None,
        others: Collection[str],
        missing: Collection[str],
        now: float,
        lacks: str = "",
        silent_s: float = 0.0,
    ) -> Iterator[str]:
        """Yield the lines that are due now.

        Args:
            reason: why this peer computes nothing; empty if it computes.
            last: value of the last commit since this peer started; None: no commit yet.
            others: ids of the peers whose leases are fresh.
            missing: ids of absent voters without which no round can be decided.
            now: monotonic time in seconds.
            lacks: name of the data that other peers must give before this peer can train; empty if
                it lacks nothing.
            silent_s: seconds for which no other peer could be reached although there are some.
        """
        if silent_s < UNREACHED_S:
            self._is_unreached = False
        elif not self._is_unreached:
            self._is_unreached = True
            yield UNREACHED
        if reason != self._reason and now >= self._pauses_due:
            self._reason, self._pauses_due = reason, now + PAUSES_S
            yield f"paused: {reason}" if reason else "resumed"
        # After a longer gap between readings all peers seem to be gone, although they may not be.
        hears = now - self._heard_at <= GAP_SECONDS
        if hears:
            yield from self._waiting(missing, now)
        if now < self._due:
            return
        if lacks and hears and not others and not self._has_told_lack:
            self._has_told_lack = True
            yield (
                f"{lacks} is missing or damaged, and no other peer is there to serve it: training "
                "begins when a peer comes. Frozen weights of the run can be given with --from "
                "FOLDER at the next start"
            )
        told = list(self._rounds(last))
        if told:
            self._due = now + EVERY_S
        yield from told

    def _rounds(self, last: Value | None) -> Iterator[str]:
        if last is None or last.round == self._round:
            return
        first = last.round if self._round is None else min(self._round + 1, last.round)
        self._round = last.round
        which = f"round {last.round:,}"
        if first < last.round:
            which = f"rounds {first:,} to {last.round:,}; round {last.round:,}"
        parts = [part for part in last.contributions if part.sequences]
        ours = sum(part.sequences for part in parts if part.peer_id == self._me)
        peers = "peer" if len(parts) == 1 else "peers"
        if ours == last.sequences:
            whose = ", all ours"
        elif ours:
            whose = f" of {len(parts):,} {peers}, {ours:,} of them ours"
        else:
            whose = f" of {len(parts):,} other {peers}"
        yield f"{which}: loss {last.loss:.4f}, {last.sequences:,} sequences{whose}"

    def _waiting(self, missing: Collection[str], now: float) -> Iterator[str]:
        if not missing:
            self._waiting_since = None
            return
        since = self._waiting_since
        self._waiting_since = now if since is None else since
        if since is not None and now - since >= WAITING_S:
            self._waiting_since = float("inf")  # this absence is reported once
            yield (
                f"waiting for {_names(missing)}: no round can be decided without them. Training "
                "continues when they are back; if that takes long, ask the run's owner"
            )


def _names(peers: Collection[str]) -> str:
    """Return the first few ids, shortened, and the number of the others."""
    first = [short_id(peer) for peer in sorted(peers)[:MOST_NAMES]]
    more = len(peers) - len(first)
    return ", ".join(first) + (f" and {more:,} more" if more else "")


def clock_offset_s(ages_s: Iterable[tuple[str, float]]) -> float:
    """Return the offset of our clock from the other peers' clocks, which most of them show.

    Args:
        ages_s: (peer id, age of a lease in seconds by our clock), of all recent readings.

    Returns:
        Seconds by which our clock is ahead (negative: behind), at least. 0.0 if there may be no
        offset, or there are no peers. Lying peers change the result only if they are at least half
        of all.
    """
    youngest = dict[str, float]()
    for peer, age_s in ages_s:
        youngest[peer] = min(age_s, youngest.get(peer, age_s))
    ages = youngest.values()
    offsets = sorted((min(age, 0.0) + max(age - RENEW_SECONDS, 0.0) for age in ages), key=abs)
    return offsets[(len(offsets) - 1) // 2] if offsets else 0.0


class ClockWatch:
    """Comparison of the clocks after each reading of leases. Call `look` on one thread."""

    def __init__(self, me: str, events: EventSink, note: Callable[[str], None]) -> None:
        """Prepare an empty window.

        Args:
            me: this peer's id, whose own lease does not count.
            events: gets `wrong-clock` once for each offset that appears.
            note: shows the user a message, at the same times.
        """
        self._me, self._events, self._note = me, events, note
        self._ages = list[tuple[float, str, float]]()
        """(monotonic time of the reading, peer id, age in seconds)"""
        self._issued: dict[str, float] = {}
        """Peer id → time of issue of its lease at the last reading, by that peer's clock."""
        self.problem = ""
        """Description of the offset for the user; empty if the clock is right. Thread-safe."""

    def look(self, leases: Mapping[str, Lease], unix_time: float, now: float) -> None:
        """Take a new reading into account, and report an offset when it appears.

        Args:
            leases: all leases that were read, by peer id.
            unix_time: time of our wall clock, in seconds since 1970.
            now: time of a monotonic clock, in seconds.
        """
        recent = [each for each in self._ages if each[0] > now - WINDOW_S]
        issued = {peer: lease.issued_at for peer, lease in leases.items() if peer != self._me}
        for peer, issued_at in issued.items():
            if issued_at > self._issued.get(peer, issued_at):
                recent.append((now, peer, unix_time - issued_at))
        self._ages, self._issued = recent, issued
        offset_s = clock_offset_s((peer, age) for _, peer, age in recent)
        if abs(offset_s) <= WRONG_S:
            self.problem = ""
            return
        way = "ahead of" if offset_s > 0 else "behind"
        was_right = not self.problem
        self.problem = (
            f"{abs(offset_s):.0f} s {way} other peers' clocks: they soon cannot see this peer"
        )
        if was_right:
            self._events.emit("wrong-clock", offset_s=round(offset_s, 1))
            self._note(f"this clock is {self.problem}; set it: `timedatectl set-ntp true`")
