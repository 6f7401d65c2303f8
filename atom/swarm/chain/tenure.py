"""Tenure: the right to vote and to own parts of an exchange, earned by contributing. Pure.

Peer ids are free, so one machine can make thousands of them. Rounds cost work and time. A peer
therefore earns its say by contributing to rounds, and loses it when it stays away:

- It has tenure once it has contributed to `ROUNDS_TO_EARN` rounds.
- It loses tenure, and all progress towards it, after `ROUNDS_TO_LOSE` consecutive rounds that it
  could have contributed to and did not. A round that survivors decided without a quorum does not
  count: a peer that was cut off could not contribute. Neither does a round before the peer's first
  contribution: a peer that has not joined yet cannot be absent.
- The founder and the peers that the run file trusts have tenure from the first round on.

Tenure belongs to the peer id and follows from the commits alone, so all peers agree on it.

The chain keeps the records of every head. So no round changes the record of an absent peer: it
says when the peer contributed last, and the absence is counted from there.
"""

from collections.abc import Iterable
from collections.abc import Set as AbstractSet
from dataclasses import dataclass

ROUNDS_TO_EARN = 8
ROUNDS_TO_LOSE = 16
MAX_NEWCOMERS = 1024
"""Peers without tenure that are remembered. An exchange with such peers has at most 64 members:
`ROUNDS_TO_LOSE` rounds have no more of them, unless voters lie."""
NEVER = 2**62
"""Stands for the round in which a peer without tenure earned it: later than any round."""


@dataclass(frozen=True, slots=True)
class Tenure:
    """Contributions of one peer to recent rounds."""

    peer_id: str
    rounds: int = 0
    """Rounds that the peer contributed to, counted up to `ROUNDS_TO_EARN`."""
    last: int = 0
    """Number of rounds that quorums had decided when the peer contributed last; 0 before that."""
    since: int = NEVER
    """Round in which the peer earned tenure; 0: tenure from the start; `NEVER`: no tenure."""

    def contributed(self, number: int, decided: int) -> "Tenure":
        """Return the record after a contribution to a round.

        Args:
            number: Number of the round.
            decided: Number of rounds that quorums have decided, up to this one.
        """
        rounds = min(self.rounds + 1, ROUNDS_TO_EARN)
        earned = number if rounds == ROUNDS_TO_EARN else NEVER
        return Tenure(self.peer_id, rounds, decided, min(self.since, earned))

    def is_lost(self, decided: int) -> bool:
        """Return True if the peer has been absent for too long."""
        return self.rounds > 0 and decided - self.last >= ROUNDS_TO_LOSE


Tenures = tuple[Tenure, ...]
"""Records of different peers, in the order of their peer ids."""


def from_the_start(peer_ids: Iterable[str]) -> Tenures:
    """Return the records at the first head: these peers have tenure."""
    return tuple(Tenure(peer_id, since=0) for peer_id in sorted(set(peer_ids)))


def after_round(
    before: Tenures, number: int, contributors: AbstractSet[str], decided: int
) -> Tenures:
    """Return all records after round `number`.

    Peers with tenure are never dropped for lack of room. Of the other peers, contributors to this
    round are kept first, then peers with more rounds, then peers with a later contribution.

    Args:
        before: Records before the round.
        number: Number of the round.
        contributors: Peer ids with at least one sequence in the round.
        decided: Number of rounds that quorums have decided, up to this one.
    """
    new = contributors - {record.peer_id for record in before}
    kept = [
        each.contributed(number, decided) if each.peer_id in contributors else each
        for each in (*before, *map(Tenure, new))
        if each.peer_id in contributors or not each.is_lost(decided)
    ]
    tenured = sum(each.since != NEVER for each in kept)
    kept.sort(key=lambda e: (e.since, e.last < decided, -e.rounds, -e.last, e.peer_id))
    return tuple(sorted(kept[: tenured + MAX_NEWCOMERS], key=lambda each: each.peer_id))
