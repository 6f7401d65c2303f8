"""Lines that a daemon prints while it runs: its arrival, rounds, pauses and missing peers.

Rounds are reported at most every half a minute, in one line. The clock is injected, and nothing is
printed here.
"""

from collections.abc import Collection, Iterator

from atom.swarm.chain.commit import Value
from atom.swarm.identity import short_id
from atom.swarm.records.lease import GAP_SECONDS

EVERY_S = 30.0
"""Shortest time between two lines about rounds."""
PAUSES_S = 2.0
"""Shortest time between two lines about pauses."""
LOOK_AROUND_S = 5.0
"""Time before the first line about other peers: reading a large swarm's leases takes a while."""
WAITING_S = 60.0
"""Time for which voters must be missing before a line names them. Usually the others go on without
them sooner."""
MOST_NAMES = 3
"""Number of peers that a line names at most."""


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
        self._has_told_lack = False

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
            fetched = "what it missed" if ours else "its state"
            words = f"the swarm is at round {self._swarm:,}, {fetched} is being fetched"
            return "" if told else f"peer {self._me} {what}: {words}; atom watch shows how it goes"
        if not told:
            return f"peer {self._me} at round {ours:,}; atom watch shows how it goes"
        if ours < self._swarm:
            return f"who was at round {self._swarm:,} is gone: nobody is ahead of round {ours:,}"
        return f"caught up: at round {ours:,}, as the swarm is"

    def lines(
        self,
        reason: str,
        last: Value | None,
        others: Collection[str],
        missing: Collection[str],
        now: float,
        lacks: str = "",
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
        """
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
                f"{lacks} is not here, or damaged, and no other peer is there to give it: training "
                "begins when one comes. Weights that the run keeps frozen can be given with --from "
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
            which = f"rounds {first:,} to {last.round:,}, the last"
        parts = [part for part in last.contributions if part.sequences]
        ours = sum(part.sequences for part in parts if part.peer_id == self._me)
        peers = "1 peer" if len(parts) == 1 else f"{len(parts):,} peers"
        of = (
            f" of {peers}, {ours:,} of them ours" if ours < last.sequences else ", all of them ours"
        )
        yield f"{which}: loss {last.loss:.4f}, {last.sequences:,} sequences{of}"

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
                "goes on by itself when they are back; if that takes long, ask the run's owner"
            )


def _names(peers: Collection[str]) -> str:
    """Return the first few ids, shortened, and the number of the others."""
    first = [short_id(peer) for peer in sorted(peers)[:MOST_NAMES]]
    more = len(peers) - len(first)
    return ", ".join(first) + (f" and {more:,} more" if more else "")
