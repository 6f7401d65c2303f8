"""How a command ends: an error becomes a message and an exit code.

The numbers of exit codes are stable, and the same in `atom --help`, the documentation and the
service unit.
"""

import errno
import signal
import sys
import traceback
from collections.abc import Callable, Sequence
from enum import IntEnum
from typing import Any

import typer

from atom.base import errors
from atom.base.errors import ShortageError, StorageError, UserError
from atom.base.files import why_not_written
from atom.base.units import printable
from atom.cli.shell.terminal import lead_nowhere, stderr_console

_DISK_FULL = (errno.ENOSPC, errno.EDQUOT)
_NO_RIGHT = (errno.EROFS, errno.EACCES, errno.EPERM)
_NO_MEMORY = ("annot allocate memory", "can't allocate memory", "failed to map segment from")
"""Texts of the system in messages of PyTorch, safetensors and the dynamic loader."""
_RUST_DISK_FULL = "(os error 28)"
"""End of the message of safetensors and tokenizers for a full disk."""
_NO_THREAD = ("can't start new thread", "no thread for")
_EMPTY = "is empty (an unset shell variable?)"
_LABEL_COLUMNS = len("error: ")


class ExitCode(IntEnum):
    """Exit codes of the processes of Atom. Never renumber them: scripts rely on them."""

    meaning: str
    error: type[UserError] | None
    """Class of the errors that end a command with this code; None: another event does."""

    def __new__(cls, code: int, meaning: str, error: type[UserError] | None = None) -> "ExitCode":
        made = int.__new__(cls, code)
        made._value_, made.meaning, made.error = code, meaning, error
        return made

    OK = 0, "done"
    FAULT = 1, "unexpected fault, or a demo that missed its goal"
    USAGE = 2, "wrong command, option or argument"
    CONFIG = 3, "a run or peer file cannot be used", errors.ConfigError
    ADDRESS = 4, "an address is malformed, unreachable, or names no known run", errors.AddressError
    PORT = 5, "the port is in use", errors.PortInUseError
    STORAGE = 6, "the disk is full, or a directory cannot be used", errors.StorageError
    MISMATCH = 7, "this installation differs from what the swarm agreed on", errors.MismatchError
    DEVICE = 8, "the device is missing or too small", errors.DeviceError
    MODEL = 9, "the model cannot be trained faithfully", errors.ModelError
    CONTROL = 10, "no daemon answers, or it refused the command", errors.ControlError
    LEFT_LATE = 11, "left, but some counted work is in no round"
    OTHER = 12, "another error, which the message explains", UserError
    TRUST = (
        13, "--trust does not match the code and its owner, or you are not listed",
        errors.TrustError,
    )  # fmt: skip
    DIAGNOSIS = 14, "atom doctor found an obstacle to training on this machine"
    IDENTITY = 15, "another process uses this peer's key", errors.IdentityError
    SHORTAGE = 16, "memory, threads or open files ran out", errors.ShortageError
    ALLOWANCE = 17, "the month's traffic allowance is used up", errors.AllowanceError
    HUNG_UP = 129, "the terminal was closed (SIGHUP)"
    INTERRUPTED = 130, "interrupted (Ctrl-C)"
    TERMINATED = 143, "terminated (SIGTERM)"


def exit_code_of(error: UserError) -> ExitCode:
    """Return the exit code of the error's class, or of its nearest base class that has a code."""
    codes = {code.error: code for code in ExitCode}
    return next(codes[kind] for kind in type(error).__mro__ if kind in codes)


class Terminated(BaseException):
    """SIGTERM or SIGHUP ended a command that cannot leave in good order."""

    def __init__(self, number: int) -> None:
        """`number`: Number of the signal, SIGTERM or SIGHUP."""
        super().__init__(number)
        self.number = number


def run_guarded(command: Callable[[], Any]) -> int:
    """Run a command, report its exception on stderr, and return the exit code.

    Raises:
        SystemExit: The shell's completion of commands has ended.
    """
    try:
        result = command()
        sys.stdout.flush()
        return int(result) if isinstance(result, int) else ExitCode.OK
    except typer.TyperException as problem:
        say_error(*usage_words(problem))
        return ExitCode.USAGE
    except (BrokenPipeError, SystemExit) as ended:  # the reader ended (`atom status … | head`)
        # Typer turns a broken pipe into SystemExit. Its other exits belong to completion.
        if isinstance(ended, SystemExit) and not isinstance(ended.__context__, BrokenPipeError):
            raise
        lead_nowhere(sys.stdout.fileno())
        return ExitCode.OK
    except (KeyboardInterrupt, typer.Abort):
        return ExitCode.INTERRUPTED
    except Terminated as told:
        if told.number == signal.SIGTERM:
            return ExitCode.TERMINATED
        lead_nowhere(sys.stdout.fileno(), sys.stderr.fileno())
        return ExitCode.HUNG_UP
    except Exception as fault:  # noqa: BLE001  the last handler: no caller could report it
        return _say_fault(fault)


