"""All exceptions of Atom in one tree, and the named reasons for refusing a peer.

AtomError
├── UserError      one subclass for each kind of mistake that a user can correct; each has an exit
│                  code and is printed as an error and a hint
└── PeerRefused    a remote peer's message or connection was refused
"""

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


class AtomError(Exception):
    """Base of all exceptions: a message, and optionally a hint.

    Attributes:
        message: the failure, and the thing that failed.
        hint: advice on how the user can correct the failure; may be empty. A traceback shows it.
    """

    def __init__(self, message: str, hint: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint
        if hint:
            self.add_note(f"hint: {hint}")


class UserError(AtomError, ValueError):
    """Error that the user made or can correct."""


class ConfigError(UserError):
    """Error in a run file or peer file: missing, malformed, with an unknown key or a wrong unit."""


class AddressError(UserError):
    """Error in a join address: malformed, unreachable, or of no known run."""


class PortInUseError(UserError):
    """Error of a requested port: another program already listens on it."""


class StorageError(UserError):
    """Error of the disk or a state directory.

    The disk is full, or the directory is not writable, is locked, is damaged, or belongs to another
    run.
    """


class MismatchError(UserError):
    """Error of an installation: its versions, program or state are not the swarm's."""


class DeviceError(UserError):
    """Error of a device: it is missing, is too small, or lacks a number format."""


class ShortageError(UserError):
    """Error for lack of memory, threads or open files, which other programs use at present."""


class AllowanceError(UserError):
    """Error of an owner's monthly allowance of network traffic: it is used up."""


class ModelError(UserError):
    """Error of a model that cannot be traced, cut or run faithfully."""


class TrustError(UserError):
    """Error for lack of trust between this user and a run.

    Either the run contains code that the user has not trusted explicitly, or the run accepts only
    listed peers and this peer is not on the list.
    """


class IdentityError(UserError):
    """Error of this peer's key: another process already uses it."""


class ControlError(UserError):
    """Error of a command to a local daemon, which cannot be reached or refused the command."""


class PeerRefused(AtomError):
    """Error for a refused peer: this process refuses the remote peer, or is refused by it.

    Attributes:
        reason: named reason, sent to the peer and logged.
        detail: explanation for the local log only.
    """

    def __init__(self, reason: Reason, detail: str = "") -> None:
        super().__init__(f"{reason.value}: {detail}" if detail else reason.value)
        self.reason = reason
        self.detail = detail
