"""`atom status`: one look at a swarm, from the DHT alone."""

import json
from pathlib import Path

import typer

from atom.cli.look.onlooker import Sight, onlooking, run_meant
from atom.cli.look.swarm_table import swarm
from atom.cli.shell.signals import run_to_the_end
from atom.cli.shell.terminal import print_plainly, stderr_console, stdout_console
from atom.models.data.corpus import Amount


def show_status(address: str | None, state: Path | None, as_json: bool) -> None:
    """Prints the swarm. Raises: AddressError, ControlError."""
    address, _ = run_meant(address, state)
    sight = run_to_the_end(_look(address))
    if as_json:
        typer.echo(json.dumps(sight.view.to_json(), indent=2))
        return
    console = stdout_console()
    width = console.width if console.is_terminal else None
    print_plainly(swarm(sight.view, sight.rounds, width), whole=True)
    console.print(f"owner {sight.view.owner}", style="dim", soft_wrap=True)
    if sight.view.data_amount is not None:
        data = Amount(*sight.view.data_amount)
        console.print(f"data  {data}", style="dim", soft_wrap=not console.is_terminal)
    if not sight.view.peers:
        stderr_console().print("[hint]hint:[/]  the run is known, but no peer of it is alive")


async def _look(address: str) -> Sight:
    async with onlooking(address) as onlooker:
        return await onlooker.first_look()
