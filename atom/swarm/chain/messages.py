"""The round protocol's messages, described once: frozen values with their fields' bounds.

A decoded message is well-formed. What it *means* (who may send it, whether its signatures hold) is
for the round to decide.
"""

from dataclasses import dataclass, make_dataclass
from typing import Annotated, Any, get_args

from atom.base.errors import PeerRefused
from atom.base.reasons import Reason
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

MAX_MESSAGE_BYTES = 256 * 1024
MAX_TEXT_BYTES = 256
MAX_RECORDS, MAX_LEASE_RECORD_BYTES = 16, 4 * 1024
"""Bounds on the signed leases in one message: their number, and the size of each."""
MAX_DIGESTS, LEASE_DIGEST_BYTES, LEASE_NAME_BYTES = 96, 16, 8
"""Bounds on the digests in one message: their number, and the size of a digest and of a name."""
MAX_SHARES, MAX_SHARE = 64, 1000
"""Of an exchange by parts: its members, and how large each one's part may be called."""

Shares = Annotated[tuple[Annotated[int, lambda share: share <= MAX_SHARE], ...], MAX_SHARES]
Text = Annotated[str, lambda text: len(text.encode()) <= MAX_TEXT_BYTES]


@dataclass(frozen=True)
class Accepted:
    """A value that an acceptor holds, and the ballot at which it accepted it."""

    ballot: Ballot
    value: Value


@dataclass(frozen=True)
class Prevote:
    """ "Would you listen to a new attempt?" Changes nothing at the receiver. Survivors: as in
    `Prepare`."""

    parent: Digest
    survivors: Voters = ()


@dataclass(frozen=True)
class PrevoteAnswer:
    """An empty refusal means yes."""

    parent: Digest
    refusal: Text = ""


@dataclass(frozen=True)
class Prepare:
    """ "Stop counting and promise to ignore lower ballots." Survivors: a branch attempt."""

    parent: Digest
    ballot: Ballot
    survivors: Voters = ()


@dataclass(frozen=True)
class Promise:
    """The answer to Prepare: what this peer accepted before, and its frozen contribution."""

    parent: Digest
    ballot: Ballot
    accepted: Accepted | None
    accepted_before_branch: Accepted | None
    sequences: Sequences
    loss_sum: LossSum
    state_digest: OptionalDigest
    leaving: bool = False


@dataclass(frozen=True)
class Nack:
    """ "I promised a higher ballot", or refuse for the named reason."""

    parent: Digest
    ballot: Ballot
    promised: Ballot | None
    reason: Text


@dataclass(frozen=True)
class Ring:
    """ "Average with these, in this order, with these weights: in a ring, or by parts." """

    parent: Digest
    ballot: Ballot
    members: Contributions
    shares: Shares = ()
    """Of each member, how large the part is that it sums, relative to others; empty: a ring."""


@dataclass(frozen=True)
class Suspect:
    """ "The exchange broke": what this member saw of it itself."""

    parent: Digest
    ballot: Ballot
    peer_id: OptionalPeerId
    """The peer that failed it; empty: it saw none, or only heard of one."""


@dataclass(frozen=True)
class Accept:
    """ "Accept this value at this ballot if your own result equals it." """

    parent: Digest
    ballot: Ballot
    value: Value


@dataclass(frozen=True)
class AcceptedVote:
    """A signature over `commit.vote_payload` of the value that was asked about."""

    parent: Digest
    ballot: Ballot
    signature: Signature


@dataclass(frozen=True)
class CommitNotice:
    """A decided value with its certificate; valid however late."""

    commit: Commit


@dataclass(frozen=True)
class Abort:
    """ "This ballot is over": drop ring buffers, keep promise, accepted value and gradients."""

    parent: Digest
    ballot: Ballot
    reason: Text


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
    wanted: Annotated[
        tuple[Annotated[bytes, lambda raw: len(raw) == LEASE_NAME_BYTES], ...], MAX_RECORDS
    ] = ()
    """Short names of peers whose newest leases the sender asks for."""


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

KINDS: tuple[type[Any], ...] = (*get_args(Message), Leases)

_Envelope = make_dataclass("RoundMessage", [(kind.__name__, kind | None, None) for kind in KINDS])
"""On the wire: exactly one of its fields is there."""


def encode(message: Message | Leases) -> bytes:
    """The message's bytes."""
    return schema.encode(_Envelope(**{type(message).__name__: message}))


def decode(raw: bytes) -> Message | Leases:
    """A well-formed message.

    Raises: PeerRefused(TOO_LARGE, MALFORMED or NOT_FINITE), and nothing else.
    """
    envelope: Any = schema.decode(_Envelope, raw, MAX_MESSAGE_BYTES)
    found: list[Message | Leases] = [each for each in vars(envelope).values() if each is not None]
    if len(found) != 1:
        raise PeerRefused(Reason.MALFORMED, f"{len(found)} round messages in one")
    return found[0]
