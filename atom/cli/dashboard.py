"""`atom dashboard`: a swarm in the browser, from the DHT alone."""

import contextlib

import typer

from atom.cli.onlooker import onlooking
from atom.cli.signals import run_to_the_end
from atom.cli.terminal import stderr_console
from atom.dashboard.feed import SwarmFeed
from atom.dashboard.server import LOOPBACK, Listening, serve
from atom.swarm.addresses import parse_join_address
from atom.swarm.view import SwarmView

DEFAULT_PORT = 8700
"""A fixed port: a page that is open goes on when the dashboard is started again."""


def show_dashboard(address: str, port: int | None, host: str | None) -> None:
    """Serves the page until interrupted; its URL is the first line of stdout.

    Raises: AddressError, PortInUseError, UserError.
    """
    where = Listening(DEFAULT_PORT if port is None else port, host or LOOPBACK)
    with contextlib.suppress(KeyboardInterrupt):
        run_to_the_end(_serve(address, where))


async def _serve(address: str, where: Listening) -> None:
    async with onlooking(parse_join_address(address)) as onlooker:
        first = await onlooker.first_look()

        async def read_view() -> SwarmView:
            return (await onlooker.look()).view

        await serve(SwarmFeed(read_view, first.view, first.rounds), where, _say)


def _say(url: str) -> None:
    typer.echo(url)
    stderr_console().print("[quiet]open it in a browser; Ctrl-C ends it[/]")
