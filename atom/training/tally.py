"""What a process had a part in, counted."""

from dataclasses import dataclass, field

from atom.swarm.chain.commit import Value
from atom.training.void_passes import VoidPasses


@dataclass
class Tally:
    """Since the process began. Read from other threads, written by the worker's."""

    rounds_joined: int = 0
    sequences_committed: int = 0
    sequences_dropped: int = 0
    """Counted here, but not in the round that was committed: it had closed without them."""
    last: Value | None = None
    """What the last of these rounds agreed on."""
    tokens_per_s: float = 0.0
    last_commit_at: float | None = None
    void: VoidPasses = field(default_factory=VoidPasses)

    @property
    def loss(self) -> float | None:
        return None if self.last is None else self.last.loss

    def account(
        self, value: Value, peer_id: str, counted: int, sequence_tokens: int, now: float
    ) -> None:
        """A round is committed. `peer_id` is ours, and `counted` our sequences until then."""
        mine = [part for part in value.contributions if part.peer_id == peer_id]
        averaged = sum(part.sequences for part in mine)
        self.rounds_joined += bool(mine)
        self.sequences_committed += averaged
        self.sequences_dropped += max(counted - averaged, 0)
        self.last = value
        if self.last_commit_at is not None:
            seconds = max(now - self.last_commit_at, 1e-3)
            self.tokens_per_s = value.sequences * sequence_tokens / seconds
        self.last_commit_at = now
