"""Round messages to bytes and back.

`_SCHEMA` says for every field what is acceptable; one pair of functions walks it. So a field
cannot be written without a bound, and a decoded message needs no further checking of form.
"""

import math
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from google.protobuf.message import DecodeError

from atom.base.errors import PeerRefused
from atom.base.reasons import Reason
from atom.swarm.chain.commit import MAX_VOTERS, Ballot, Commit, Contribution, Value, Vote, Voter
from atom.swarm.chain.messages import (
    Abort,
    Accept,
    Accepted,
    AcceptedVote,
    CommitNotice,
    Message,
    Nack,
    Prepare,
    Prevote,
    PrevoteAnswer,
    Promise,
    Ring,
    Suspect,
)
from atom.swarm.chain.ring_standing import RingStanding
from atom.swarm.identity import is_peer_id
from atom.wire import round_pb2

MAX_MESSAGE_BYTES = 256 * 1024
MAX_CONTRIBUTIONS = 4096
MAX_SEQUENCES = 2**24
"""One peer's part in one round: as much as the largest global batch a run file may ask for."""
MAX_LOSS = 1e15
"""Sum over a peer's sequences, nats: any sum of them stays finite."""
MAX_COUNT = 2**40
"""Bound of rounds and serials: none is reached in a lifetime."""
MAX_ATTEMPT = 2**63 - 1
"""What the wire's field holds."""
MAX_TEXT_BYTES = 256


Check = Callable[[Any], bool]


@dataclass(frozen=True)
class _Scalar:
    """A number, text or bytes, acceptable if `check` says so."""

    check: Check


@dataclass(frozen=True)
class _One:
    """A nested record; an absent one becomes None if `optional`, else is malformed."""

    kind: type
    optional: bool = False


@dataclass(frozen=True)
class _Many:
    """A list of nested records, at most `limit`, decoded to a tuple."""

    kind: type
    limit: int


_Field = _Scalar | _One | _Many


def _length(count: int) -> _Scalar:
    return _Scalar(lambda raw: len(raw) == count)


def _at_most(limit: int) -> _Scalar:
    return _Scalar(lambda number: number <= limit)


_DIGEST = _length(32)
_INCARNATION = _length(16)
_SIGNATURE = _length(64)
_STATE_DIGEST = _Scalar(lambda raw: len(raw) in (0, 32))  # empty: not computed
_PEER = _Scalar(is_peer_id)
_PEER_OR_EMPTY = _Scalar(lambda text: text == "" or is_peer_id(text))
_COUNT = _at_most(MAX_COUNT)
_LOSS = _Scalar(lambda number: abs(number) <= MAX_LOSS)
_SEQUENCES = _at_most(MAX_SEQUENCES)
_NORM = _Scalar(lambda number: math.isfinite(number) and number >= 0.0)
_TEXT = _Scalar(lambda text: len(text.encode()) <= MAX_TEXT_BYTES)
_FLAG = _Scalar(lambda flag: True)
_VOTERS = _Many(Voter, MAX_VOTERS)
_CONTRIBUTIONS = _Many(Contribution, MAX_CONTRIBUTIONS)
_BALLOT = _One(Ballot)

_SCHEMA: Mapping[type, Mapping[str, _Field]] = {
    Voter: {"peer_id": _PEER, "incarnation": _INCARNATION, "absences": _at_most(1000)},
    Ballot: {"attempt": _at_most(MAX_ATTEMPT), "coordinator": _PEER, "incarnation": _INCARNATION},
    Contribution: {
        "peer_id": _PEER,
        "incarnation": _INCARNATION,
        "sequences": _SEQUENCES,
        "loss_sum": _LOSS,
        "carrier": _PEER_OR_EMPTY,
    },
    Value: {
        "parent": _DIGEST,
        "round": _COUNT,
        "origin": _BALLOT,
        "result_digest": _DIGEST,
        "gradient_norm": _NORM,
        "parent_state_digest": _STATE_DIGEST,
        "contributions": _CONTRIBUTIONS,
        "voters_next": _VOTERS,
        "survivors": _VOTERS,
    },
    Vote: {"voter": _One(Voter), "signature": _SIGNATURE},
    Commit: {
        "value": _One(Value),
        "ballot": _BALLOT,
        "votes": _Many(Vote, MAX_VOTERS),
        "survivors": _VOTERS,
    },
    Accepted: {"ballot": _BALLOT, "value": _One(Value)},
    Prevote: {"parent": _DIGEST, "serial": _COUNT, "survivors": _VOTERS},
    PrevoteAnswer: {"parent": _DIGEST, "serial": _COUNT, "refusal": _TEXT},
    Prepare: {"parent": _DIGEST, "ballot": _BALLOT, "survivors": _VOTERS},
    Promise: {
        "parent": _DIGEST,
        "ballot": _BALLOT,
        "accepted": _One(Accepted, optional=True),
        "accepted_before_branch": _One(Accepted, optional=True),
        "sequences": _SEQUENCES,
        "loss_sum": _LOSS,
        "state_digest": _STATE_DIGEST,
        "leaving": _FLAG,
    },
    Nack: {
        "parent": _DIGEST,
        "ballot": _BALLOT,
        "promised": _One(Ballot, optional=True),
        "reason": _TEXT,
    },
    Ring: {
        "parent": _DIGEST,
        "ballot": _BALLOT,
        "members": _CONTRIBUTIONS,
        "one_shot": _FLAG,
    },
    RingStanding: {
        "lacks_step": _COUNT,
        "lacks_start": _COUNT,
        "unsent_step": _COUNT,
        "unsent_start": _COUNT,
        "blocked": _FLAG,
    },
    Suspect: {
        "parent": _DIGEST,
        "ballot": _BALLOT,
        "peer_id": _PEER_OR_EMPTY,
        "reason": _TEXT,
        "told_by": _PEER_OR_EMPTY,
        "standing": _One(RingStanding, optional=True),
    },
    Accept: {"parent": _DIGEST, "ballot": _BALLOT, "value": _One(Value)},
    AcceptedVote: {
        "parent": _DIGEST,
        "ballot": _BALLOT,
        "value_digest": _DIGEST,
        "signature": _SIGNATURE,
    },
    CommitNotice: {"commit": _One(Commit)},
    Abort: {"parent": _DIGEST, "ballot": _BALLOT, "reason": _TEXT},
}

