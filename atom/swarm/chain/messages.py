"""Messages of the round protocol: frozen values whose fields have bounds.

A decoded message is well-formed. Its meaning (which peer may send it, whether its signatures hold)
is for the round to judge.
"""

from dataclasses import dataclass, make_dataclass
from typing import Annotated, Any, get_args

from atom.base.errors import PeerRefused, Reason
from atom.swarm import schema
from atom.swarm.chain.commit import (
    Ballot,
    Commit,
    Contributions,
    Digest,
    LossSum,
    OptionalDigest,
    OptionalPeerId,
    Sequences,
    Signature,
    Value,
    Voters,
)
from atom.swarm.chain.succession import Evidence

MAX_MESSAGE_BYTES = 256 * 1024
MAX_TEXT_BYTES = 256
MAX_SHARES, MAX_SHARE = 64, 1000
"""Members of an exchange by parts, and the largest share of one member."""

Shares = Annotated[tuple[Annotated[int, lambda share: share <= MAX_SHARE], ...], MAX_SHARES]
Text = Annotated[str, lambda text: len(text.encode()) <= MAX_TEXT_BYTES]


@dataclass(frozen=True)
class Accepted:
    """Value that an acceptor holds, the ballot at which it was accepted, and the evidence for it.

    The evidence shows that a quorum vouched for the value at that ballot.
    """

    ballot: Ballot
    value: Value
    evidence: Evidence


@dataclass(frozen=True)
class Prevote:
    """Question whether the receiver would listen to a new attempt. Changes nothing there."""

    parent: Digest
    survivors: Voters = ()
    """Peers that would open a branch; empty for an ordinary round."""


@dataclass(frozen=True)
class PrevoteAnswer:
    """Answer to a pre-vote; an empty refusal means yes."""

    parent: Digest
    refusal: Text = ""


@dataclass(frozen=True)
class Prepare:
    """Request to stop counting, and to promise to ignore lower ballots."""

    parent: Digest
    ballot: Ballot
    survivors: Voters = ()
    """Peers that would open a branch; empty for an ordinary round."""


@dataclass(frozen=True)
class Promise:
    """Answer to `Prepare`: the value that this peer accepted before, and its frozen count."""

    parent: Digest
    ballot: Ballot
    accepted: Accepted | None
    accepted_before_branch: Accepted | None
    sequences: Sequences
    loss_sum: LossSum
    state_digest: OptionalDigest
    signature: Signature
    """Over `succession.promise_payload`, which includes `leaving`: evidence for voters that are not
    the coordinator. They compute the payload again from the proposed value and from `Evidence`, so
    each signed field is in one of the two."""
    leaving: bool = False
    """True if the peer leaves after this round."""


@dataclass(frozen=True)
class Nack:
    """Refusal of a call: the sender promised a higher ballot, or has the named reason."""

    parent: Digest
    ballot: Ballot
    promised: Ballot | None
    reason: Text


@dataclass(frozen=True)
class Ring:
    """Request to average with these members, in this order and with these weights.

    With `shares` the members average by parts, otherwise in a ring.
    """

    parent: Digest
    ballot: Ballot
    members: Contributions
    shares: Shares = ()
    """Relative size of the part that each member sums; empty: the members form a ring."""
    voters_next: Voters = ()
    """Electorate after the round: with the exchange's result, it makes the value."""


@dataclass(frozen=True)
class Suspect:
    """Report that the exchange broke: the failure that this member saw itself."""

    parent: Digest
    ballot: Ballot
    peer_id: OptionalPeerId
    """Peer that failed this member; empty if it saw none, or only heard of one."""


@dataclass(frozen=True)
class Vouched:
    """Statement that the sender has the result of this value.

    The sender vouches for no other value at this ballot.
    """

    parent: Digest
    ballot: Ballot
    value: Digest
    signature: Signature
    """Over `succession.vouch_payload`: evidence for all voters."""


@dataclass(frozen=True)
class Accept:
    """Request to accept this value at this ballot if its evidence holds.

    If a quorum vouched for the value at a lower ballot, it is a request to vouch for it at this
    one.
    """

    parent: Digest
    ballot: Ballot
    value: Value
    evidence: Evidence
    vouched_at: Ballot
    """Ballot at which the voters of the evidence vouched for the value."""


@dataclass(frozen=True)
class AcceptedVote:
    """Signature over `commit.vote_payload` of the value that was proposed."""

    parent: Digest
    ballot: Ballot
    signature: Signature


@dataclass(frozen=True)
class CommitNotice:
    """Decided value with its certificate; valid however late it arrives."""

    commit: Commit


@dataclass(frozen=True)
class Abort:
    """Notice that this ballot is over.

    The receiver drops ring buffers, and keeps promise, accepted value and gradients.
    """

    parent: Digest
    ballot: Ballot
    reason: Text


MAX_RECORDS, MAX_LEASE_RECORD_BYTES = 16, 4 * 1024
"""Bounds on the signed leases in one message: their number, and the size of each."""
MAX_DIGESTS, LEASE_DIGEST_BYTES, LEASE_NAME_BYTES = 96, 16, 8
"""Bounds on the digests in one message: their number, and the size of a digest and of a name."""
ShortNames = Annotated[
    tuple[Annotated[bytes, lambda raw: len(raw) == LEASE_NAME_BYTES], ...], MAX_RECORDS
]


@dataclass(frozen=True)
class Leases:
    """Leases that known peers send each other directly: see `transport/lease_exchange.py`."""

    records: Annotated[
        tuple[Annotated[bytes, lambda raw: len(raw) <= MAX_LEASE_RECORD_BYTES], ...], MAX_RECORDS
    ] = ()
    """Signed lease records, byte for byte as the DHT stores them."""
    held: Annotated[
        tuple[Annotated[bytes, lambda raw: len(raw) == LEASE_DIGEST_BYTES], ...], MAX_DIGESTS
    ] = ()
    """Digests of the newest leases that the sender holds of other peers."""
    wanted: ShortNames = ()
    """Short names of peers whose newest leases the sender asks for."""
    neighbours: ShortNames = ()
    """Short names of peers that the sender sees at the receiver's public address now."""


Message = (
    Prevote
    | PrevoteAnswer
    | Prepare
    | Promise
    | Nack
    | Ring
    | Suspect
    | Vouched
    | Accept
    | AcceptedVote
    | CommitNotice
    | Abort
)

KINDS: tuple[type[Any], ...] = (*get_args(Message), Leases)

_Envelope = make_dataclass("RoundMessage", [(kind.__name__, kind | None, None) for kind in KINDS])
"""Message on the wire: exactly one of the envelope's fields is set."""


def encode(message: Message | Leases) -> bytes:
    """Return the message's bytes."""
    return schema.encode(_Envelope(**{type(message).__name__: message}))


def decode(raw: bytes) -> Message | Leases:
    """Return the well-formed message that `raw` holds.

    Raises:
        PeerRefused: TOO_LARGE, MALFORMED or NOT_FINITE. No other exception is raised.
    """
    envelope: Any = schema.decode(_Envelope, raw, MAX_MESSAGE_BYTES)
    found: list[Message | Leases] = [each for each in vars(envelope).values() if each is not None]
    if len(found) != 1:
        raise PeerRefused(Reason.MALFORMED, f"{len(found)} round messages in one")
    return found[0]
