"""What a process had a part in, and its passes that counted for nothing."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from atom.swap.voided import Cause, PassVoided
from atom.swarm.chain.commit import Commit, Value, Voter
from atom.swarm.records.lease import RoundUse, SampleText, Validation


@dataclass
class RoundStats:
    """Of one incarnation. Read from other threads, written by the worker's."""

    me: Voter
    spent: Callable[[], tuple[float, int, int]] = lambda: (0.0, 0, 0)
    """By this process so far: seconds in passes, void ones included; bytes sent, and received."""
    rounds_joined: int = 0
    """Those that something of ours was averaged in."""
    sequences_committed: int = 0
    sequences_dropped: int = 0
    """Counted here, but in no round on the chain: theirs had closed without them."""
    last: Value | None = None
    """What the chain's last round agreed on, since we know one."""
    sequences_per_s: float = 0.0
    """Of the whole swarm in that round; 0: we did not see it begin."""
    last_commit_at: float | None = None
    """When it was committed; None: while we were not there."""
    use: RoundUse | None = None
    """What that round took of this peer; None: we did not see it begin."""
    validation: Validation | None = None
    """The newest."""
    sample: SampleText | None = None
    """The newest."""
    void_passes: dict[str, int] = field(default_factory=lambda: {cause.value: 0 for cause in Cause})
    """Those that counted for nothing, by cause."""
    void_in_a_row: int = 0
    """The last ones; 0 once a pass has counted again."""
    void_cause: str = ""
    """Of the last of them; empty once a pass has counted again."""
    _counted: int = 0
    """For rounds that are over, whatever became of them."""
    _spent_before: tuple[float, int, int] = (0.0, 0, 0)
    """At the last commit."""

    def voided(self, void: PassVoided) -> bool:
        """A pass counted for nothing, and earlier ones may be lost with it. Returns whether to say
        so: of each cause the 1st, 2nd, 4th, 8th …. If every pass is void, no log shall fill the
        disk."""
        cause = self.void_cause = void.cause.value
        self.void_passes[cause] += 1
        self.void_in_a_row += 1
        self._counted += void.sequences_lost
        self.sequences_dropped += void.sequences_lost
        return self.void_passes[cause].bit_count() == 1

    def pass_counted(self) -> None:
        self.void_in_a_row, self.void_cause = 0, ""

    def committed(self, commit: Commit, counted: int, now: float) -> None:
        """A round is committed while we are there. `counted`: our sequences until then."""
        self._enter([commit], counted, self.rounds_joined, self.sequences_committed)
        spent = self.spent()
        passes_s, sent, received = (a - b for a, b in zip(spent, self._spent_before, strict=True))
        if self.last_commit_at is not None:
            seconds = max(now - self.last_commit_at, 1e-3)
            self.sequences_per_s = commit.value.sequences / seconds
            self.use = RoundUse(
                seconds=round(seconds, 3),
                utilisation=round(min(passes_s / seconds, 1.0), 4),
                sent_bytes=int(sent),
                received_bytes=int(received),
            )
        self.last_commit_at, self._spent_before = now, spent

    def caught_up(self, chain: Sequence[Commit], counted: int) -> None:
        """The whole chain, as our disk or others showed it. `counted`: our sequences for the round
        that was under way, which may be in one that was found."""
        self._enter(chain, counted, 0, 0)
        self.sequences_per_s, self.last_commit_at, self.use = 0.0, None, None

    def _enter(self, chain: Sequence[Commit], counted: int, joined: int, sequences: int) -> None:
        """Rounds that follow those with so many sequences of ours. What a former incarnation gave
        is not ours."""
        parts = [commit.value.given_by(self.me) for commit in chain]
        self._counted += counted
        self.rounds_joined = joined + sum(part > 0 for part in parts)
        self.sequences_committed = sequences + sum(parts)
        self.sequences_dropped = max(self._counted - self.sequences_committed, 0)
        self.last = chain[-1].value if chain else None
