"""`atom watch` and `atom dashboard`: a live view of a swarm on a terminal or in a browser.

Both views come from the DHT; the page also shows the proven chain.
"""

import asyncio
import contextlib
import errno
import os
import time
from pathlib import Path

import typer
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.padding import Padding
from rich.text import Text

from atom.cli.look.onlooker import onlooking, run_meant
from atom.cli.look.status import headline, swarm
from atom.cli.shell.signals import run_to_the_end
from atom.cli.shell.terminal import draws, stderr_console, stdout_console
from atom.config.address import parse_interface
from atom.extras.dashboard.feed import Seen, SwarmFeed
from atom.extras.dashboard.server import LOOPBACK, serve
from atom.swarm.addresses import ListenAddress
from atom.swarm.records.lease import SampleText

DEFAULT_PORT = 8700
"""Port of the page. It is fixed, so that an open page works again after a restart."""
_MARGIN = 2
_OTHER_ROWS = 9
"""Rows of headline, bar, table head, last line and blank lines."""


def watch_swarm(address: str | None, state: Path | None) -> None:
    """Show the swarm on the terminal until interrupted.

    Args:
        address: Join address of the run; None: the run of the daemon on this machine.
        state: State directory of the daemon.

    Raises:
        AddressError: The run cannot be read.
        ControlError: No address was given, and no daemon here knows one.
    """
    meant = run_meant(address, state)
    with contextlib.suppress(KeyboardInterrupt):
        run_to_the_end(_watch(*meant, stdout_console()))


async def _watch(address: str, state: Path | None, console: Console) -> None:
    show = _watch_live if draws(console) else _watch_plain
    try:
        async with onlooking(address, state) as onlooker, asyncio.TaskGroup() as group:
            feed = SwarmFeed(onlooker, await onlooker.first_view(), onlooker.rounds)
            group.create_task(feed.follow_views())
            await show(feed, console)
    except ExceptionGroup as several:
        if several.subgroup(BrokenPipeError) is None:
            raise
        raise BrokenPipeError(errno.EPIPE, os.strerror(errno.EPIPE)) from several


async def _watch_live(feed: SwarmFeed, console: Console) -> None:
    try:
        with Live(
            console=console,
            screen=True,
            auto_refresh=False,
            get_renderable=lambda: screen(feed.seen, console.width, console.height),
        ) as live:
            while True:  # every second, also to redraw after a resize
                live.refresh()
                await feed.news()
    finally:
        # The last view stays readable on the normal screen.
        console.print(screen(feed.seen, console.width, console.height))


async def _watch_plain(feed: SwarmFeed, console: Console) -> None:
    """Print a line whenever the round changes, or peers come or go."""
    said: tuple[int, frozenset[str]] | None = None
    while True:
        view = feed.seen.view
        now_seen = view.round, frozenset(peer.peer_id for peer in view.peers)
        if now_seen != said:
            said = now_seen
            line = f"{time.strftime('%H:%M:%S')}  {headline(view, feed.seen.rounds)}"
            console.print(line, markup=False, soft_wrap=True)
        await feed.news()


def screen(seen: Seen, width: int, height: int) -> RenderableType:
    """Return the display for a terminal of the given size.

    Each peer takes one row. If there are too many peers, further peers are only counted.

    Args:
        seen: Latest state of the swarm.
        width: Width of the terminal in columns.
        height: Height of the terminal in rows.
    """
    room = max(width - 2 * _MARGIN, 1)
    besides = _OTHER_ROWS + bool(seen.problem) + bool(seen.view.sample)
    rows, peers = height - besides, len(seen.view.peers)
    listed = peers if peers <= rows else max(1, rows - 1)
    parts: list[RenderableType] = [swarm(seen.view, seen.rounds, room, listed), Text()]
    if seen.view.sample is not None:
        parts.append(written(seen.view.sample))
    footer = Text("Ctrl-C ends the display", "quiet")
    shown = Padding(Group(*parts, footer), (1, _MARGIN, 0, _MARGIN))
    # A problem comes first, because a terminal that is too small cuts off the bottom.
    return Group(Text(f"  {seen.problem}", "yellow"), shown) if seen.problem else shown


def written(sample: SampleText) -> Text:
    """Return the newest sample as one line without markup, as strangers' weights wrote it."""
    title = (f"round {sample.round:,} writes  ", "bold")
    return Text.assemble(title, sample.text, no_wrap=True, overflow="ellipsis")


def show_dashboard(
    address: str | None, port: int | None, host: str | None, state: Path | None
) -> None:
    """Serve the page until interrupted; its URL is the first line of stdout.

    Args:
        address: Join address of the run; None: the run of the daemon on this machine.
        port: Port of the page; 0: any free port; None: `DEFAULT_PORT`.
        host: Address of this machine to listen on; None: loopback.
        state: State directory of the daemon, or of the peer to ask as.

    Raises:
        typer.BadParameter: `host` is neither an address nor a host name.
        AddressError: The run cannot be read, or `host` is not an address of this machine.
        ControlError: No address was given, and no daemon here knows one.
        PortInUseError: Another program has the port.
        UserError: The page cannot be served for another reason.
    """
    where = ListenAddress(_host(host), DEFAULT_PORT if port is None else port)
    meant = run_meant(address, state)
    with contextlib.suppress(KeyboardInterrupt):
        run_to_the_end(_serve(*meant, where))


def _host(text: str | None) -> str:
    try:
        return LOOPBACK if text is None else parse_interface(text)
    except ValueError as problem:
        raise typer.BadParameter(str(problem), param_hint="--host") from None


async def _serve(address: str, state: Path | None, where: ListenAddress) -> None:
    async with onlooking(address, state) as onlooker:
        feed = SwarmFeed(onlooker, await onlooker.first_view(), onlooker.rounds)
        await serve(feed, where, _say)


def _say(url: str) -> None:
    typer.echo(url)
    stderr_console().print("[quiet]open this address in a browser; Ctrl-C ends the page[/]")
