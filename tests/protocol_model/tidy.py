"""Removal of facts that can no longer matter, so that fewer states differ.

An attempt whose coordinator is gone (dead, at another head, or outdone) and that proposed nothing
is dropped, as if its messages were lost. One that proposed is kept while somebody may still accept,
or if a quorum did. A commit is kept for ever.

A promise to a ballot that was dropped becomes one to the next lower ballot that is known: as if the
higher PREPARE had never come, but the lower one had. That state can be reached as well, and it can
do all that the other can. Ballots that somebody accepted count as known, so none is used twice.
"""

from functools import cache

from .cast import BallotKey
from .ledger import Ledger
from .rules import Rules, highest_promised
from .state import ALIVE, DEAD, NOTHING, Attempt, Peers, Slot, State, Survivors, lives, replaced


def is_led(attempt: Attempt, peers: Peers) -> bool:
    """Return True if the coordinator may still continue the attempt: it leads at most one attempt,
    and none below its own promises."""
    peer = peers[attempt.ballot[1]]
    return (
        lives(attempt.ballot[1:], peers)
        and peer.head == attempt.head
        and highest_promised(peer.slots) == attempt.ballot
    )


def tidied(state: State, ledger: Ledger, rules: Rules) -> State:
    attempts, peers = [], state.peers
    for attempt in state.attempts:
        if attempt.committed:
            attempts.append(attempt._replace(votes=()) if attempt.votes else attempt)
        elif is_led(attempt, peers) or _matters(attempt, peers, ledger, rules):
            attempts.append(attempt)
    for p, peer in enumerate(peers):
        if peer.status == DEAD and not state.budget.restarts and peer.head:
            peers = replaced(peers, p, peer._replace(head=0))
        elif peer.slots:
            known = _ballots(peer.head, attempts, state.peers, rules)
            slots = _lowered(peer.slots, known)
            if slots != peer.slots:
                peers = replaced(peers, p, peer._replace(slots=slots))
    return State(peers, tuple(attempts), state.budget)


def _ballots(
    head: int, attempts: list[Attempt], peers: Peers, rules: Rules
) -> frozenset[tuple[Survivors, BallotKey]]:
    """Return slot and ballot of attempts on this head that matter, or have an accepted value."""
    known = {(rules.slot_of(a.survivors), a.ballot) for a in attempts if a.head == head}
    for peer in peers:
        if peer.head == head:
            known.update((slot[0], slot[2][0]) for slot in peer.slots if slot[2])
    return frozenset(known)


@cache
def _lowered(slots: tuple[Slot, ...], known: frozenset[tuple[Survivors, BallotKey]]) -> tuple:
    """Replace promises of forgotten ballots by promises of the next lower known ballot."""
    lowered = []
    for which, promised, accepted in slots:
        lower = [b for slot, b in known if slot == which and b <= promised]
        promised = max(lower, default=())
        if promised or accepted:
            lowered.append((which, promised, accepted))
    return tuple(lowered)


def _matters(attempt: Attempt, peers: Peers, ledger: Ledger, rules: Rules) -> bool:
    """Return True if an attempt without a leader may still change something."""
    if attempt.value == NOTHING:
        return False
    if not attempt.survivors and ledger.is_quorum(attempt.head, attempt.votes):
        return True
    for p, peer in enumerate(peers):
        me = p, peer.incarnation
        if peer.status != ALIVE or me in attempt.votes:
            continue
        if not rules.takes_part(peer, attempt.head):
            continue
        if not rules.votes(attempt, me):
            continue
        slot = rules.slot_of(attempt.survivors)
        promised = next((s[1] for s in peer.slots if s[0] == slot), ())
        if promised <= attempt.ballot:
            return True
    return False
