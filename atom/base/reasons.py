"""Named reasons for refusing a peer, a message or an attempt at a round."""

from enum import StrEnum


class Reason(StrEnum):
    """Reason of a refusal; its value is sent on the wire and logged."""

    # connections and frames
    BAD_HANDSHAKE = "bad-handshake"
    WRONG_IDENTITY = "wrong-identity"
    WRONG_RUN = "wrong-run"
    WRONG_VERSION = "wrong-version"
    NOT_ON_THE_LIST = "not-on-the-list"
    TOO_LARGE = "too-large"
    MALFORMED = "malformed"
    TOO_MANY_CONNECTIONS = "too-many-connections"
    TIMEOUT = "timeout"
    ADDRESS_NOT_DIALLED = "address-not-dialled"
    # records
    BAD_SIGNATURE = "bad-signature"
    # rounds
    WRONG_HEAD = "wrong-head"
    BALLOT_TOO_LOW = "ballot-too-low"
    NOT_A_VOTER = "not-a-voter"
    VOTER_ALIVE = "voter-alive"
    BUSY = "busy"
    EARLY = "early"
    NO_QUORUM = "no-quorum"
    DIGEST_MISMATCH = "digest-mismatch"
    STATE_MISMATCH = "state-mismatch"
    BAD_CERTIFICATE = "bad-certificate"
    BAD_WEIGHT = "bad-weight"
    NOT_FINITE = "not-finite"
    RING_BROKEN = "ring-broken"
    TOO_SLOW = "too-slow"
    SUPERSEDED = "superseded"
    # transfers
    NOT_FOUND = "not-found"
    PIECE_MISSING = "piece-missing"
    UNREACHABLE = "unreachable"
    HASH_MISMATCH = "hash-mismatch"
