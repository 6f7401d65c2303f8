"""Pure functions that decide which peers may decide the round of a head, given their leases.

Ordinarily the voters fixed by the last commit decide, as soon as a quorum of them can be alive. If
no quorum is left, the survivors may go on without it once every missing voter is confirmed dead or
its lease has been gone for the grace time; the commit then records that it is the survivors'
branch.

Only known peers (voters, members of the last round, peers with tenure) may open a branch, and a
peer that lacks the head's state goes on without the round that led to the head. So a peer that
wants to leave first checks whether the remaining peers could go on (`leaves_them_stuck`).
"""

from collections.abc import Mapping
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
    """Peers that decide a round: the head's voters by quorum, or all of the survivors."""

    voters: tuple[Voter, ...]
    survivors: Survivors = ORDINARY

    def satisfied_by(self, present: AbstractSet[Voter]) -> bool:
        """Return True if `present` may decide the round."""
        if self.survivors:
            return present >= set(self.survivors)
        return is_quorum(self.voters, present)


# ---- peers at our head


def same_head(head: Head, view: View) -> dict[str, Lease]:
    """Return the fresh leases of other peers that could take part in the round of `head`."""
    return {
        peer_id: lease
        for peer_id, lease in view.fresh.items()
        if lease.head == head.digest and lease.state in ACTIVE_STATES
    }


def counted_leases(
    head: Head, view: View, answered: AbstractSet[str], excluded: AbstractSet[str]
) -> dict[str, Lease]:
    """Return the leases at our head whose sequence counts are believed.

    Believed peers are recent ones, and peers that answered an attempt. Leases of strangers are
    ignored, because anyone can publish them at no cost.

    Args:
        head: Our head.
        view: Leases of all peers.
        answered: Peers that answered an attempt of ours.
        excluded: Peers that failed an attempt of ours.
    """
    heeded = (head.recent | answered) - excluded
    return {peer: lease for peer, lease in same_head(head, view).items() if peer in heeded}


def believed(head: Head, leases: Mapping[str, Lease], batch: int, most: int) -> dict[str, int]:
    """Return the number of sequences that is believed of each of these peers.

    No peer counts for more than the global batch. A peer that is no voter and has no tenure counts
    for no more than an equal share of it.

    Args:
        head: Our head.
        leases: Leases of other peers, by peer id.
        batch: Sequences per round.
        most: Largest number of peers that count (`RoundTerms.counted_peers`).
    """
    trusted = head.tenured.union(voter.peer_id for voter in head.voters)
    share = batch // min(most, 1 + len(leases))
    return {
        peer: min(lease.sequences, batch if peer in trusted else share)
        for peer, lease in leases.items()
    }


def batch_of(head: Head, counts: Mapping[str, int], most: int) -> int:
    """Return the number of sequences that the next exchange surely takes.

    This rule decides when a round is due and when peers stop training for it. If only some peers
    get a place in an exchange, it counts those that are admitted first (`Attempt.contributors`):
    voters, then peers with tenure, then larger counts. So the coordinator, whichever voter it is,
    finds the whole batch among the members.

    Args:
        head: Our head.
        counts: Sequences of each peer, ourselves included, by peer id.
        most: Largest number of peers that count (`RoundTerms.counted_peers`).
    """
    voters = {voter.peer_id for voter in head.voters}
    ranked = sorted(
        ((peer in voters, peer in head.tenured, count) for peer, count in counts.items() if count),
        reverse=True,
    )
    return sum(count for *_, count in ranked[:most])


def trusted_peers_rest(head: Head, view: View) -> bool:
    """Return True if no voter and no peer with tenure works at our head, and neither do we."""
    trusted = head.tenured.union(voter.peer_id for voter in head.voters)
    leases = [lease for peer, lease in same_head(head, view).items() if peer in trusted]
    resting = (PeerState.PAUSED, PeerState.LEAVING)
    works = any(lease.sequences or lease.state not in resting for lease in leases)
    return not (view.sequences or works)


def present_at(head: Head, view: View) -> set[Voter]:
    """Return the processes of other peers that could take part in the round of `head`."""
    return {Voter(i, lease.incarnation) for i, lease in same_head(head, view).items()}


def alive_voters(head: Head, me: Voter, view: View) -> set[Voter]:
    """Return the voters with a fresh lease, at any head, because a slow voter is not dead.

    Voters that have opened a branch from `head` are left out: they no longer decide its round.
    """
    fresh = _fresh_voters(head, me, view)
    return {voter for voter, lease in fresh.items() if lease is None or not has_left(lease, head)}


def is_backed(head: Head, me: Voter, view: View, backing: int) -> bool:
    """Return True if more than half of the visible voters, at any head, signed a branch.

    Fewer signatures could come from a single liar that made the head overdue.

    Args:
        head: Head from which the branch departs.
        me: This process.
        view: Leases of all peers.
        backing: Number of the head's voters that signed the branch.
    """
    return 2 * backing > len(_fresh_voters(head, me, view))


