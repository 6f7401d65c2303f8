"""Whether a stranger's chain is the run's: linked by digests, each round with a certificate.

A later quorum vouches for all that led to its head, so most certificates could be skipped. They are
checked all the same: a head's digest does not cover votes, so whoever skips a forged certificate
keeps it, hands it on, and is refused by the next one who looks at that round.
"""

from collections.abc import Sequence

from atom.base.errors import PeerRefused
from atom.base.reasons import Reason
from atom.swarm.chain.commit import Commit, Head
from atom.swarm.chain.membership import certificate_problem


def verified_heads(first: Head, commits: Sequence[Commit]) -> list[Head]:
    """The heads along a chain that begins at `first`, which we trust.

    Raises: PeerRefused with BAD_CERTIFICATE, BAD_WEIGHT or WRONG_HEAD.
    """
    heads = _linked_heads(first, commits)
    for head, commit in zip(heads, commits, strict=False):
        problem = certificate_problem(head, commit)
        if problem is not None:
            raise PeerRefused(problem, f"round {commit.value.round}")
    return heads


def _linked_heads(first: Head, commits: Sequence[Commit]) -> list[Head]:
    """The heads along a chain, no certificate looked at. Raises: as `verified_heads`."""
    heads = [first]
    for commit in commits:
        head, value = heads[-1], commit.value
        if value.parent != head.digest or value.round != head.round + 1:
            raise PeerRefused(Reason.WRONG_HEAD, f"round {value.round}")
        if value.sequences <= 0 or not value.voters_next:
            raise PeerRefused(Reason.BAD_WEIGHT, f"round {value.round}")
        heads.append(head.after(value))
    return heads
