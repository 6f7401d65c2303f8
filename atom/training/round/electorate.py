"""Who may decide the round of a head, given what the directory shows. Pure.

Ordinarily the voters fixed by the last commit, as soon as a quorum of them can be alive. When no
quorum is left, the survivors may go on without it once every missing voter is confirmed dead or
its lease has been gone for the grace time; the commit then records that it is their branch.

To found a branch takes a voter of the head or a member of its round, by peer id, and a peer without
the head's state goes on without the round that led to it. So a peer that leaves first looks whether
those that stay could go on (`leaves_them_stuck`).
"""

from collections.abc import Set as AbstractSet
from dataclasses import dataclass

from atom.swarm.chain.commit import MAX_VOTERS, Head, Voter, is_quorum, standing
from atom.swarm.records.lease import Lease, PeerState, claims_better, has_left
from atom.training.round.events import View

ACTIVE_STATES = frozenset(PeerState) - {PeerState.STARTING, PeerState.SYNCING, PeerState.LEFT}

Survivors = tuple[Voter, ...]
ORDINARY: Survivors = ()


@dataclass(frozen=True)
class Electorate:
    """`survivors` empty: the head's voters by quorum. Else: all of the survivors, no fewer."""

    voters: tuple[Voter, ...]
    survivors: Survivors = ORDINARY

    def satisfied_by(self, present: set[Voter]) -> bool:
        if self.survivors:
            return present >= set(self.survivors)
        return is_quorum(self.voters, present)


def same_head(head: Head, view: View) -> dict[str, Lease]:
    """Fresh leases of other peers that could take part in the round of `head`."""
    return {
        peer_id: lease
        for peer_id, lease in view.fresh.items()
        if lease.head == head.digest and lease.state in ACTIVE_STATES
    }


def present_at(head: Head, view: View) -> set[Voter]:
    """The same, as the processes that they are."""
    return {Voter(i, lease.incarnation) for i, lease in same_head(head, view).items()}


def alive_voters(head: Head, me: Voter, view: View) -> set[Voter]:
    """Voters with a fresh lease, whatever head they show: slow is not dead. But for those that
    have opened a branch from `head`: they will not decide anything here any more."""
    fresh = _fresh_voters(head, me, view)
    return {voter for voter, lease in fresh.items() if lease is None or not has_left(lease, head)}


def _fresh_voters(head: Head, me: Voter, view: View) -> dict[Voter, Lease | None]:
    """With their leases; ours is not asked."""
    found: dict[Voter, Lease | None] = {}
    for voter in head.voters:
        lease = view.fresh.get(voter.peer_id)
        if voter == me:
            found[voter] = None
        elif lease is not None and lease.incarnation == voter.incarnation:
            found[voter] = lease
    return found


def gone_for_good(head: Head, me: Voter, view: View, grace_seconds: float) -> bool:
    """Whether every voter has left for a branch, is confirmed dead, or was silent for the grace
    time, but for those that are alive."""
    missing = set(head.voters) - _fresh_voters(head, me, view).keys()
    return all(
        voter in view.dead
        or voter.peer_id == me.peer_id
        or view.lapsed_seconds.get(voter, 0.0) >= grace_seconds
        for voter in missing
    )


def electorate(
    head: Head,
    me: Voter,
    view: View,
    grace_seconds: float,
    branches: bool,
    given_up: AbstractSet[Voter] = frozenset(),
) -> Electorate | None:
    """Whom to ask for the next commit; None while we may not coordinate or have to wait.

    `given_up`: voters we waited for too long, whatever their leases show (`LeaderElection`)."""
    alive = alive_voters(head, me, view) - given_up
    if is_quorum(head.voters, alive):
        return Electorate(head.voters) if me in head.voters else None
    confirmed_only = gone_for_good(head, me, view, float("inf"))
    if not confirmed_only and not (branches and gone_for_good(head, me, view, grace_seconds)):
        return None
    present = {me} | (present_at(head, view) - given_up)
    if alive - present:
        return None  # alive, but on its way to or from another head: it has to answer too
    survivors = _survivors(head, alive, present)
    return Electorate(survivors, survivors) if me in survivors else None


def _survivors(head: Head, alive: set[Voter], present: set[Voter]) -> Survivors:
    """The run's own: living voters, then who had a part in the last round or is back. All of them
    have to agree, and strangers would not for a while: they have not seen anybody be silent."""
    others = {voter for voter in present - alive if voter.peer_id in head.known}
    return tuple(sorted((standing(alive) + standing(others))[:MAX_VOTERS]))


def objection_to_branch(
    head: Head, me: Voter, view: View, survivors: Survivors, grace_seconds: float
) -> bool:
    """Whether *we* know better than the proposer of a branch: a voter it left out is not gone."""
    alive = alive_voters(head, me, view)
    left_out = alive - set(survivors)
    return (
        bool(left_out)
        or is_quorum(head.voters, alive)
        or not gone_for_good(head, me, view, grace_seconds)
    )


def place_in_line(
    voters: tuple[Voter, ...],
    me: Voter,
    head: Head,
    alive: set[Voter],
    idle: AbstractSet[Voter] = frozenset(),
    hidden: AbstractSet[str] = frozenset(),
) -> int:
    """Our place in line to coordinate: dealt anew by every head, the absent passed over, then
    voters with nothing to give, and last those that cannot be dialled (by peer id)."""
    line = [voter for voter in standing(voters, head.digest) if voter in alive or voter == me]
    return sorted(line, key=lambda voter: (voter.peer_id in hidden, voter in idle)).index(me)


# ---- leaving


def leaves_them_stuck(head: Head, me: Voter, view: View) -> bool:
    """Tell whether the others would be stuck if this peer left now.

    They are if some of them work here, or leave and have yet to see their work committed, and none
    of those that stay could go on from this head: no peer that may has shown that it has it.
    """
    staying = {i: lease for i, lease in view.fresh.items() if lease.state is not PeerState.LEAVING}
    at_work = any(lease.state is not PeerState.PAUSED for lease in staying.values())
    at_work |= any(lease.sequences for i, lease in view.fresh.items() if i not in staying)
    holders = {i for i, each in staying.items() if each.head == head.digest}
    holders |= {i for i, each in staying.items() if claims_better(each, head)}
    return at_work and me.peer_id in head.known and not holders & head.known
