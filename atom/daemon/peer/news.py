"""What a daemon says while nobody types: that it is there, rounds, pauses, who is waited for. Pure.
Rounds are told of every half a minute at most, however many there were."""

from collections.abc import Collection, Iterator

from atom.swarm.chain.commit import Value
from atom.swarm.identity import short_id
from atom.swarm.records.lease import GAP_SECONDS

EVERY_S = 30.0
PAUSES_S = 2.0
"""Between two lines about pauses."""
LOOK_AROUND_S = 5.0
"""Until the first line about others: a large swarm's leases take several readings."""
WAITING_S = 60.0
"""Until a peer that is waited for is told of: usually others go on without it before."""
MOST_NAMES = 3


class News:
    """`lines` and `arrival` are asked often, on one thread; `hear` on any."""

    def __init__(self, me: str, now: float) -> None:
        self._me = me
        self._due = now + LOOK_AROUND_S
        self._pauses_due = now
        self._heard_at = float("-inf")
        self._has_arrived = False
        self._swarm = 0
        """Of those who were ahead, the round that they showed last."""
        self._reason = ""
        self._round: int | None = None
        self._waiting_since: float | None = None
        self._has_told_lack = False

    def hear(self, now: float) -> None:
        """The directory was read."""
        self._heard_at = now

    def arrival(self, ours: int, ahead: Collection[int]) -> str:
        """That this peer is there, and what it has to catch up with first; for each look until
        nobody is ahead. `ours`: our round; `ahead`: that of each who is. Empty: nothing to say."""
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
        """What there is to say at this look.

        Args:
            reason: why this peer stands still; empty: it does not.
            last: what was committed last, since this peer is there.
            others: whose leases are fresh.
            missing: voters without whom no round can be decided.
            lacks: what others have to give before this peer can train; empty: nothing.
        """
        if reason != self._reason and now >= self._pauses_due:
            self._reason, self._pauses_due = reason, now + PAUSES_S
            yield f"paused: {reason}" if reason else "resumed"
        hears = now - self._heard_at <= GAP_SECONDS  # else everybody seems to be gone
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
            self._waiting_since = float("inf")  # told
            yield (
                f"waiting for {_names(missing)}: no round can be decided without them. Training "
                "goes on by itself when they are back; if that takes long, ask the run's owner"
            )


def _names(peers: Collection[str]) -> str:
    """The first few by name, the others by number."""
    first = [short_id(peer) for peer in sorted(peers)[:MOST_NAMES]]
    more = len(peers) - len(first)
    return ", ".join(first) + (f" and {more:,} more" if more else "")
