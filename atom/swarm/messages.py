"""The round protocol's messages as frozen values, and their way to bytes and back.

`schema` says for every field what is acceptable; one pair of functions walks it. So a field
cannot be written without a bound, and a decoded message needs no further checking of form.
What a message *means* (who may send it, whether its signatures hold) is the round's affair.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from google.protobuf.message import DecodeError

from atom.base.errors import PeerRefused
from atom.base.reasons import Reason
from atom.swarm.chain import MAX_VOTERS, Ballot, Commit, Contribution, Value, Vote, Voter
from atom.swarm.identity import peer_id_of, public_key_of
from atom.wire import round_pb2

MAX_MESSAGE_BYTES = 256 * 1024
MAX_COMMITS_BYTES = 4 * 1024 * 1024
"""Only a `Commits` message may be longer than `MAX_MESSAGE_BYTES`."""
MAX_CONTRIBUTIONS = 4096
MAX_COMMITS = 4096
MAX_COUNT = 2**40
"""Bound of sequences, rounds, attempts and serials: none is reached in a lifetime."""
MAX_WORK = 2**60
MAX_TEXT_BYTES = 256


@dataclass(frozen=True)
class Accepted:
    """A value that an acceptor holds, and the ballot at which it accepted it."""

    ballot: Ballot
    value: Value


@dataclass(frozen=True)
class Prevote:
    """ "Would you listen to a new attempt?" Changes nothing at the receiver."""

    parent: bytes
    serial: int


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


@dataclass(frozen=True)
class Suspect:
    """ "The ring broke, and I suspect this peer"; empty: broken, culprit unknown."""

    parent: bytes
    ballot: Ballot
    peer_id: str
    reason: str


@dataclass(frozen=True)
class Accept:
    """ "Accept this value at this ballot if your own result equals it." """

    parent: bytes
    ballot: Ballot
    value: Value


@dataclass(frozen=True)
class AcceptedVote:
    """A signature over `chain.vote_payload(parent, ballot, value_digest)`."""

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


@dataclass(frozen=True)
class HeadNotice:
    """ "Your head is behind or beside mine": where I am."""

    head: bytes
    round: int
    work: int


@dataclass(frozen=True)
class CommitsQuery:
    """ "Send me the commits after this head." """

    since: bytes


@dataclass(frozen=True)
class Commits:
    """The commits after `since`, oldest first; none if `since` is not on the sender's chain."""

    since: bytes
    known: bool
    commits: tuple[Commit, ...]
    head: HeadNotice


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
    | HeadNotice
    | CommitsQuery
    | Commits
)

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


def is_peer_id(text: str) -> bool:
    """Whether `text` is an Ed25519 peer id in its one canonical spelling."""
    return len(text) <= 64 and _is_peer_id(text)


@lru_cache(maxsize=8192)
def _is_peer_id(text: str) -> bool:
    try:  # the base58 decoder forgives trailing blanks: one peer must not have two names
        return peer_id_of(public_key_of(text).public_bytes_raw()) == text
    except ValueError:
        return False


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
_FINITE = _Scalar(math.isfinite)
_NORM = _Scalar(lambda number: math.isfinite(number) and number >= 0.0)
_TEXT = _Scalar(lambda text: len(text.encode()) <= MAX_TEXT_BYTES)
_FLAG = _Scalar(lambda flag: True)
_VOTERS = _Many(Voter, MAX_VOTERS)
_CONTRIBUTIONS = _Many(Contribution, MAX_CONTRIBUTIONS)
_BALLOT = _One(Ballot)

