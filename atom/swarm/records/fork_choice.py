"""What a lease claims, held against our own chain. Pure.

A claim proves nothing. It only says whether a look at the chain behind it is worth while.
"""

from collections.abc import Iterable

from atom.swarm.chain.commit import Branch, Branches, Head, Rank, rank
from atom.swarm.records.lease import Lease


def claimed_branches(lease: Lease, ours: Head) -> Branches:
    """Those that the lease left out are taken for ours."""
    return ours.branches[: lease.branches_before] + lease.branches


def claimed_rank(lease: Lease, ours: Head) -> Rank:
    return rank(lease.head, lease.round, claimed_branches(lease, ours))


def claims_better(lease: Lease, ours: Head) -> bool:
    """Whether the head that is claimed would be preferred to ours."""
    return bool(lease.head) and lease.head != ours.digest and claimed_rank(lease, ours) > ours.rank


def branch_from(ours: Head, branches: Branches) -> Branch | None:
    """By which branch the chain with these goes on from our very head; None if it does not."""
    known = len(ours.branches)
    if len(branches) <= known or branches[:known] != ours.branches:
        return None
    return branches[known] if branches[known].round == ours.round + 1 else None


def has_left(lease: Lease, ours: Head) -> bool:
    """Whether the publisher, as it says itself, has left our head by a branch. Or it tells of so
    many branches since that there is no room for those: it will not decide anything here either."""
    known = len(ours.branches)
    left = branch_from(ours, claimed_branches(lease, ours)) is not None
    return lease.round > ours.round and (left or lease.branches_before > known)


def preferred(leases: Iterable[Lease], ours: Head) -> list[Lease]:
    """Best claim first."""
    return sorted(leases, key=lambda lease: claimed_rank(lease, ours), reverse=True)
