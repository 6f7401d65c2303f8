"""`atom watch`: a swarm as it lives, from the DHT alone."""

import asyncio
import contextlib
import errno
import os
import signal
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.live import Live
from rich.padding import Padding
from rich.text import Text

from atom.cli.look.follower import Follower, following
from atom.cli.look.loss_chart import LossChart, Point
from atom.cli.look.onlooker import Sight
from atom.cli.look.run_meant import run_meant
from atom.cli.look.swarm_table import swarm
from atom.cli.shell.signals import run_to_the_end
from atom.cli.shell.terminal import draws, stdout_console
from atom.dashboard.feed import Seen, SwarmFeed
from atom.dashboard.history import thinned
from atom.swarm.identity import short_id
from atom.swarm.records.view import loss_unit, trained_on

MAX_POINTS = 400
"""Of the loss curve: no terminal shows more."""
MIN_CHART_ROWS, USUAL_CHART_ROWS, MAX_CHART_ROWS = 3, 8, 16
_SWARM_ROWS = 10
"""Of these, what is above the table's rows, the line that counts peers not shown, and a blank."""
_MOST_FOLDS = 5
"""Lines that one peer may take: what is wrong with it folds."""
_FRAME_ROWS = 12
"""Headline, bar, the table's head, the chart's title and axis, and the blank lines between."""


def watch_swarm(address: str | None, state: Path | None) -> None:
    """Shows the swarm until interrupted; without an address, that of the daemon on this machine.

    Raises: AddressError, ControlError.
    """
    console = stdout_console()
    meant = run_meant(address, state)
    with contextlib.suppress(KeyboardInterrupt):
        run_to_the_end(_watch(*meant, console))


def frame(
    sight: Sight,
    losses: Sequence[Point],
    names: Mapping[str, str] | None = None,
    below: RenderableType = "",
    chart_rows: int = USUAL_CHART_ROWS,
    peer_rows: int | None = None,
) -> RenderableType:
    """The whole display: swarm, loss chart, and whatever belongs below."""
    parts: list[RenderableType] = [swarm(sight, names, peer_rows), Text()]
    if len(losses) > 1 and chart_rows >= MIN_CHART_ROWS:
        unit = loss_unit(sight.view.data_amount)
        parts.append(Text(f"loss ({unit}) by round" if unit else "loss by round", "bold"))
        parts.append(LossChart(losses, chart_rows))
        parts.append(Text())
    parts.append(below)
    return Padding(Group(*parts), (1, 2, 0, 2))


def chart_rows(screen_rows: int, peers: int, other_rows: int) -> int:
    """Rows left for the chart on this screen: what is below it must stay visible."""
    return min(MAX_CHART_ROWS, screen_rows - _FRAME_ROWS - peers - other_rows)


def plain_line(sight: Sight) -> str:
    """What a display shows, as one line of a log."""
    view = sight.view
    loss = "" if view.loss is None else f"  loss {view.loss:.4f}"
    peers = f"{len(view.peers)} peer" + ("" if len(view.peers) == 1 else "s")
    batch = "" if view.global_batch is None else f"/{view.global_batch}"
    return (
        f"{view.run}  round {view.round}  {peers}  {view.accumulated}{batch} mini-batches"
        f"  {view.tokens_per_s:,.0f} {trained_on(view.data_amount)}/s{loss}"
    )


@contextlib.contextmanager
def live_display(
    console: Console, draw: Callable[[], RenderableType] | None = None
) -> Iterator[Live]:
    """The terminal's second screen, drawn only when told, and again when it is resized: with what
    `draw` gives for the new size, or as it was updated last."""
    loop = asyncio.get_running_loop()
    with Live(console=console, screen=True, auto_refresh=False, get_renderable=draw) as live:
        loop.add_signal_handler(signal.SIGWINCH, live.refresh)
        try:
            yield live
        finally:
            loop.remove_signal_handler(signal.SIGWINCH)


async def _watch(address: str, state: Path | None, console: Console) -> None:
    show = _watch_live if draws(console) else _watch_plain
    try:
        async with following(address, state) as (feed, follower), asyncio.TaskGroup() as group:
            group.create_task(feed.follow())
            await show(feed, follower, console)
    except ExceptionGroup as several:
        if several.subgroup(BrokenPipeError) is None:
            raise
        raise BrokenPipeError(errno.EPIPE, os.strerror(errno.EPIPE)) from several


async def _watch_live(feed: SwarmFeed, follower: Follower, console: Console) -> None:
    try:
        with live_display(
            console, lambda: Screen(feed.seen, follower.sight, console.height)
        ) as live:
            while True:
                live.refresh()
                await feed.news()
    finally:
        # what was seen last stays readable on the ordinary screen
        console.print(frame(follower.sight, _curve(feed.seen)))


@dataclass(frozen=True)
class Screen:
    """The display for a terminal of so many rows. What is below the peers, and a problem, stays on
    it: where words fold the chart goes first, then peers are counted instead of listed."""

    seen: Seen
    sight: Sight
    height: int

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        listed = self.sight.view.peers
        chart = chart_rows(self.height, len(listed), other_rows=1)
        peers = max(1, min(len(listed), self.height - _SWARM_ROWS - 1))
        while True:
            shown = self._shown(chart, peers)
            rows = len(console.render_lines(shown, options.update(height=None), pad=False))
            excess = rows - self.height
            if excess <= 0 or (peers == 1 and chart < MIN_CHART_ROWS):
                break
            if chart >= MIN_CHART_ROWS:
                chart -= excess
            else:
                peers -= min(peers - 1, 1 + excess // _MOST_FOLDS)
        yield shown

    def _shown(self, chart: int, peers: int) -> RenderableType:
        seen = self.seen
        shown = frame(self.sight, _curve(seen), None, footer(seen), chart, peers)
        # Where nothing helps, what is below is cut off: a problem must not be.
        return Group(Text(f"  {seen.problem}", "yellow"), shown) if seen.problem else shown


def _curve(seen: Seen) -> list[Point]:
    return [(float(number), loss) for number, loss in thinned(seen.losses, MAX_POINTS)]


async def _watch_plain(feed: SwarmFeed, follower: Follower, console: Console) -> None:
    """A line when the round is another, and when peers come or go."""
    said: tuple[int, frozenset[str]] | None = None
    while True:
        sight = follower.sight
        now_seen = sight.view.round, frozenset(sight.leases)
        if now_seen != said:
            said = now_seen
            line = f"{time.strftime('%H:%M:%S')}  {plain_line(sight)}"
            console.print(line, markup=False, soft_wrap=True)
        await feed.news()


def footer(seen: Seen) -> RenderableType:
    """Why the round under way is not committed yet, if somebody tried; else how to end this."""
    void = [each for each in seen.view.void_attempts if each.round > seen.view.round]
    if void:
        last = void[-1]
        who = short_id(last.peer_id)
        return Text(f"round {last.round:,}: no result, {last.reason} ({who} says)", "yellow")
    return Text("Ctrl-C ends the display", "quiet")
