"""The round protocol's messages as frozen values.

What a message *means* (who may send it, whether its signatures hold) is the round's affair.
"""

from dataclasses import dataclass

from atom.swarm.chain.commit import Ballot, Commit, Contribution, Value, Voter
from atom.swarm.chain.ring_standing import RingStanding


@dataclass(frozen=True)
class Accepted:
    """A value that an acceptor holds, and the ballot at which it accepted it."""

    ballot: Ballot
    value: Value


@dataclass(frozen=True)
class Prevote:
    """ "Would you listen to a new attempt?" Changes nothing at the receiver. Survivors: as in
    `Prepare`."""

    parent: bytes
    serial: int
    survivors: tuple[Voter, ...] = ()


@dataclass(frozen=True)
class PrevoteAnswer:
    """Echoes parent and serial; an empty refusal means yes."""

    parent: bytes
    serial: int
    refusal: str = ""


@dataclass(frozen=True)
class Prepare:
    """ "Stop counting and promise to ignore lower ballots." Survivors: a branch attempt."""

    parent: bytes
    ballot: Ballot
    survivors: tuple[Voter, ...] = ()


@dataclass(frozen=True)
class Promise:
    """The answer to Prepare: what this peer accepted before, and its frozen contribution."""

    parent: bytes
    ballot: Ballot
    accepted: Accepted | None
    accepted_before_branch: Accepted | None
    sequences: int
    loss_sum: float
    state_digest: bytes
    leaving: bool = False


@dataclass(frozen=True)
class Nack:
    """ "I promised a higher ballot", or refuse for the named reason."""

    parent: bytes
    ballot: Ballot
    promised: Ballot | None
    reason: str


@dataclass(frozen=True)
class Ring:
    """ "Average with these, in this order, with these weights." """

    parent: bytes
    ballot: Ballot
    members: tuple[Contribution, ...]
    one_shot: bool = False
    """With everybody directly, instead of in a ring."""


@dataclass(frozen=True)
class Suspect:
    """ "The ring broke": what this member saw of it."""

    parent: bytes
    ballot: Ballot
    peer_id: str
    """Whom it holds to blame; empty: nobody that it can see."""
    reason: str
    told_by: str = ""
    """The neighbour whose last words these are; empty: seen with its own eyes."""
    standing: RingStanding | None = None
    """How far it got, if the ring was too slow."""


@dataclass(frozen=True)
class Accept:
    """ "Accept this value at this ballot if your own result equals it." """

    parent: bytes
    ballot: Ballot
    value: Value


@dataclass(frozen=True)
class AcceptedVote:
    """A signature over `commit.vote_payload(parent, ballot, value_digest)`."""

    parent: bytes
    ballot: Ballot
    value_digest: bytes
    signature: bytes


@dataclass(frozen=True)
class CommitNotice:
    """A decided value with its certificate; valid however late."""

    commit: Commit


@dataclass(frozen=True)
class Abort:
    """ "This ballot is over": drop ring buffers, keep promise, accepted value and gradients."""

    parent: bytes
    ballot: Ballot
    reason: str


Message = (
    Prevote
    | PrevoteAnswer
    | Prepare
    | Promise
    | Nack
    | Ring
    | Suspect
    | Accept
    | AcceptedVote
    | CommitNotice
    | Abort
)
