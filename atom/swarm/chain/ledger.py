"""What a certified chain says of its run: every round, and what each peer gave.

Every commit carries the votes of a quorum over the sequences of each member, so everybody who has
the run's manifest can check these sums.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from atom.swarm.chain.commit import Commit, Head


class Round(NamedTuple):
    """One committed round."""

    number: int
    loss: float
    """Mean over its sequences; of text, nats per token."""
    sequences: int
    members: int
    """Peers whose gradients were averaged."""
    absent: int
    """Voters that were not there. Who was may have given nothing: it is no member then."""
    branch: int
    """How many survivors went on without a quorum; 0: an ordinary round."""


class Share(NamedTuple):
    """What one peer gave to committed rounds."""

    sequences: int
    """The mini-batches of the paper."""
    rounds: int
    """Those that something of it was averaged in."""
    first_round: int
    last_round: int


@dataclass(frozen=True)
class Ledger:
    """The sums up to `head`. `rounds` are those from 1 to the head's."""

    head: Head
    rounds: tuple[Round, ...] = ()
    shares: Mapping[str, Share] = field(default_factory=dict)
    """By peer id, over all its restarts."""

    def after(self, heads: Sequence[Head], commits: Sequence[Commit]) -> "Ledger":
        """With verified commits added: `heads[0]` is ours, `heads[i + 1]` follows `commits[i]`."""
        assert heads[0] == self.head
        shares = dict(self.shares)
        for commit in commits:
            _add(shares, commit)
        new = map(_round_of, heads, commits)
        return Ledger(heads[-1], (*self.rounds, *new), shares)

    @property
    def sequences(self) -> int:
        """In all committed rounds."""
        return self.head.work

    def by_share(self) -> list[tuple[str, Share]]:
        """Who gave most comes first."""
        return sorted(self.shares.items(), key=lambda each: (-each[1].sequences, each[0]))


def _round_of(parent: Head, commit: Commit) -> Round:
    value = commit.value
    present = {part.peer_id for part in value.contributions}
    return Round(
        number=value.round,
        loss=value.loss,
        sequences=value.sequences,
        members=len({part.peer_id for part in value.contributions if part.sequences}),
        absent=sum(voter.peer_id not in present for voter in parent.voters),
        branch=len(commit.survivors),
    )


def _add(shares: dict[str, Share], commit: Commit) -> None:
    """A peer that was restarted within the round has two parts in it."""
    number = commit.value.round
    given: Counter[str] = Counter()
    for part in commit.value.contributions:
        if part.sequences:
            given[part.peer_id] += part.sequences
    for peer_id, sequences in given.items():
        so_far = shares.get(peer_id, Share(0, 0, number, number))
        shares[peer_id] = Share(
            so_far.sequences + sequences,
            so_far.rounds + 1,
            so_far.first_round,
            number,
        )