def say_error(message: str, hint: str = "") -> None:
    """Write `error:` and, if there is one, `hint:` to stderr. Markup in the texts has no effect."""
    _say("error", message)
    if hint:
        _say("hint", hint)


def refuse_empty(arguments: Sequence[str]) -> None:
    """Refuse empty arguments: as a path, an empty text would mean the working directory.

    Raises:
        typer.BadParameter: An argument, or the value of an option, is empty.
    """
    for before, argument in zip(("", *arguments), arguments, strict=False):
        name, equals, value = argument.partition("=")
        if argument and not (name.startswith("-") and equals and not value):
            continue
        what = name or (before if before.startswith("-") else "an argument")
        raise typer.BadParameter(_EMPTY, param_hint=what)


def usage_words(problem: typer.TyperException) -> tuple[str, str]:
    """Return the message and the hint for a wrong command line."""
    context = getattr(problem, "ctx", None)
    path = "atom" if context is None else context.command_path
    message, _, suggestion = problem.format_message().partition(" Did you mean ")
    hint = f"did you mean {suggestion}" if suggestion else f"see `{path} --help`"
    return message[:1].lower() + message[1:].rstrip("."), hint


def _say(label: str, text: str) -> None:
    # Names from files of other peers may hold escape sequences that the terminal would obey.
    console, lead = stderr_console(), f"[{label}]{f'{label}:':{_LABEL_COLUMNS}}[/]"
    for number, line in enumerate(text.splitlines() or [""]):
        console.print(lead if number == 0 else " " * _LABEL_COLUMNS, end="")
        console.print(printable(line, "\t"), markup=False, soft_wrap=True)


def _say_fault(fault: Exception) -> int:
    known = fault if isinstance(fault, UserError) else _as_user_error(fault)
    if known is not None:
        say_error(known.message, known.hint)
        return exit_code_of(known)
    for line in "".join(traceback.format_exception(fault)).splitlines():
        stderr_console().print(printable(line, "\t"), markup=False, soft_wrap=True)
    words = f"{type(fault).__name__}: {fault}".splitlines()[0][:300]
    say_error(f"unexpected fault: {words}", "this is a bug: please report it with the lines above")
    return ExitCode.FAULT


def _as_user_error(fault: Exception) -> UserError | None:
    """Return an error for memory, threads, files or disk that the system refused; else None.

    Libraries raise exceptions of their own for these, some of them plain RuntimeErrors or
    ImportErrors that only their message identifies.
    """
    number = fault.errno if isinstance(fault, OSError) else None
    said = str(fault).partition("\n")[0][:300]
    if isinstance(fault, MemoryError) or number == errno.ENOMEM or _is_said(_NO_MEMORY, said):
        more = f": {said}" if said else ""
        return ShortageError(f"host memory ran out{more}", "end other programs, then try again")
    if _is_said(_NO_THREAD, said):
        hint = "free memory, or raise the limit: ulimit -u, TasksMax=, --pids-limit"
        return ShortageError(f"the system cannot start more threads: {said}", hint)
    if number in (errno.EMFILE, errno.ENFILE):
        hint = "raise the limit: ulimit -n, LimitNOFILE=, --ulimit nofile="
        return ShortageError(f"too many open files: {said}", hint)
    if said.endswith(_RUST_DISK_FULL):
        return StorageError("the disk is full", "free some space, or choose another directory")
    if isinstance(fault, OSError) and number in (*_DISK_FULL, *_NO_RIGHT):
        where = f"{fault.filename}: " if fault.filename else ""
        remedy = "free some space" if number in _DISK_FULL else "check its owner and permissions"
        hint = f"{remedy}, or choose another directory"
        return StorageError(f"{where}{why_not_written(fault)}", hint)
    return None


def _is_said(words: tuple[str, ...], said: str) -> bool:
    return any(each in said for each in words)
