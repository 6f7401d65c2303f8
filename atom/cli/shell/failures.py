"""How a command ends: errors become words and an exit code, faults become a report on disk."""

import errno
import os
import platform
import signal
import sys
import tempfile
import termios
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any, TextIO

import typer
from rich.console import Console

from atom import __version__
from atom.base.disk_words import why_not_written
from atom.base.errors import StorageError, UserError
from atom.cli.shell.exit_codes import ExitCode, exit_code_of
from atom.cli.shell.folding import folded
from atom.cli.shell.shortage import shortage_words
from atom.cli.shell.terminal import stderr_console
from atom.cli.shell.usage import usage_words
from atom.config.places import crash_directory

_DISK_ERRORS = {
    errno.ENOSPC: "free some space, or choose another directory with --state DIR",
    errno.EDQUOT: "your quota is used up: free some space, or choose another directory",
    errno.EROFS: "choose a directory on a writable disk",
    errno.EACCES: "check its owner and rights, or choose another directory",
    errno.EPERM: "check its owner and rights, or choose another directory",
}

_LABEL_COLUMNS = len("error: ")


class Terminated(BaseException):
    """A signal ended a command that has no gentler way to end."""

    def __init__(self, number: int = signal.SIGTERM) -> None:
        """SIGTERM, or SIGHUP."""
        super().__init__(number)
        self.number = number


def run_guarded(command: Callable[[], Any], is_debug: Callable[[], bool]) -> int:
    """Runs a command; whatever it raises is said on stderr. Returns the exit code."""
    try:
        result = command()
        sys.stdout.flush()
        return int(result) if isinstance(result, int) else ExitCode.OK
    except typer.TyperException as problem:
        return _say_usage(problem)
    except UserError as problem:
        return _say_user_error(problem, is_debug())
    except BrokenPipeError:
        return _end_quietly()
    except (KeyboardInterrupt, typer.Abort):
        return ExitCode.INTERRUPTED
    except Terminated as told:
        return _hung_up() if told.number == signal.SIGHUP else ExitCode.TERMINATED
    except Exception as fault:  # noqa: BLE001  the last supervisor: nobody above could report it
        if _of_a_closed_terminal(fault):
            return _hung_up()
        known = _as_user_error(fault)
        return (
            _say_fault(fault, is_debug()) if known is None else _say_user_error(known, is_debug())
        )


def say_error(message: str, hint: str = "") -> None:
    """`error:`, then `hint:` where there is one, on stderr. The words are taken literally."""
    console = stderr_console()
    _say(console, "error", message)
    if hint:
        _say(console, "hint", hint)


def _say(console: Console, label: str, text: str) -> None:
    """Below the label stand the text's own lines, and on a terminal what it folds. Names out of
    files that others wrote may hold what a terminal would obey: that is not shown."""
    lead = f"{label}:".ljust(_LABEL_COLUMNS)
    lines = [_printable(line) for line in text.splitlines()] or [""]
    if console.is_terminal:
        room = console.width - _LABEL_COLUMNS
        lines = [part for line in lines for part in folded(line, room)]
    for number, line in enumerate(lines):
        console.print(f"[{label}]{lead}[/]" if number == 0 else " " * _LABEL_COLUMNS, end="")
        console.print(line, markup=False, soft_wrap=True)


def _printable(line: str) -> str:
    return "".join(sign if sign.isprintable() or sign == "\t" else "�" for sign in line)


def _say_usage(problem: typer.TyperException) -> int:
    say_error(*usage_words(problem))
    return ExitCode.USAGE


def _say_user_error(problem: UserError, debug: bool) -> int:
    if debug:
        traceback.print_exception(problem)
    say_error(problem.message, problem.hint)
    return exit_code_of(problem)


def _say_fault(fault: Exception, debug: bool) -> int:
    words = f"{type(fault).__name__}: {fault}".splitlines()[0][:300]
    if debug:
        traceback.print_exception(fault)
        say_error(f"unexpected fault: {words}")
        return ExitCode.FAULT
    report = _write_report(fault)
    say_error(f"unexpected fault: {words}", f"this is a bug; a report of it is in {report}")
    return ExitCode.FAULT


def _as_user_error(fault: Exception) -> UserError | None:
    if (short := shortage_words(fault)) is not None:
        return short
    if isinstance(fault, OSError) and fault.errno in _DISK_ERRORS:
        where = f"{fault.filename}: " if fault.filename else ""
        return StorageError(f"{where}{why_not_written(fault)}", _DISK_ERRORS[fault.errno])
    return None


def _write_report(fault: Exception) -> Path | str:
    name = time.strftime(f"crash-%Y%m%d-%H%M%S-{os.getpid()}.log")
    head = f"atom {__version__}, Python {platform.python_version()}, {platform.platform()}\n"
    text = f"{head}{' '.join(sys.argv)}\n\n{''.join(traceback.format_exception(fault))}"
    for find in (crash_directory, lambda: Path(tempfile.gettempdir())):
        try:
            folder = find()
            folder.mkdir(parents=True, exist_ok=True)
            (folder / name).write_text(text, encoding="utf-8", errors="backslashreplace")
        except (OSError, MemoryError, StorageError):
            continue
        return folder / name
    return "no file: no folder is writable (use `atom --debug …` to see it)"


def _of_a_closed_terminal(fault: Exception) -> bool:
    """A display that ends draws once more, and finds its terminal closed: that is no fault."""
    several = fault.exceptions if isinstance(fault, ExceptionGroup) else (fault,)
    in_vain = all(isinstance(each, OSError) and each.errno == errno.EIO for each in several)
    return in_vain and any(map(_is_hung_up, (sys.stdout, sys.stderr)))


def _is_hung_up(stream: TextIO) -> bool:
    try:
        termios.tcgetattr(stream)
    except termios.error as problem:
        return bool(problem.args[0] == errno.EIO)  # else it is no terminal
    except (OSError, ValueError):
        return False
    return False


def _hung_up() -> int:
    _write_nowhere(sys.stdout, sys.stderr)
    return ExitCode.HUNG_UP


def _end_quietly() -> int:
    """The reader of our stdout went away (`atom status … | head`): nobody is left to tell."""
    _write_nowhere(sys.stdout)
    return ExitCode.OK


def _write_nowhere(*streams: TextIO) -> None:
    """What they still hold would be a last fault."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    for stream in streams:
        os.dup2(nowhere, stream.fileno())
