"""The one tree of exceptions.

AtomError has UserError below it, with a class for each kind of mistake that a user can mend
(printed as error and hint, with an exit code each), and PeerRefused.
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
    """A run or peer file cannot be used: missing, malformed, an unknown key, a wrong unit."""


class AddressError(UserError):
    """A join address is malformed, unreachable, or names no known run."""


class PortInUseError(UserError):
    """Another program listens on the requested port."""


class StorageError(UserError):
    """The disk is full, or the state directory unwritable, locked, or of another run."""


class MismatchError(UserError):
    """This installation would not compute what the swarm agreed on: versions, program, state."""


class DeviceError(UserError):
    """The device is missing, too small, or lacks a number format."""


class ShortageError(UserError):
    """The box has enough of it, and not now: memory, threads or open files."""


class AllowanceError(UserError):
    """The line of this machine has carried all that its owner allows in a month."""


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
