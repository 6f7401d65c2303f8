"""Exit codes: numbered, stable, the same in `atom --help`, the documentation and service units."""

from enum import IntEnum

from atom.base import errors
from atom.base.errors import UserError


class ExitCode(IntEnum):
    """What a process of ours ends with. Never renumber: scripts rely on it."""

    meaning: str

    def __new__(cls, code: int, meaning: str) -> "ExitCode":
        made = int.__new__(cls, code)
        made._value_, made.meaning = code, meaning
        return made

    OK = 0, "done"
    FAULT = 1, "unexpected fault, or a demo that missed its goal"
    USAGE = 2, "wrong command, option or argument"
    CONFIG = 3, "a run or peer file cannot be used"
    ADDRESS = 4, "an address is malformed, unreachable, or names no known run"
    PORT = 5, "the port is in use"
    STORAGE = 6, "the disk is full, or a directory cannot be used"
    MISMATCH = 7, "this installation differs from what the swarm agreed on"
    DEVICE = 8, "the device is missing or too small"
    MODEL = 9, "the model cannot be trained faithfully"
    CONTROL = 10, "no daemon answers, or it refused the command"
    LEFT_LATE = 11, "left, and some of the counted work is in no round"
    OTHER = 12, "another mistake that the message explains"
    TRUST = 13, "--trust does not name the code's owner, or the owner did not list you"
    DIAGNOSIS = 14, "atom doctor found something that keeps this box from training"
    IDENTITY = 15, "another process uses this peer's key"
    SHORTAGE = 16, "memory, threads or open files ran out"
    HUNG_UP = 129, "the terminal was closed (SIGHUP)"
    INTERRUPTED = 130, "interrupted (Ctrl-C)"
    TERMINATED = 143, "terminated (SIGTERM)"


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