def _fresh_voters(head: Head, me: Voter, view: View) -> dict[Voter, Lease | None]:
    """Return the visible voters with their leases; None in place of our own lease."""
    found: dict[Voter, Lease | None] = {}
    for voter in head.voters:
        lease = view.fresh.get(voter.peer_id)
        if voter == me:
            found[voter] = None
        elif lease is not None and lease.incarnation == voter.incarnation:
            found[voter] = lease
    return found


def all_gone(head: Head, me: Voter, view: View, grace_seconds: float) -> bool:
    """Return True if every missing voter is confirmed dead or was silent for the grace time.

    Args:
        head: Head whose voters decide.
        me: This process, which is never missing.
        view: Present view of the directory.
        grace_seconds: Seconds of silence after which a voter counts as gone.
    """
    missing = set(head.voters) - _fresh_voters(head, me, view).keys()
    return all(
        voter in view.dead
        or voter.peer_id == me.peer_id
        or view.lapsed_seconds.get(voter, 0.0) >= grace_seconds
        for voter in missing
    )


# ---- the electorate


def electorate(
    head: Head,
    me: Voter,
    view: View,
    grace_seconds: float,
    branches: bool,
    given_up: AbstractSet[Voter] = frozenset(),
) -> Electorate | None:
    """Return the peers that decide the next round; None if we may not lead or must wait.

    Args:
        head: Our head.
        me: This process.
        view: Leases of all peers.
        grace_seconds: Silence of a voter after which the survivors may go on without it.
        branches: True if the run allows branches without confirmed deaths.
        given_up: Voters with leases that are no longer waited for, because the head is overdue.
    """
    alive = alive_voters(head, me, view) - given_up
    if is_quorum(head.voters, alive):
        return Electorate(head.voters) if me in head.voters else None
    confirmed_only = all_gone(head, me, view, float("inf"))
    if not confirmed_only and not (branches and all_gone(head, me, view, grace_seconds)):
        return None
    present = {me} | (present_at(head, view) - given_up)
    if alive - present:
        return None  # a living voter is on its way to or from another head: wait for its answer
    survivors = _survivors(head, alive, present)
    return Electorate(survivors, survivors) if me in survivors else None


def _survivors(head: Head, alive: set[Voter], present: set[Voter]) -> Survivors:
    """Return the peers that open a branch: living voters, then other known peers.

    All of them must agree. If a peer with tenure is present, peers that are no voters and have no
    tenure do not take part. Strangers never take part, because they have not seen any voter fall
    silent.
    """
    others = {voter for voter in present - alive if voter.peer_id in head.known}
    tenured = head.tenured
    if any(voter.peer_id in tenured for voter in alive | others):
        others = {voter for voter in others if voter.peer_id in tenured}
    return tuple(sorted((standing(alive) + standing(others))[:MAX_VOTERS]))


def objection_to_branch(
    head: Head, me: Voter, view: View, survivors: Survivors, grace_seconds: float
) -> bool:
    """Return True if our view contradicts the claim that survivors must branch off.

    The view contradicts the claim if a voter outside the survivors is alive, a quorum of voters is
    alive, or a missing voter is not gone yet.

    Args:
        head: Head from which the branch departs.
        me: This process.
        view: Present view of the directory.
        survivors: Voters that claim to go on alone.
        grace_seconds: Seconds of silence after which a voter counts as gone.
    """
    alive = alive_voters(head, me, view)
    left_out = alive - set(survivors)
    return (
        bool(left_out)
        or is_quorum(head.voters, alive)
        or not all_gone(head, me, view, grace_seconds)
    )


def place_in_line(
    voters: tuple[Voter, ...],
    me: Voter,
    head: Head,
    alive: set[Voter],
    idle: AbstractSet[Voter] = frozenset(),
    undialled: AbstractSet[str] = frozenset(),
) -> int:
    """Return our place in the order of coordinators, which is different at each head.

    Args:
        voters: Peers that may lead.
        me: This process, one of them.
        head: Our head.
        alive: Voters that are alive; other voters are skipped.
        idle: Voters with nothing to contribute; they come later.
        undialled: Peer ids of voters that cannot be dialled; they come last.
    """
    line = [voter for voter in standing(voters, head.digest) if voter in alive or voter == me]
    return sorted(line, key=lambda voter: (voter.peer_id in undialled, voter in idle)).index(me)


# ---- leaving


def leaves_them_stuck(head: Head, me: Voter, view: View) -> bool:
    """Return True if the other peers would be stuck if this peer left now.

    They are stuck if some of them work here, or leave and have yet to see their work committed, and
    no remaining peer that may go on from this head has shown that it has the head.
    """
    staying = {i: lease for i, lease in view.fresh.items() if lease.state is not PeerState.LEAVING}
    at_work = any(lease.state is not PeerState.PAUSED for lease in staying.values())
    at_work |= any(lease.sequences for i, lease in view.fresh.items() if i not in staying)
    holders = {i for i, each in staying.items() if each.head == head.digest}
    holders |= {i for i, each in staying.items() if claims_better(each, head)}
    return at_work and me.peer_id in head.known and not holders & head.known
