"""What a shell offers for the values of options and arguments. Quick: a person waits for it, so
nothing heavy is imported, and no daemon is asked. Where nothing is offered, shells offer files."""

import os
from collections.abc import Sequence

import typer

from atom.config.places import state_home
from atom.config.precision import PRECISION_NAMES

SHELLS = ("bash", "zsh", "fish")
DEVICES = ("rtx4090-24g", "rtx3060-12g", "gtx1080ti-11g", "v100-32g", "h200")
DAEMONS = ("join", "start", "bootstrap")
"""Commands that run until they are told to leave."""
_FLAG = "--show-completion"


def named_shell(arguments: Sequence[str]) -> str | None:
    """The shell in `atom --show-completion zsh`; without a name, the one that asks is meant."""
    if len(arguments) == 2 and arguments[0] == _FLAG and arguments[1] in SHELLS:
        return arguments[1]
    return None


def devices(incomplete: str) -> list[str]:
    return _beginning(incomplete, DEVICES)


def precisions(incomplete: str) -> list[str]:
    return _beginning(incomplete, PRECISION_NAMES)


def services(context: typer.Context, incomplete: str) -> list[str]:
    return [] if context.params["given"] else _beginning(incomplete, DAEMONS)


def settings(context: typer.Context, incomplete: str) -> list[str]:
    """Keys of the peer file, with the sign that follows them. Bash takes the sign for a word, and
    would put a blank after the only key that fits: so it is told of another one."""
    from atom.config.peer_text import all_keys

    before = context.params["assignments"]
    if before and before[-1] == "=":
        return []
    fitting = _beginning(incomplete, [f"{key}=" for key in all_keys()])
    alone = len(fitting) == 1 and os.environ.get("_ATOM_COMPLETE") == "complete_bash"
    return [*fitting, f"{fitting[0]}…"] if alone else fitting


def run_names(incomplete: str) -> list[str]:
    """Of the runs that are kept at the usual place."""
    try:
        names = sorted(entry.name for entry in state_home().iterdir() if entry.is_dir())
    except OSError:
        return []
    return _beginning(incomplete, [name for name in names if not name.startswith("_")])


def state_directories(incomplete: str) -> list[str]:
    """Of the runs that are kept at the usual place."""
    return _beginning(incomplete, [str(state_home() / name) for name in run_names("")])


def _beginning(incomplete: str, offered: Sequence[str]) -> list[str]:
    return [each for each in offered if each.startswith(incomplete)]
