"""`atom pause`, `resume`, `leave`, `info`, `reload`: the daemon on this machine, by its socket."""

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import typer
from rich.text import Text

from atom.base.errors import ControlError
from atom.cli.box.local_daemons import find_daemon, find_daemons
from atom.cli.shell.terminal import (
    columns_of,
    fitting,
    print_plainly,
    stderr_console,
    stdout_console,
)
from atom.extras.turns.taking import own_row

_COLUMNS = ("run", "state", "round", "turn", "--state")


def pause_daemon(state: Path | None, everyone: bool) -> None:
    """Raises: ControlError."""
    _tell(state, everyone, lambda client: client.pause())


def resume_daemon(state: Path | None, everyone: bool) -> None:
    """Raises: ControlError."""
    _tell(state, everyone, lambda client: client.resume())


def leave_daemon(state: Path | None, everyone: bool, deadline_s: float | None) -> None:
    """Raises: ControlError."""
    _tell(state, everyone, lambda client: client.leave(deadline_s))


def _tell(state: Path | None, everyone: bool, command: Callable[[Any], str]) -> None:
    """Prints what the daemon answers, or each of them; who does not answer keeps no other from
    being told. Raises: ControlError."""
    if not everyone:
        typer.echo(command(control_client(state)))
        return
    failures: dict[str, ControlError] = {}
    for folder in find_daemons(state):
        try:
            said = command(control_client(folder.root))
        except ControlError as failure:
            failures[folder.root.name] = failure
        else:
            typer.echo(f"{folder.root.name}: {said}")
    if failures:
        lines = [f"{name}: {failure.message}" for name, failure in failures.items()]
        raise ControlError("\n".join(lines), next(iter(failures.values())).hint)


def show_info(state: Path | None, as_json: bool) -> None:
    """Of the daemon; if several run and none is named, a row for each. Raises: ControlError."""
    several = [folder.root for folder in find_daemons(state)]
    if len(several) > 1:
        _show_several(several, as_json)
        return
    info = control_client(several[0]).info()
    if as_json:
        typer.echo(json.dumps(info, indent=2))
        return
    from atom.cli.box.info_page import rows  # brings the DHT's side along

    for label, text in rows(info):
        stdout_console().print(Text.assemble((f"{label:14}", "bold"), text), soft_wrap=True)


def _show_several(roots: Sequence[Path], as_json: bool) -> None:
    """As JSON: {"daemons": [info, …]}. Who is frozen, or ends just now, does not answer."""
    infos: dict[Path, dict[str, Any] | None] = {}
    for root in roots:
        try:
            infos[root] = control_client(root).info()
        except ControlError:
            infos[root] = None
    if as_json:
        typer.echo(json.dumps({"daemons": [info for info in infos.values() if info]}, indent=2))
        return
    rows = [_row(root, info) for root, info in infos.items()]
    table = fitting(_COLUMNS, rows, None, words=_COLUMNS)
    console = stdout_console()
    if not console.is_terminal or columns_of(table) <= console.width:
        print_plainly(table, whole=True)
        return
    for row in rows:  # folders are there to be copied, and not to be cut
        console.print(", ".join(row.values()), markup=False, soft_wrap=True)


def _row(root: Path, info: Mapping[str, Any] | None) -> dict[str, str]:
    if info is None:
        return dict.fromkeys(_COLUMNS, "-") | {"state": "no answer", "--state": str(root)}
    turn = own_row(info)
    return {
        "run": info["run"],
        "state": info["state"],
        "round": f"{info['round']:,}",
        "turn": "-" if turn is None else turn["turn"],
        "--state": str(root),
    }


def reload_settings(state: Path | None) -> None:
    """Prints the keys of the peer file that have changed. Raises: UserError, and nothing was
    changed."""
    client = control_client(state)
    with stderr_console().status("asking the daemon") as status:
        changed = client.reload(status.update)
    for each in changed:
        typer.echo(each["key"] if each["live"] else f"{each['key']}  # changes at a restart")
    if not changed:
        typer.echo("nothing has changed in the peer file", err=True)


def control_client(state: Path | None) -> Any:
    """To the daemon in `state`, else to the only one there is. Raises: ControlError."""
    from atom.daemon.control_client import ControlClient  # gRPC: a quarter of a second

    return ControlClient(find_daemon(state))
