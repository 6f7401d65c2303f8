"""Statistics of one process: its share in committed rounds, and its void passes."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from atom.swap.voided import Cause, PassVoided
from atom.swarm.chain.commit import Commit, Value, Voter
from atom.swarm.records.lease import RoundUse, SampleText, Validation

ROUNDS_OF_MEAN = 20
"""Number of rounds after which an older round hardly counts in the mean duration of a round."""


@dataclass
class RoundStats:
    """Statistics of one incarnation. The worker's thread writes them; any thread may read."""

    me: Voter
    spent: Callable[[], tuple[float, int, int]] = lambda: (0.0, 0, 0)
    """Function returning this process's totals: seconds in passes, bytes sent, bytes received.

    Void passes are included.
    """
    rounds_joined: int = 0
    """Number of rounds that averaged a contribution of ours."""
    sequences_committed: int = 0
    sequences_dropped: int = 0
    """Number of our counted sequences that no round on the chain includes."""
    last: Value | None = None
    """Value decided in the last round of the chain; None: no round is known."""
    sequences_per_s: float = 0.0
    """Speed of the whole swarm in the last round; 0: we did not see the round begin."""
    last_commit_at: float | None = None
    """Time at which the last round was committed; None: we did not see the commit."""
    use: RoundUse | None = None
    """Resources that the last round took on this peer; None: we did not see the round begin."""
    usual_seconds: float = 0.0
    """Mean seconds of recent rounds, in which the newest ones weigh most; 0: none was seen."""
    _rounds_timed: int = 0
    validation: Validation | None = None
    """Newest validation losses."""
    sample: SampleText | None = None
    """Newest text written by the model."""
    void_passes: dict[str, int] = field(default_factory=lambda: {cause.value: 0 for cause in Cause})
    """Number of passes that did not count, by cause."""
    void_in_a_row: int = 0
    """Number of void passes since the last pass that counted."""
    void_cause: str = ""
    """Cause of the latest void pass; empty if a pass has counted since."""
    _counted: int = 0
    """Sequences counted for rounds that are over, whether a round included them or not."""
    _spent_before: tuple[float, int, int] = (0.0, 0, 0)
    """Result of `spent` at the last commit."""

    def voided(self, void: PassVoided) -> bool:
        """Record a void pass and the earlier sequences lost with it.

        Returns:
            True if the pass should be logged: the 1st, 2nd, 4th, 8th … of each cause, so that the
            log does not fill the disk if all passes are void.
        """
        cause = self.void_cause = void.cause.value
        self.void_passes[cause] += 1
        self.void_in_a_row += 1
        self._counted += void.sequences_lost
        self.sequences_dropped += void.sequences_lost
        return self.void_passes[cause].bit_count() == 1

    def pass_counted(self) -> None:
        """Record a counted pass, which ends a series of void passes."""
        self.void_in_a_row, self.void_cause = 0, ""

    def committed(self, commit: Commit, counted: int, now: float) -> None:
        """Record a round whose commit we saw.

        Args:
            commit: Commit of the round.
            counted: Sequences of ours that we no longer count for a later round.
            now: Time of the commit.
        """
        self._enter([commit], counted, self.rounds_joined, self.sequences_committed)
        spent = self.spent()
        passes_s, sent, received = (a - b for a, b in zip(spent, self._spent_before, strict=True))
        if self.last_commit_at is not None:
            seconds = max(now - self.last_commit_at, 1e-3)
            self.sequences_per_s = commit.value.sequences / seconds
            self._rounds_timed = min(self._rounds_timed + 1, ROUNDS_OF_MEAN)
            self.usual_seconds += (seconds - self.usual_seconds) / self._rounds_timed
            self.use = RoundUse(
                seconds=round(seconds, 3),
                utilisation=round(min(passes_s / seconds, 1.0), 4),
                sent_bytes=int(sent),
                received_bytes=int(received),
                usual_seconds=round(self.usual_seconds, 3),
            )
        self.last_commit_at, self._spent_before = now, spent

    def caught_up(self, chain: Sequence[Commit], counted: int) -> None:
        """Recompute the statistics from a chain that our disk or other peers provided.

        Args:
            chain: All commits since genesis.
            counted: Our sequences of the round that was under way; a round of the chain may include
                them.
        """
        self._enter(chain, counted, 0, 0)
        self.sequences_per_s, self.last_commit_at, self.use = 0.0, None, None

    def _enter(self, chain: Sequence[Commit], counted: int, joined: int, sequences: int) -> None:
        """Add rounds to the totals `joined` and `sequences`.

        Contributions of an earlier incarnation of this peer are not counted.
        """
        parts = [commit.value.given_by(self.me) for commit in chain]
        self._counted += counted
        self.rounds_joined = joined + sum(part > 0 for part in parts)
        self.sequences_committed = sequences + sum(parts)
        self.sequences_dropped = max(self._counted - self.sequences_committed, 0)
        self.last = chain[-1].value if chain else None
