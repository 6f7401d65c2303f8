"""`atom watch`: a swarm as it lives, from the DHT alone."""

import asyncio
import contextlib
import signal
import time
from collections.abc import Iterator, Mapping, Sequence

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.padding import Padding
from rich.text import Text

from atom.base.errors import AtomError
from atom.cli.loss_chart import LossChart, Point
from atom.cli.onlooker import Onlooker, Sight, onlooking
from atom.cli.signals import run_to_the_end
from atom.cli.swarm_table import swarm
from atom.cli.terminal import stdout_console
from atom.swarm.addresses import parse_join_address

LOOK_EVERY_S = 1.0
MAX_POINTS = 10_000
MIN_CHART_ROWS, MAX_CHART_ROWS = 3, 8
_FRAME_ROWS = 12
"""Headline, bar, the table's head, the chart's title and axis, and the blank lines between."""


class LossHistory:
    """The losses seen so far, one per round; a chain that went back drops the rounds after it."""

    def __init__(self) -> None:
        self.points: list[Point] = []

    def add(self, round_number: int, loss: float | None) -> None:
        if loss is None:
            return
        while self.points and self.points[-1][0] >= round_number:
            self.points.pop()
        self.points.append((float(round_number), loss))
        del self.points[:-MAX_POINTS]


def watch_swarm(address: str) -> None:
    """Shows the swarm until interrupted. Raises: AddressError."""
    console = stdout_console()
    with contextlib.suppress(KeyboardInterrupt):
        run_to_the_end(_watch(address, console))


def frame(
    sight: Sight,
    losses: Sequence[Point],
    names: Mapping[str, str] | None = None,
    below: RenderableType = "",
    chart_rows: int = MAX_CHART_ROWS,
) -> RenderableType:
    """The whole display: swarm, loss chart, and whatever belongs below."""
    parts: list[RenderableType] = [swarm(sight, names), Text()]
    if len(losses) > 1 and chart_rows >= MIN_CHART_ROWS:
        parts.append(Text("loss (nats per token) by round", "bold"))
        parts.append(LossChart(losses, sight.rounds, chart_rows))
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
        f"  {view.tokens_per_s:.0f} tokens/s{loss}"
    )


@contextlib.contextmanager
def live_display(console: Console) -> Iterator[Live]:
    """The terminal's second screen, drawn only when told, and again when it is resized."""
    loop = asyncio.get_running_loop()
    with Live(console=console, screen=True, auto_refresh=False) as live:
        loop.add_signal_handler(signal.SIGWINCH, live.refresh)
        try:
            yield live
        finally:
            loop.remove_signal_handler(signal.SIGWINCH)


async def _watch(address: str, console: Console) -> None:
    async with onlooking(parse_join_address(address)) as onlooker:
        sight = await onlooker.first_look()
        if console.is_terminal:
            await _watch_live(onlooker, sight, console)
        else:
            await _watch_plain(onlooker, sight, console)


async def _watch_live(onlooker: Onlooker, sight: Sight, console: Console) -> None:
    history, problem = LossHistory(), ""
    last = frame(sight, history.points)
    try:
        with live_display(console) as live:
            while True:
                history.add(sight.view.round, sight.view.loss)
                last = frame(sight, history.points)
                rows = chart_rows(console.height, len(sight.view.peers), other_rows=1)
                below = _footer(problem)
                live.update(frame(sight, history.points, None, below, rows), refresh=True)
                sight, problem = await _next(onlooker, sight)
    finally:
        console.print(last)  # what was seen last stays readable on the ordinary screen


async def _watch_plain(onlooker: Onlooker, sight: Sight, console: Console) -> None:
    """One line per round, and when peers come or go."""
    said: tuple[int, frozenset[str]] | None = None
    while True:
        now_seen = sight.view.round, frozenset(sight.leases)
        if now_seen != said:
            said = now_seen
            line = f"{time.strftime('%H:%M:%S')}  {plain_line(sight)}"
            console.print(line, markup=False, soft_wrap=True)
        sight, _ = await _next(onlooker, sight)


async def _next(onlooker: Onlooker, sight: Sight) -> tuple[Sight, str]:
    """The next sight; the last one, and why, while the DHT is silent."""
    await asyncio.sleep(LOOK_EVERY_S)
    try:
        return await onlooker.look(), ""
    except AtomError as unavailable:
        return sight, f"the DHT is silent, trying again ({unavailable})"


def _footer(problem: str) -> RenderableType:
    return Text(problem, "yellow") if problem else Text("Ctrl-C ends the display", "quiet")
