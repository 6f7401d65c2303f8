"""`atom service`: a unit for systemd's user manager. It runs in the folder where it was printed, so
that paths mean there what they mean here."""

import os
import re
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import typer

from atom.base.errors import UserError
from atom.cli.shell.exit_codes import IN_VAIN, ExitCode
from atom.cli.shell.terminal import stderr_console

DAEMONS = ("join", "start", "bootstrap")
"""Commands that run until they are told to leave."""
STOP_S = 75
"""For leaving, which takes up to 60 s, and for the rest of the end."""
RESTART_S = 30
_ENVIRONMENT = (
    *("XDG_DATA_HOME", "XDG_STATE_HOME", "XDG_CACHE_HOME", "HF_HOME"),
    *("TZ", "CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER"),
)
"""What decides where things are kept, when it is which hour, and which GPU is meant; a service
would not inherit it."""
_PLAIN = re.compile(r"[A-Za-z0-9_@%+=:,./~-]+")


def print_service(context: typer.Context, given: Sequence[str]) -> None:
    """The unit on stdout, what to do with it on stderr. Raises: UserError, typer.TyperException."""
    name, *arguments = given
    if name not in DAEMONS:
        raise UserError(
            f"atom {name} does not run for long",
            f"a service runs one of these: {', '.join(DAEMONS)}",
        )
    group = context.find_root()
    command = group.command.commands[name]  # type: ignore[attr-defined]  # a group
    command.make_context(name, list(arguments), parent=group)  # refuses what it does not understand
    environment = {key: os.environ[key] for key in _ENVIRONMENT if key in os.environ}
    words = (sys.executable, "-m", "atom", *given)
    typer.echo(unit_text(words, Path.cwd(), environment), nl=False)
    console = stderr_console()
    for line in (
        "save it as ~/.config/systemd/user/atom.service (mkdir -p the folder first); then:",
        "  systemctl --user daemon-reload && systemctl --user enable --now atom",
        "  loginctl enable-linger        # it also runs while you are not logged in",
        "  journalctl --user --unit atom --follow",
    ):
        console.print(line, style="hint", markup=False, highlight=False, soft_wrap=True)


def unit_text(words: Sequence[str], folder: Path, environment: Mapping[str, str]) -> str:
    """`words`: the program, an absolute path, and its arguments, as they are meant in `folder`.
    Pure. Raises: UserError."""
    start = " ".join(quoted(word.replace("$", "$$")) for word in words)
    settings = "".join(
        f"Environment={quoted(f'{key}={value}')}\n" for key, value in environment.items()
    )
    in_vain = sorted(IN_VAIN)
    reasons = "".join(f"#   {int(code)}: {code.meaning}\n" for code in in_vain)
    ended_by_signal = (ExitCode.HUNG_UP, ExitCode.INTERRUPTED, ExitCode.TERMINATED)
    stopped = " ".join(str(int(code)) for code in ended_by_signal)
    return f"""\
[Unit]
Description=Atom {words[3]}
StartLimitIntervalSec=0

[Service]
Type=exec
WorkingDirectory={str(folder).replace("%", "%%")}
ExecStart={start}
{settings}\
# SIGTERM to the daemon alone is `atom leave`: what was counted is committed first, with the help of
# its DHT process, which ends with it.
KillMode=mixed
TimeoutStopSec={STOP_S}
Restart=on-failure
RestartSec={RESTART_S}
# Starting again does not help:
{reasons}\
RestartPreventExitStatus={" ".join(str(int(code)) for code in in_vain)}
SuccessExitStatus={stopped}
# Whatever else this machine does comes first.
Nice=10
CPUWeight=20
IOWeight=20
OOMScoreAdjust=500
# Copies to a GPU need memory that stays in place; at most what your login may lock.
LimitMEMLOCK=infinity

[Install]
WantedBy=default.target
"""


def quoted(word: str) -> str:
    """One word of a line that systemd splits, and in which it looks for %. Raises: UserError."""
    if not word.isprintable():
        raise UserError(f"{word!r} cannot stand in a unit", "use a name without such characters")
    expanded = word.replace("%", "%%")
    if _PLAIN.fullmatch(word):
        return expanded
    return '"' + expanded.replace("\\", "\\\\").replace('"', '\\"') + '"'
