"""What a process had a part in, and its passes that counted for nothing."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from atom.swap.voided import Cause, PassVoided
from atom.swarm.chain.commit import Value, Voter


class VoidPasses:
    """Since the process began. Written by the worker's thread, read by any."""

    def __init__(self) -> None:
        self.by_cause = {cause.value: 0 for cause in Cause}
        self.in_a_row = 0
        """The last ones; 0 once a pass has counted again."""
        self.last_cause = ""
        """Of the last of them; empty once a pass has counted again."""
        self._this_round = 0

    def add(self, void: PassVoided) -> int:
        """Returns how many there have been in a row, this one included."""
        self.by_cause[void.cause.value] += 1
        self._this_round += 1
        self.in_a_row += 1
        self.last_cause = void.cause.value
        return self.in_a_row

    def telling(self, void: PassVoided) -> str:
        """What to say of the pass just added, where every line is read by somebody; empty: nothing.

        Memory always: it changes what is done. Else the 1st, 2nd, 4th, 8th … of its cause.
        """
        count = self.by_cause[void.cause.value]
        if void.cause is not Cause.MEMORY and not worth_saying(count):
            return ""
        so_far = f" ({count} so far)" if count > 1 else ""
        return "; ".join(filter(None, (void.message + so_far, void.hint)))

    def sound(self) -> None:
        """A pass counted."""
        self.in_a_row = 0
        self.last_cause = ""

    def take_round(self) -> int:
        """Of the round that ends now."""
        count, self._this_round = self._this_round, 0
        return count


def worth_saying(in_a_row: int) -> bool:
    """The first, second, fourth, eighth …: if every pass is void, no log shall fill the disk."""
    return in_a_row & (in_a_row - 1) == 0


@dataclass
class RoundStats:
    """Of one incarnation. Read from other threads, written by the worker's."""

    me: Voter
    rounds_joined: int = 0
    """Those that something of ours was averaged in."""
    sequences_committed: int = 0
    sequences_dropped: int = 0
    """Counted here, but in no round on the chain: theirs had closed without them."""
    last: Value | None = None
    """What the chain's last round agreed on, since we know one."""
    tokens_per_s: float = 0.0
    """Of the whole swarm in that round; 0: we did not see it begin."""
    last_commit_at: float | None = None
    void: VoidPasses = field(default_factory=VoidPasses)

    @property
    def loss(self) -> float | None:
        return None if self.last is None else self.last.loss

    @property
    def last_here(self) -> Value | None:
        """The same, if it was committed while we were there."""
        return None if self.last_commit_at is None else self.last

    def account(self, value: Value, counted: int, sequence_tokens: int, now: float) -> None:
        """A round is committed while we are there. `counted`: our sequences until then."""
        self.sequences_dropped += max(counted - self._enter(value), 0)
        if self.last_commit_at is not None:
            seconds = max(now - self.last_commit_at, 1e-3)
            self.tokens_per_s = value.sequences * sequence_tokens / seconds
        self.last_commit_at = now

    def caught_up(self, lost: Sequence[Value], found: Sequence[Value], counted: int) -> None:
        """Others showed us a chain: `found` takes the place of `lost` at its end. `counted`: our
        sequences for the round after `lost`. They may be in the first that was found."""
        taken_back = sum(map(self._take_back, lost))
        entered = sum(map(self._enter, found))
        # Less than nothing is dropped where earlier rounds, dropped in a first try, are back.
        dropped = self.sequences_dropped + taken_back + counted - entered
        self.sequences_dropped = max(dropped, 0)
        self.tokens_per_s, self.last_commit_at = 0.0, None

    def _enter(self, value: Value) -> int:
        averaged = self._ours(value)
        self.rounds_joined += averaged > 0
        self.sequences_committed += averaged
        self.last = value
        return averaged

    def _take_back(self, value: Value) -> int:
        averaged = self._ours(value)
        self.rounds_joined -= averaged > 0
        self.sequences_committed -= averaged
        return averaged

    def _ours(self, value: Value) -> int:
        """Before a restart we were somebody else, whose part is counted there."""
        return sum(
            part.sequences
            for part in value.contributions
            if (part.peer_id, part.incarnation) == (self.me.peer_id, self.me.incarnation)
        )
