"""All exceptions of Atom, in one tree.

AtomError
├── UserError      one subclass for each kind of mistake that a user can correct; each has an exit
│                  code and is printed as an error and a hint
└── PeerRefused    a remote peer's message or connection was refused
"""

from atom.base.reasons import Reason


class AtomError(Exception):
    """Base of all exceptions: a message, and optionally a hint.

    Attributes:
        message: the failure and the thing that failed.
        hint: advice on how the user can correct it; may be empty.
    """

    def __init__(self, message: str, hint: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint


class UserError(AtomError, ValueError):
    """Mistake that the user made, or a fault that the user can correct."""


class ConfigError(UserError):
    """Unusable run or peer file: missing, malformed, with an unknown key or a wrong unit."""


class AddressError(UserError):
    """Join address that is malformed, is unreachable or names no known run."""


class PortInUseError(UserError):
    """Requested port on which another program already listens."""


class StorageError(UserError):
    """Full disk, or a state directory that is not writable, is locked or belongs to another run."""


class MismatchError(UserError):
    """Installation whose versions, program or state are not the ones agreed on by the swarm."""


class DeviceError(UserError):
    """Device that is missing, is too small or lacks a number format."""


class ShortageError(UserError):
    """Memory, threads or open files of this machine that other programs use at present."""


class AllowanceError(UserError):
    """Used-up monthly allowance of network traffic, which the owner of this machine set."""


class ModelError(UserError):
    """Model that cannot be traced, cut or run faithfully."""


class TrustError(UserError):
    """Missing trust between this user and a run.

    Either the run contains code that the user has not trusted explicitly, or the run accepts only
    listed peers and this peer is not on the list.
    """


class IdentityError(UserError):
    """Key of this peer that another process already uses."""


class ControlError(UserError):
    """Local daemon that cannot be reached, or that refused a command."""


class PeerRefused(AtomError):
    """Refused message or connection of a remote peer.

    Attributes:
        reason: named reason, sent to the peer and logged.
        detail: explanation for the local log only.
    """

    def __init__(self, reason: Reason, detail: str = "") -> None:
        super().__init__(f"{reason.value}: {detail}" if detail else reason.value)
        self.reason = reason
        self.detail = detail
