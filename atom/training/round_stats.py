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

    def add(self, void: PassVoided) -> bool:
        """Returns whether to say so: of each cause the 1st, 2nd, 4th, 8th …. If every pass is void,
        no log shall fill the disk."""
        cause = self.last_cause = void.cause.value
        self.by_cause[cause] += 1
        self._this_round += 1
        self.in_a_row += 1
        return self.by_cause[cause].bit_count() == 1

    def sound(self) -> None:
        """A pass counted."""
        self.in_a_row = 0
        self.last_cause = ""

    def take_round(self) -> int:
        """Of the round that ends now."""
        count, self._this_round = self._this_round, 0
        return count


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
    _counted: int = 0
    """For rounds that are over, whatever became of them."""

    @property
    def loss(self) -> float | None:
        return None if self.last is None else self.last.loss

    @property
    def last_here(self) -> Value | None:
        """The same, if it was committed while we were there."""
        return None if self.last_commit_at is None else self.last

    def voided(self, void: PassVoided) -> bool:
        """As `VoidPasses.add`; earlier passes may be lost with it."""
        self._counted += void.sequences_lost
        self.sequences_dropped += void.sequences_lost
        return self.void.add(void)

    def committed(self, value: Value, counted: int, sequence_tokens: int, now: float) -> None:
        """A round is committed while we are there. `counted`: our sequences until then."""
        self._enter([value], counted, self.rounds_joined, self.sequences_committed)
        if self.last_commit_at is not None:
            seconds = max(now - self.last_commit_at, 1e-3)
            self.tokens_per_s = value.sequences * sequence_tokens / seconds
        self.last_commit_at = now

    def caught_up(self, chain: Sequence[Value], counted: int) -> None:
        """The whole chain, as our disk or others showed it. `counted`: our sequences for the round
        that was under way, which may be in one that was found."""
        self._enter(chain, counted, 0, 0)
        self.tokens_per_s, self.last_commit_at = 0.0, None

    def _enter(self, values: Sequence[Value], counted: int, joined: int, sequences: int) -> None:
        """Rounds that follow those with so many sequences of ours. What a former incarnation gave
        is not ours."""
        me = (self.me.peer_id, self.me.incarnation)
        parts = [
            part.sequences
            for value in values
            for part in value.contributions
            if (part.peer_id, part.incarnation) == me
        ]
        self._counted += counted
        self.rounds_joined = joined + sum(part > 0 for part in parts)
        self.sequences_committed = sequences + sum(parts)
        self.sequences_dropped = max(self._counted - self.sequences_committed, 0)
        self.last = values[-1] if values else None
