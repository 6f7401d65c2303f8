"""Latest state of a swarm, read again and again, for the page to show."""

import asyncio
from dataclasses import dataclass
from typing import Protocol

from atom.base.errors import AtomError
from atom.extras.dashboard.chart import Point
from atom.swarm.chain.commit_chain import Ledger
from atom.swarm.records.view import SwarmView

LOOK_EVERY_S = 1.0
"""Seconds between two views."""
READ_EVERY_S = 2.0
"""Seconds between the end of one read of the chain and the next."""


class Swarm(Protocol):
    """Source of a swarm's state, as it can be observed from outside."""

    async def view(self) -> SwarmView:
        """Return the swarm's current view.

        Raises:
            AtomError: The DHT did not answer.
        """

    @property
    def ledger(self) -> Ledger:
        """Rounds and contributions verified so far."""

    @property
    def note(self) -> str:
        """Reason why the ledger is not newer; empty if it is up to date."""

    async def read(self) -> None:
        """Update the ledger. May take minutes; `note` shows the progress."""


@dataclass(frozen=True)
class Seen:
    """State of a swarm, as the page shows it."""

    view: SwarmView
    rounds: int | None
    """Number of rounds of the run; None: endless, or unknown."""
    ledger: Ledger
    problem: str = ""
    """Reason why the view is not newer; empty if it is up to date."""
    ledger_note: str = ""
    """Reason why the ledger is not newer: see `Swarm.note`."""

    @property
    def losses(self) -> tuple[Point, ...]:
        """Losses of the certified rounds only: any lease can claim losses of later rounds."""
        return tuple((each.number, each.loss) for each in self.ledger.rounds)


class SwarmFeed:
    """Latest state of one run. Belongs to one event loop."""

    def __init__(self, swarm: Swarm, first: SwarmView, rounds: int | None = None) -> None:
        self._swarm, self._view, self._rounds = swarm, first, rounds
        self._problem = ""
        self._news = asyncio.Event()

    @property
    def seen(self) -> Seen:
        """Latest state of the swarm."""
        swarm = self._swarm
        return Seen(self._view, self._rounds, swarm.ledger, self._problem, swarm.note)

    async def news(self) -> None:
        """Wait until the next view was read, or the DHT failed to answer."""
        await self._news.wait()

    async def look(self) -> None:
        """Read the view once; if the DHT does not answer, keep the last view and note it."""
        try:
            self._view = await self._swarm.view()
            self._problem = ""
        except AtomError as unavailable:
            self._problem = f"the DHT does not answer, trying again ({unavailable})"
        news, self._news = self._news, asyncio.Event()
        news.set()

    async def follow(self, every_s: float = LOOK_EVERY_S) -> None:
        """Read views and the chain until cancelled.

        Two tasks do so, because reading a long chain must not delay the views.
        """
        async with asyncio.TaskGroup() as group:
            group.create_task(self.follow_views(every_s))
            group.create_task(self._follow_chain())

    async def follow_views(self, every_s: float = LOOK_EVERY_S) -> None:
        """Read views until cancelled."""
        while True:
            await asyncio.sleep(every_s)
            await self.look()

    async def _follow_chain(self) -> None:
        while True:
            await self._swarm.read()
            await asyncio.sleep(READ_EVERY_S)
