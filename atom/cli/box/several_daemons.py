"""`atom info` where several daemons run on this box: one row for each."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

import typer
from rich import box
from rich.table import Table
from rich.text import Text

from atom.base.errors import ControlError
from atom.base.units import format_seconds
from atom.cli.shell.terminal import print_plainly, stderr_console
from atom.daemon.turns.shown import own_row

COLUMNS = ("run", "state", "round", "device", "share", "turn", "left", "last hour", "--state")


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
    table = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False, header_style="bold")
    for title in COLUMNS:
        table.add_column(title, no_wrap=title != COLUMNS[-1], overflow="fold")
    for root, info in infos:
        cells = _cells(root, info) if info is not None else _silent(root)
        table.add_row(*map(Text, cells))  # as they are: folders may have [names]
    print_plainly(table)
    stderr_console().print("[hint]hint:[/]  all there is of one: atom info --state DIR")


def _answer(client: Asked) -> Mapping[str, Any] | None:
    """None: it does not, as it is frozen, or ends just now."""
    try:
        return client.info()
    except ControlError:
        return None


def _cells(root: Path, info: Mapping[str, Any]) -> list[str]:
    head = [info["run"], info["state"], f"{info['round']:,}", info["device_turns"]["device"]]
    turn = own_row(info)
    if turn is None:
        return [*head, "-", "-", "-", "-", str(root)]
    left = "-" if turn["left_s"] is None else _whole(turn["left_s"])
    return [
        *head, f"{turn['share']:g}", turn["turn"], left, _whole(turn["last_hour_s"]), str(root)
    ]  # fmt: skip


def _silent(root: Path) -> list[str]:
    return [root.name, "no answer", *["-"] * (len(COLUMNS) - 3), str(root)]


def _whole(seconds: float) -> str:
    """In minutes from two on: nobody wants 2700 s."""
    whole = round(seconds)
    return format_seconds(whole if whole < 120 else whole - whole % 60)
