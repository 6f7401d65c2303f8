"""Tenure: which peers have contributed long enough to vote and to own parts of an exchange. Pure.

Peer ids are free, so one machine can make thousands of them. Rounds cost work and time. A peer
therefore earns its say by contributing to rounds, and loses it when it stays away:

- It has tenure once it has contributed to `ROUNDS_TO_EARN` rounds.
- It loses tenure, and all progress towards it, after `ROUNDS_TO_LOSE` consecutive rounds that it
  could have contributed to and did not. A round that survivors decided without a quorum does not
  count: a peer that was cut off could not contribute. Neither does a round before the peer's first
  contribution: a peer that has not joined yet cannot be absent.
- The founder and the peers that the run file trusts have tenure from the first round on.

Tenure belongs to the peer id and follows from the commits alone, so all peers agree on it.
"""

from collections.abc import Iterable
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, replace

ROUNDS_TO_EARN = 8
ROUNDS_TO_LOSE = 16
MAX_RECORDS = 2048
"""Peers that are remembered; more records of peers without tenure are dropped."""
NEVER = 2**62
"""Stands for the round in which a peer without tenure earned it: later than any round."""


@dataclass(frozen=True, slots=True)
class Tenure:
    """Contributions of one peer to recent rounds."""

    peer_id: str
    rounds: int = 0
    """Rounds that the peer contributed to, counted up to `ROUNDS_TO_EARN`."""
    missed: int = 0
    """Consecutive rounds without a contribution, up to now."""
    since: int = NEVER
    """Round in which the peer earned tenure; 0: tenure from the start; `NEVER`: no tenure."""

    def after(self, number: int, contributed: bool, by_quorum: bool) -> "Tenure | None":
        """Return the record after round `number`; None if nothing is left to remember.

        Args:
            number: Number of the round.
            contributed: Whether the peer contributed at least one sequence to the round.
            by_quorum: Whether a quorum decided the round.
        """
        if contributed:
            rounds = min(self.rounds + 1, ROUNDS_TO_EARN)
            earned = number if rounds == ROUNDS_TO_EARN else NEVER
            since = min(self.since, earned)
            changed = (rounds, 0, since) != (self.rounds, self.missed, self.since)
            return Tenure(self.peer_id, rounds, 0, since) if changed else self
        if self.rounds == 0 or not by_quorum:
            return self
        missed = self.missed + 1
        return replace(self, missed=missed) if missed < ROUNDS_TO_LOSE else None


Tenures = tuple[Tenure, ...]
"""Records of different peers, in the order of their peer ids."""


def from_the_start(peer_ids: Iterable[str]) -> Tenures:
    """Return the records at the first head: these peers have tenure."""
    return tuple(Tenure(peer_id, since=0) for peer_id in sorted(set(peer_ids)))


def after_round(
    before: Tenures, number: int, contributors: AbstractSet[str], by_quorum: bool
) -> Tenures:
    """Return all records after round `number`.

    Args:
        before: Records before the round.
        number: Number of the round.
        contributors: Peer ids with at least one sequence in the round.
        by_quorum: Whether a quorum decided the round.
    """
    new = contributors - {record.peer_id for record in before}
    records = [*before, *map(Tenure, new)]
    after = [each.after(number, each.peer_id in contributors, by_quorum) for each in records]
    kept = [record for record in after if record is not None]
    if len(kept) > MAX_RECORDS:
        kept = sorted(kept, key=lambda each: (each.since, -each.rounds, each.peer_id))[:MAX_RECORDS]
    return tuple(sorted(kept, key=lambda each: each.peer_id))