_BODIES: Mapping[str, type] = {
    "prevote": Prevote,
    "prevote_answer": PrevoteAnswer,
    "prepare": Prepare,
    "promise": Promise,
    "nack": Nack,
    "ring": Ring,
    "suspect": Suspect,
    "accept": Accept,
    "accepted_vote": AcceptedVote,
    "commit": CommitNotice,
    "abort": Abort,
}
_NAMES: Mapping[type, str] = {kind: name for name, kind in _BODIES.items()}


def encode(message: Message) -> bytes:
    """The message's bytes. Our own values are not checked again: `decode` at the receiver is."""
    body = round_pb2.RoundMessage()
    part = getattr(body, _NAMES[type(message)])
    part.SetInParent()
    _fill(part, message)
    return body.SerializeToString()


def decode(raw: bytes) -> Message:
    """A checked message: lengths, counts, peer ids and numbers are within the schema's bounds.

    Raises: PeerRefused(TOO_LARGE or MALFORMED), and nothing else, whatever the bytes are.
    """
    if len(raw) > MAX_MESSAGE_BYTES:
        raise PeerRefused(Reason.TOO_LARGE, f"message of {len(raw)} bytes")
    body = round_pb2.RoundMessage()
    try:
        body.ParseFromString(raw)
    except DecodeError as error:
        raise PeerRefused(Reason.MALFORMED, "not a round message") from error
    name = body.WhichOneof("body")
    if name is None:
        raise PeerRefused(Reason.MALFORMED, "empty round message")
    message: Message = _read(getattr(body, name), _BODIES[name])
    return message


def _fill(part: Any, record: Any) -> None:
    """Copies a dataclass into the protobuf message of the same field names."""
    for name, field in _SCHEMA[type(record)].items():
        value = getattr(record, name)
        if isinstance(field, _Many):
            for item in value:
                _fill(getattr(part, name).add(), item)
        elif isinstance(field, _One):
            if value is not None:
                getattr(part, name).SetInParent()
                _fill(getattr(part, name), value)
        else:
            setattr(part, name, value)


def _read(part: Any, kind: type) -> Any:
    """The dataclass `kind` from a protobuf message, each field checked against the schema."""
    fields: dict[str, Any] = {}
    for name, field in _SCHEMA[kind].items():
        if isinstance(field, _Many):
            fields[name] = _read_many(getattr(part, name), field, name)
        elif isinstance(field, _One):
            fields[name] = _read_one(part, field, name)
        else:
            fields[name] = _kept_once(getattr(part, name))
            if not field.check(fields[name]):
                raise PeerRefused(Reason.MALFORMED, f"{kind.__name__}.{name} is out of bounds")
    return kind(**fields)


def _kept_once(given: Any) -> Any:
    """A long chain names few peers again and again."""
    return sys.intern(given) if type(given) is str else given


def _read_one(part: Any, field: _One, name: str) -> Any:
    if part.HasField(name):
        return _read(getattr(part, name), field.kind)
    if not field.optional:
        raise PeerRefused(Reason.MALFORMED, f"{name} is missing")
    return None


def _read_many(parts: Any, field: _Many, name: str) -> tuple[Any, ...]:
    if len(parts) > field.limit:
        raise PeerRefused(Reason.TOO_LARGE, f"{len(parts)} {name}, at most {field.limit}")
    return tuple(_read(item, field.kind) for item in parts)
