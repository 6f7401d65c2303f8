"""`atom info` where several daemons run on this box: one row for each."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

import typer

from atom.base.errors import ControlError
from atom.cli.shell.terminal import (
    columns_of,
    fitting,
    print_plainly,
    stderr_console,
    stdout_console,
)
from atom.extras.turns.taking import own_row

_PLACE = "--state"
COLUMNS = ("run", "state", "round", "device", "turn", _PLACE)
_WORDS = ("run", "state", "device", "turn", _PLACE)
_FIRST_TO_GO = ("device", "round")


class Asked(Protocol):
    """The part of `atom.daemon.control_client.ControlClient` that is needed here."""

    def info(self) -> Mapping[str, Any]: ...


def show_daemons(daemons: Sequence[tuple[Path, Asked]], as_json: bool) -> None:
    """`daemons`: state directories, and who answers there. As JSON: {"daemons": [info, …]}."""
    infos = [(root, _answer(client)) for root, client in daemons]
    if as_json:
        answers = [info for _, info in infos if info is not None]
        typer.echo(json.dumps({"daemons": answers}, indent=2))
        return
    rows = [_cells(root, info) for root, info in infos]
    console = stdout_console()
    width = console.width if console.is_terminal else None
    whole = fitting(COLUMNS, rows, None, _WORDS)
    if width is None or columns_of(whole) <= width:
        print_plainly(whole, whole=True)
    else:  # the folders stand below: they are there to be copied
        print_plainly(fitting(COLUMNS[:-1], rows, width, _WORDS, _FIRST_TO_GO))
        for row in rows:
            console.print(f"{row['run']}: {_PLACE} {row[_PLACE]}", markup=False, soft_wrap=True)
    stderr_console().print("[hint]hint:[/]  all there is of one: atom info --state DIR")


def _answer(client: Asked) -> Mapping[str, Any] | None:
    """None: it does not, as it is frozen, or ends just now."""
    try:
        return client.info()
    except ControlError:
        return None


def _cells(root: Path, info: Mapping[str, Any] | None) -> dict[str, str]:
    cells = dict.fromkeys(COLUMNS, "-") | {_PLACE: str(root)}
    if info is None:
        return cells | {"run": root.name, "state": "no answer"}
    cells |= {
        "run": info["run"],
        "state": info["state"],
        "round": f"{info['round']:,}",
        "device": info["device_turns"]["device"],
    }
    if (turn := own_row(info)) is not None:
        cells["turn"] = turn["turn"]
    return cells
