"""Exit codes: numbered, stable, the same in `atom --help`, the documentation and service units."""

from enum import IntEnum

from atom.base import errors
from atom.base.errors import UserError


class ExitCode(IntEnum):
    """What a process of ours ends with. Never renumber: scripts rely on it."""

    OK = 0
    FAULT = 1
    USAGE = 2
    CONFIG = 3
    ADDRESS = 4
    PORT = 5
    STORAGE = 6
    MISMATCH = 7
    DEVICE = 8
    MODEL = 9
    CONTROL = 10
    LEFT_LATE = 11
    OTHER = 12
    TRUST = 13
    DIAGNOSIS = 14
    IDENTITY = 15
    SHORTAGE = 16
    HUNG_UP = 129
    INTERRUPTED = 130
    TERMINATED = 143


MEANINGS: dict[ExitCode, str] = {
    ExitCode.OK: "done",
    ExitCode.FAULT: "unexpected fault, or a demo that missed its goal",
    ExitCode.USAGE: "wrong command, option or argument",
    ExitCode.CONFIG: "a run or peer file cannot be used",
    ExitCode.ADDRESS: "an address is malformed, unreachable, or names no known run",
    ExitCode.PORT: "the port is in use",
    ExitCode.STORAGE: "the disk is full, or a directory cannot be used",
    ExitCode.MISMATCH: "this installation differs from what the swarm agreed on",
    ExitCode.DEVICE: "the device is missing or too small",
    ExitCode.MODEL: "the model cannot be trained faithfully",
    ExitCode.CONTROL: "no daemon answers, or it refused the command",
    ExitCode.LEFT_LATE: "left, and some of the counted work is in no round",
    ExitCode.OTHER: "another mistake that the message explains",
    ExitCode.TRUST: "--trust does not name the code's owner, or the owner did not list you",
    ExitCode.DIAGNOSIS: "atom doctor found something that keeps this box from training",
    ExitCode.IDENTITY: "another process uses this peer's key",
    ExitCode.SHORTAGE: "memory, threads or open files ran out",
    ExitCode.HUNG_UP: "the terminal was closed (SIGHUP)",
    ExitCode.INTERRUPTED: "interrupted (Ctrl-C)",
    ExitCode.TERMINATED: "terminated (SIGTERM)",
}

IN_VAIN: frozenset[ExitCode] = frozenset(
    {
        ExitCode.USAGE,
        ExitCode.CONFIG,
        ExitCode.MISMATCH,
        ExitCode.DEVICE,
        ExitCode.MODEL,
        ExitCode.LEFT_LATE,
        ExitCode.TRUST,
        ExitCode.IDENTITY,
    }
)
"""After these, starting the same command again does not help: somebody has to change something.
The others may pass: a network that is not there yet, a disk that is full, a port in use,
memory that other programs took."""

_OF_ERROR: dict[type[UserError], ExitCode] = {
    errors.ConfigError: ExitCode.CONFIG,
    errors.AddressError: ExitCode.ADDRESS,
    errors.PortInUseError: ExitCode.PORT,
    errors.StorageError: ExitCode.STORAGE,
    errors.MismatchError: ExitCode.MISMATCH,
    errors.DeviceError: ExitCode.DEVICE,
    errors.ShortageError: ExitCode.SHORTAGE,
    errors.ModelError: ExitCode.MODEL,
    errors.TrustError: ExitCode.TRUST,
    errors.IdentityError: ExitCode.IDENTITY,
    errors.ControlError: ExitCode.CONTROL,
}


def exit_code_of(error: UserError) -> ExitCode:
    """The code of the nearest class in the tree of errors that has one."""
    for kind in type(error).__mro__:
        if kind in _OF_ERROR:
            return _OF_ERROR[kind]
    return ExitCode.OTHER
