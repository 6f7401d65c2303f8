"""State of the model at one moment: small immutable tuples, equal when nothing differs.

Messages are never removed once sent: whoever may receive one may receive it now, later, twice or
never, so loss, delay, duplication, reordering, partition and freezing need no state of their own.
They are kept where they belong: all that was ever said in one attempt is one `Attempt`.
"""

from typing import NamedTuple

from .cast import BallotKey, VoterKey

Voters = Survivors = tuple[VoterKey, ...]
Accepted = tuple[BallotKey, int] | tuple[()]
"""Ballot and number of the value; empty: nothing."""
Slot = tuple[Survivors, BallotKey | tuple[()], Accepted]
"""One slot (empty: the ordinary one), the highest promise in it, and its accepted value."""

DEAD, ALIVE, LEFT = 0, 1, 2
NOTHING = -1


class Peer(NamedTuple):
    """One seat: the process in it, or the disk it left behind."""

    status: int
    incarnation: int
    head: int
    """Number of the head in the ledger; of a dead peer, what its disk leads to."""
    content: int
    """Bytes that its replica holds (`Ledger.content_after`)."""
    tag: int
    """The head at which the gradients in memory were begun."""
    slots: tuple[Slot, ...]
    """Promises and accepted values at this head."""
    leaving: bool


class Promised(NamedTuple):
    """One promise, as the coordinator may hear it."""

    voter: VoterKey
    accepted: Accepted
    before_branch: Accepted
    leaving: bool


class Attempt(NamedTuple):
    """All that was said in one ballot, so far as it can still matter."""

    head: int
    ballot: BallotKey
    survivors: Survivors
    promises: tuple[Promised, ...]
    value: int
    """Value that ACCEPT proposes; `NOTHING` before."""
    votes: Voters
    committed: bool


class Budget(NamedTuple):
    """How often each of these may still happen."""

    starts: int
    branches: int
    crashes: int
    restarts: int
    leaves: int


Peers = tuple[Peer, ...]


class State(NamedTuple):
    peers: Peers
    attempts: tuple[Attempt, ...]
    budget: Budget


def lives(who: VoterKey, peers: Peers) -> bool:
    """Return True if that very process is there."""
    peer = peers[who[0]]
    return peer.status == ALIVE and peer.incarnation == who[1]


def replaced(things: tuple, at: int, thing: object) -> tuple:
    """`things` with another one at that place."""
    return (*things[:at], thing, *things[at + 1 :])


def with_one(numbers: tuple, one: object) -> tuple:
    """The sorted tuple with `one` in it."""
    return numbers if one in numbers else tuple(sorted((*numbers, one)))
