"""Looks at the swarm again and again, and keeps what the page shows."""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from atom.base.errors import AtomError
from atom.dashboard.history import LossHistory, Point
from atom.swarm.view import SwarmView

LOOK_EVERY_S = 1.0

ReadView = Callable[[], Awaitable[SwarmView]]
"""The swarm now. May raise AtomError while the DHT cannot be asked."""


@dataclass(frozen=True)
class Seen:
    """Everything the page shows."""

    view: SwarmView
    rounds: int | None
    """The run's last round; None: endless, or not known."""
    losses: tuple[Point, ...]
    problem: str = ""
    """Why the view is not newer; empty: it is as new as can be."""


class SwarmFeed:
    """The latest sight of one run. `look` and `follow` belong to one event loop."""

    def __init__(self, read_view: ReadView, first: SwarmView, rounds: int | None = None) -> None:
        self._read_view = read_view
        self._history = LossHistory()
        self._history.add(first.round, first.loss)
        self._view = first
        self._rounds = rounds
        self._problem = ""

    @property
    def seen(self) -> Seen:
        return Seen(self._view, self._rounds, self._history.points, self._problem)

    async def look(self) -> None:
        """Looks once; a silent DHT leaves the last view, and says so."""
        try:
            view = await self._read_view()
        except AtomError as unavailable:
            self._problem = f"the DHT is silent, trying again ({unavailable})"
            return
        self._view, self._problem = view, ""
        self._history.add(view.round, view.loss)

    async def follow(self, every_s: float = LOOK_EVERY_S) -> None:
        """Looks until cancelled."""
        while True:
            await asyncio.sleep(every_s)
            await self.look()
