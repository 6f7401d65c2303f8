"""`atom info` where several daemons run on this box: one row for each."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

import typer
from rich import box
from rich.console import Group
from rich.table import Table
from rich.text import Text

from atom.base.errors import ControlError
from atom.base.units import format_seconds
from atom.cli.shell.terminal import columns_of, print_plainly, stderr_console, stdout_console
from atom.extras.turns.taking import own_row

_PLACE = "--state"
COLUMNS = ("run", "state", "round", "device", "turn", "since", _PLACE)
_FIRST_TO_GO = ("since", "device")


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
    rows = [_cells(root, info) if info is not None else _silent(root) for root, info in infos]
    console = stdout_console()
    for number, page in enumerate(_pages(rows, console.width if console.is_terminal else None)):
        print_plainly(Group(*[Text()] * number, page))
    stderr_console().print("[hint]hint:[/]  all there is of one: atom info --state DIR")


def _pages(rows: Sequence[Sequence[str]], width: int | None) -> list[Table]:
    """One table; where a terminal is too narrow for it, the folders stand in one of their own: they
    are there to be copied."""
    whole = _table(rows, COLUMNS)
    if width is None or columns_of(whole) <= width:
        return [whole]
    titles = [title for title in COLUMNS if title != _PLACE]
    for title in _FIRST_TO_GO:
        if columns_of(_table(rows, titles)) <= width:
            break
        titles.remove(title)
    return [_table(rows, titles), _table(rows, ("run", _PLACE))]


def _table(rows: Sequence[Sequence[str]], titles: Sequence[str]) -> Table:
    table = Table(
        box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False, header_style="bold",
        collapse_padding=True,
    )  # fmt: skip
    for title in titles:
        table.add_column(title, no_wrap=title != _PLACE, overflow="fold")
    for row in rows:
        cells = dict(zip(COLUMNS, row, strict=True))
        table.add_row(*(Text(cells[title]) for title in titles))  # as is: folders may have [names]
    return table


def _answer(client: Asked) -> Mapping[str, Any] | None:
    """None: it does not, as it is frozen, or ends just now."""
    try:
        return client.info()
    except ControlError:
        return None


def _cells(root: Path, info: Mapping[str, Any]) -> list[str]:
    head = [info["run"], info["state"], f"{info['round']:,}", info["device_turns"]["device"]]
    turn = own_row(info)
    said = ["-", "-"] if turn is None else [turn["turn"], _whole(turn["since_s"])]
    return [*head, *said, str(root)]


def _silent(root: Path) -> list[str]:
    return [root.name, "no answer", *["-"] * (len(COLUMNS) - 3), str(root)]


def _whole(seconds: float) -> str:
    """In minutes from two on: nobody wants 2700 s."""
    whole = round(seconds)
    return format_seconds(whole if whole < 120 else whole - whole % 60)
