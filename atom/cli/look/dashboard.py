"""`atom dashboard`: a swarm in the browser, from the DHT alone."""

import contextlib
from pathlib import Path

import typer

from atom.cli.look.onlooker import onlooking, run_meant
from atom.cli.shell.signals import run_to_the_end
from atom.cli.shell.terminal import stderr_console
from atom.config.address import parse_interface
from atom.extras.dashboard.feed import SwarmFeed
from atom.extras.dashboard.server import LOOPBACK, Listening, serve

DEFAULT_PORT = 8700
"""A fixed port: a page that is open goes on when the dashboard is started again."""


def show_dashboard(
    address: str | None, port: int | None, host: str | None, state: Path | None
) -> None:
    """Serves the page until interrupted; its URL is the first line of stdout.

    Raises: typer.BadParameter, AddressError, ControlError, PortInUseError, UserError.
    """
    where = Listening(DEFAULT_PORT if port is None else port, _host(host))
    meant = run_meant(address, state)
    with contextlib.suppress(KeyboardInterrupt):
        run_to_the_end(_serve(*meant, where))


def _host(text: str | None) -> str:
    try:
        return LOOPBACK if text is None else parse_interface(text)
    except ValueError as problem:
        raise typer.BadParameter(str(problem), param_hint="--host") from None


async def _serve(address: str, state: Path | None, where: Listening) -> None:
    async with onlooking(address, state) as onlooker:
        first = await onlooker.first_look()
        await serve(SwarmFeed(onlooker.view, first.view, first.rounds, onlooker), where, _say)


def _say(url: str) -> None:
    typer.echo(url)
    stderr_console().print("[quiet]open it in a browser; Ctrl-C ends it[/]")
