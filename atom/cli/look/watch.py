"""`atom watch` and `atom dashboard`: a live view of a swarm on a terminal or in a browser.

Both views come from the DHT; the page also shows the proven chain.
"""

import asyncio
import contextlib
from pathlib import Path

import plotille
import typer
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.padding import Padding
from rich.text import Text

from atom.cli.look.onlooker import onlooking, run_meant
from atom.cli.look.status import show_status, swarm
from atom.cli.shell.signals import run_to_the_end
from atom.cli.shell.terminal import draws, stderr_console, stdout_console
from atom.extras.dashboard.chart import drawable, label, readable_scale
from atom.extras.dashboard.feed import Seen, SwarmFeed
from atom.extras.dashboard.server import serve
from atom.swarm.addresses import ListenAddress
from atom.swarm.records.lease import SampleText

_MARGIN = 2
_LEAST_CURVE_ROWS, _MOST_CURVE_ROWS = 10, 24
"""Rows of the curve with its labels. A smaller one would show nothing."""
_LABEL_COLUMNS, _LABEL_ROWS, _TICK_COLUMNS = 24, 4, 10
_MARGIN_NATS = 1e-6
"""Space above the highest loss: the library draws no point on the upper edge."""
_OTHER_ROWS = 10
"""Rows of headline, bar, table head, line about dialable peers, last line and blank lines."""


def watch_swarm(address: str | None, state: Path | None) -> None:
    """Show the swarm on the terminal until interrupted; in a pipe, show it once.

    Args:
        address: Join address of the run; None: the run of the daemon on this machine.
        state: State directory of the daemon.

    Raises:
        AddressError: The run cannot be read.
        ControlError: No address was given, and no daemon here knows one.
    """
    console = stdout_console()
    if not draws(console):
        show_status(address, state, as_json=False)
        return
    meant = run_meant(address, state)
    with contextlib.suppress(KeyboardInterrupt):
        run_to_the_end(_watch(*meant, console))


async def _watch(address: str, state: Path | None, console: Console) -> None:
    async with onlooking(address, state) as onlooker, asyncio.TaskGroup() as group:
        feed = SwarmFeed(onlooker, await onlooker.first_view(), onlooker.rounds)
        group.create_task(feed.follow())
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
    spare_rows = rows - listed - (listed < peers) - 1
    if spare_rows >= _LEAST_CURVE_ROWS and len(seen.ledger.rounds) > 1:
        parts += [Text(curve(seen, room, min(spare_rows, _MOST_CURVE_ROWS))), Text()]
    if seen.view.sample is not None:
        parts.append(written(seen.view.sample))
    footer = Text("Ctrl-C ends the display", "quiet")
    shown = Padding(Group(*parts, footer), (1, _MARGIN, 0, _MARGIN))
    # A problem comes first, because a terminal that is too small cuts off the bottom.
    return Group(Text(f"  {seen.problem}", "yellow"), shown) if seen.problem else shown


def curve(seen: Seen, width: int, height: int) -> str:
    """Return the training loss of the certified rounds as a line of dots, and validations as "o".

    Args:
        seen: Latest state of the swarm, with two certified rounds at least.
        width: Columns of the curve with its labels.
        height: Rows of the curve with its labels.
    """
    rounds = seen.ledger.rounds
    losses = {each.number: each.loss for each in rounds}
    held_back = drawable(seen.validations, rounds)
    values = [*losses.values(), *held_back.values()]
    most = max(width - _LABEL_COLUMNS, 20) // _TICK_COLUMNS
    first, rounds_a_tick, ticks = readable_scale(rounds[0].number - 1, rounds[-1].number + 1, most)
    low, step, height = readable_scale(
        min(values), max(values) + _MARGIN_NATS, height - _LABEL_ROWS
    )
    figure = plotille.Figure()
    figure.width, figure.height = ticks * _TICK_COLUMNS, height
    figure.with_colors, figure.origin = False, False
    figure.set_x_limits(first, first + ticks * rounds_a_tick)
    figure.set_y_limits(low, low + height * step)
    figure.x_label, figure.y_label = "round", "loss"
    figure.x_ticks_fkt = lambda number, _: f"{number:,g}"
    figure.y_ticks_fkt = lambda loss, _: label(loss, step)
    figure.plot(list(losses), list(losses.values()))
    if held_back:
        figure.scatter(list(held_back), list(held_back.values()), marker="o")
    return str(figure.show())


def written(sample: SampleText) -> Text:
    """Return the newest sample text as one line, cut at the width of the terminal.

    The weights of a run wrote the text, so it is untrusted: markup in it is shown, not applied.
    """
    title = (f"round {sample.round:,} writes  ", "bold")
    return Text.assemble(title, sample.text, no_wrap=True, overflow="ellipsis")


def show_dashboard(address: str | None, port: int, host: str, state: Path | None) -> None:
    """Serve the page until interrupted; its URL is the first line of stdout.

    Args:
        address: Join address of the run; None: the run of the daemon on this machine.
        port: Port of the page; 0: any free port.
        host: Address of this machine to listen on.
        state: State directory of the daemon, or of the peer to ask as.

    Raises:
        AddressError: The run cannot be read, or `host` is not an address of this machine.
        ControlError: No address was given, and no daemon here knows one.
        PortInUseError: Another program has the port.
        UserError: The page cannot be served for another reason.
    """
    meant = run_meant(address, state)
    with contextlib.suppress(KeyboardInterrupt):
        run_to_the_end(_serve(*meant, ListenAddress(host, port)))


async def _serve(address: str, state: Path | None, where: ListenAddress) -> None:
    async with onlooking(address, state) as onlooker:
        feed = SwarmFeed(onlooker, await onlooker.first_view(), onlooker.rounds)
        await serve(feed, where, _say)


def _say(url: str) -> None:
    typer.echo(url)
    stderr_console().print("[quiet]open this address in a browser; Ctrl-C ends the page[/]")
