"""The one tree of exceptions.

AtomError
├── UserError            something the person at the keyboard can mend; printed as error + hint
│   ├── ConfigError      a run or peer file: missing, malformed, unknown key, wrong unit
│   ├── AddressError     a join address: malformed, unreachable, no such run
│   ├── PortInUseError
│   ├── StorageError     disk full, state directory unusable or of another run
│   ├── MismatchError    versions, program hash or state differ from what the swarm agreed on
│   ├── DeviceError      the GPU is missing, too small, or lacks a number format
│   ├── ShortageError    memory, threads or open files that other times would have been there
│   ├── ModelError       a model that cannot be traced, cut or run faithfully
│   ├── TrustError       the run brings code of an owner that nobody here said to trust, or its
│   │                    owner did not list this peer
│   ├── IdentityError    another process uses this peer's key
│   └── ControlError     no daemon answers on the control socket, or it refused the command
└── PeerRefused          a remote peer did something we do not accept; carries a named reason
"""

from atom.base.reasons import Reason


class AtomError(Exception):
    """What happened, and (optionally) what to do about it."""

    def __init__(self, message: str, hint: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint


class UserError(AtomError, ValueError):
    """Something the user did or can mend."""


class ConfigError(UserError):
    """A run file or peer file cannot be used as written."""


class AddressError(UserError):
    """A join address is malformed, unreachable, or names no known run."""


class PortInUseError(UserError):
    """Another program listens on the requested port."""


class StorageError(UserError):
    """The state directory is full, unwritable, locked, or belongs to another run."""


class MismatchError(UserError):
    """This installation would not compute what the swarm agreed on."""


class DeviceError(UserError):
    """The device is missing, too small, or lacks a number format."""


class ShortageError(UserError):
    """The box has enough of it, and not now: memory, threads or open files."""


class ModelError(UserError):
    """A model cannot be traced, cut or run faithfully."""


class TrustError(UserError):
    """The run brings code that the person at the keyboard has not said to trust, or is open to
    listed peers only, and this is none of them."""


class IdentityError(UserError):
    """Another process uses this peer's key."""


class ControlError(UserError):
    """The local daemon cannot be reached, or refused a command."""


class PeerRefused(AtomError):
    """A remote peer's message or connection is not accepted.

    `reason` goes onto the wire and into the log; the text is for the log alone.
    """

    def __init__(self, reason: Reason, detail: str = "") -> None:
        super().__init__(f"{reason.value}: {detail}" if detail else reason.value)
        self.reason = reason
        self.detail = detail
