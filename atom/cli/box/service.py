"""`atom service`: a unit for systemd's user manager. The text is pure, and complete in itself:
absolute paths, so that it does not matter from where it is started."""

import os
import re
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import typer

from atom.base.errors import UserError
from atom.cli.shell.exit_codes import IN_VAIN, MEANINGS, ExitCode
from atom.cli.shell.options import parse_trust
from atom.cli.shell.terminal import stderr_console
from atom.config.load import load_peer_file, load_run_file
from atom.swarm.addresses import parse_join_address

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


@dataclass(frozen=True)
class Service:
    """What the unit starts."""

    title: str
    words: tuple[str, ...]
    """The program, an absolute path, and its arguments."""
    environment: Mapping[str, str]


def print_service(context: typer.Context, given: Sequence[str]) -> None:
    """The unit on stdout, what to do with it on stderr.

    Raises: UserError, ConfigError, AddressError, typer.TyperException.
    """
    name, *arguments = given
    if name not in DAEMONS:
        raise UserError(
            f"atom {name} does not run for long",
            f"a service runs one of these: {', '.join(DAEMONS)}",
        )
    title, words = _checked(context, name, arguments)
    environment = {key: os.environ[key] for key in _ENVIRONMENT if key in os.environ}
    program = (sys.executable, "-m", "atom")
    typer.echo(unit_text(Service(title, (*program, name, *words), environment)), nl=False)
    console = stderr_console()
    for line in (
        "save it as ~/.config/systemd/user/atom.service (mkdir -p the folder first); then:",
        "  systemctl --user daemon-reload && systemctl --user enable --now atom",
        "  loginctl enable-linger        # it also runs while you are not logged in",
        "  journalctl --user --unit atom --follow",
    ):
        console.print(line, style="hint", markup=False, highlight=False, soft_wrap=True)


def _checked(context: typer.Context, name: str, given: list[str]) -> tuple[str, list[str]]:
    """A title, and the arguments as the command itself understands them, with absolute paths."""
    command = context.find_root().command.commands[name]  # type: ignore[attr-defined]  # a group
    with command.make_context(name, given, parent=context.find_root()) as inner:
        values: Mapping[str, Any] = inner.params
    load_peer_file(values["peer"])
    parse_trust(values.get("trust"))
    words: list[str] = []
    for parameter in command.params:
        value = values.get(parameter.name)
        for one in value if isinstance(value, list | tuple) else [value]:
            if one is not None:
                flag = [parameter.opts[0]] if parameter.param_type_name == "option" else []
                words += [*flag, os.path.abspath(one) if isinstance(one, Path) else str(one)]
    return _title(name, values), words


def _title(name: str, values: Mapping[str, Any]) -> str:
    """Raises: AddressError, ConfigError."""
    if name == "join":
        return f"Atom peer of {parse_join_address(values['address']).run}"
    if name == "start":
        return f"Atom founder of {load_run_file(values['run_file']).run.name}"
    return "Atom entrance to the DHT"


def unit_text(service: Service) -> str:
    """Pure."""
    start = " ".join(quoted(word.replace("$", "$$")) for word in service.words)
    environment = "".join(
        f"Environment={quoted(f'{key}={value}')}\n" for key, value in service.environment.items()
    )
    in_vain = sorted(IN_VAIN)
    reasons = "".join(f"#   {int(code)}: {MEANINGS[code]}\n" for code in in_vain)
    ended_by_signal = (ExitCode.HUNG_UP, ExitCode.INTERRUPTED, ExitCode.TERMINATED)
    stopped = " ".join(str(int(code)) for code in ended_by_signal)
    return f"""\
[Unit]
Description={service.title.replace("%", "%%")}
StartLimitIntervalSec=0

[Service]
Type=exec
ExecStart={start}
{environment}\
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