_SCHEMA: Mapping[type, Mapping[str, _Field]] = {
    Voter: {"peer_id": _PEER, "incarnation": _INCARNATION, "absences": _at_most(1000)},
    Ballot: {"attempt": _COUNT, "coordinator": _PEER, "incarnation": _INCARNATION},
    Contribution: {
        "peer_id": _PEER,
        "incarnation": _INCARNATION,
        "sequences": _COUNT,
        "loss_sum": _FINITE,
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
    Prevote: {"parent": _DIGEST, "serial": _COUNT},
    PrevoteAnswer: {"parent": _DIGEST, "serial": _COUNT, "refusal": _TEXT},
    Prepare: {"parent": _DIGEST, "ballot": _BALLOT, "survivors": _VOTERS},
    Promise: {
        "parent": _DIGEST,
        "ballot": _BALLOT,
        "accepted": _One(Accepted, optional=True),
        "accepted_before_branch": _One(Accepted, optional=True),
        "sequences": _COUNT,
        "loss_sum": _FINITE,
        "state_digest": _STATE_DIGEST,
        "leaving": _FLAG,
    },
    Nack: {
        "parent": _DIGEST,
        "ballot": _BALLOT,
        "promised": _One(Ballot, optional=True),
        "reason": _TEXT,
    },
    Ring: {"parent": _DIGEST, "ballot": _BALLOT, "members": _CONTRIBUTIONS},
    Suspect: {"parent": _DIGEST, "ballot": _BALLOT, "peer_id": _PEER_OR_EMPTY, "reason": _TEXT},
    Accept: {"parent": _DIGEST, "ballot": _BALLOT, "value": _One(Value)},
    AcceptedVote: {
        "parent": _DIGEST,
        "ballot": _BALLOT,
        "value_digest": _DIGEST,
        "signature": _SIGNATURE,
    },
    CommitNotice: {"commit": _One(Commit)},
    Abort: {"parent": _DIGEST, "ballot": _BALLOT, "reason": _TEXT},
    HeadNotice: {"head": _DIGEST, "round": _COUNT, "work": _at_most(MAX_WORK)},
    CommitsQuery: {"since": _DIGEST},
    Commits: {
        "since": _DIGEST,
        "known": _FLAG,
        "commits": _Many(Commit, MAX_COMMITS),
        "head": _One(HeadNotice),
    },
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
    "head": HeadNotice,
    "commits_query": CommitsQuery,
    "commits": Commits,
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
    if len(raw) > MAX_COMMITS_BYTES:
        raise PeerRefused(Reason.TOO_LARGE, f"message of {len(raw)} bytes")
    body = round_pb2.RoundMessage()
    try:
        body.ParseFromString(raw)
    except DecodeError as error:
        raise PeerRefused(Reason.MALFORMED, "not a round message") from error
    name = body.WhichOneof("body")
    if name is None:
        raise PeerRefused(Reason.MALFORMED, "empty round message")
    if name != "commits" and len(raw) > MAX_MESSAGE_BYTES:
        raise PeerRefused(Reason.TOO_LARGE, f"{name} of {len(raw)} bytes")
    message: Message = _read(getattr(body, name), _BODIES[name])
    return message


def encode_commits(commits: tuple[Commit, ...]) -> bytes:
    """A bare list of commits as bytes, for the chain that state transfer and disk keep."""
    body = round_pb2.Commits()
    for commit in commits:
        _fill(body.commits.add(), commit)
    return body.SerializeToString()


def decode_commits(raw: bytes, limit: int = MAX_COMMITS) -> tuple[Commit, ...]:
    """Reverses `encode_commits`; certificates are not checked here.

    Raises: PeerRefused(TOO_LARGE) for more than `limit` commits, PeerRefused(MALFORMED).
    """
    body = round_pb2.Commits()
    try:
        body.ParseFromString(raw)
    except DecodeError as error:
        raise PeerRefused(Reason.MALFORMED, "not a list of commits") from error
    return _read_many(body.commits, _Many(Commit, limit), "commits")


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
    fields = {}
    for name, field in _SCHEMA[kind].items():
        if isinstance(field, _Many):
            fields[name] = _read_many(getattr(part, name), field, name)
        elif isinstance(field, _One):
            fields[name] = _read_one(part, field, name)
        else:
            fields[name] = getattr(part, name)
            if not field.check(fields[name]):
                raise PeerRefused(Reason.MALFORMED, f"{kind.__name__}.{name} is out of bounds")
    return kind(**fields)


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
