"""`atom dashboard`: a swarm in the browser, from the DHT alone."""

import contextlib
from pathlib import Path

import typer

from atom.cli.bookkeeper import Bookkeeper, bookkeeping
from atom.cli.onlooker import Onlooker, Sight, onlooking
from atom.cli.signals import run_to_the_end
from atom.cli.terminal import stderr_console
from atom.dashboard.feed import SwarmFeed
from atom.dashboard.server import LOOPBACK, Listening, serve
from atom.swarm.addresses import parse_join_address
from atom.swarm.ledger import Ledger
from atom.swarm.view import SwarmView

DEFAULT_PORT = 8700
"""A fixed port: a page that is open goes on when the dashboard is started again."""


def show_dashboard(address: str, port: int | None, host: str | None, state: Path | None) -> None:
    """Serves the page until interrupted; its URL is the first line of stdout.

    Raises: AddressError, PortInUseError, UserError.
    """
    where = Listening(DEFAULT_PORT if port is None else port, host or LOOPBACK)
    with contextlib.suppress(KeyboardInterrupt):
        run_to_the_end(_serve(address, where, state))


class _Follower:
    """The latest sight, and the chain that its peers serve."""

    def __init__(self, onlooker: Onlooker, keeper: Bookkeeper, first: Sight) -> None:
        self._onlooker = onlooker
        self._keeper = keeper
        self._sight = first

    async def view(self) -> SwarmView:
        self._sight = await self._onlooker.look()
        return self._sight.view

    @property
    def ledger(self) -> Ledger:
        return self._keeper.ledger

    @property
    def note(self) -> str:
        return self._keeper.note

    async def read(self) -> None:
        await self._keeper.read(self._sight.leases)


async def _serve(address: str, where: Listening, state: Path | None) -> None:
    async with onlooking(parse_join_address(address)) as onlooker:
        first = await onlooker.first_look()
        async with bookkeeping(onlooker.manifest, state) as keeper:
            follower = _Follower(onlooker, keeper, first)
            await serve(SwarmFeed(follower.view, first.view, first.rounds, follower), where, _say)


def _say(url: str) -> None:
    typer.echo(url)
    stderr_console().print("[quiet]open it in a browser; Ctrl-C ends it[/]")
