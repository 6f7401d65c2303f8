"""Looks at the swarm again and again, and keeps what the page shows."""

import asyncio
from dataclasses import dataclass
from typing import Protocol

from atom.base.errors import AtomError
from atom.extras.dashboard.chart import Point
from atom.swarm.chain.commit_chain import Ledger
from atom.swarm.records.view import SwarmView

LOOK_EVERY_S = 1.0
READ_EVERY_S = 2.0


class Swarm(Protocol):
    """What can be seen of one from outside."""

    async def view(self) -> SwarmView:
        """As it is now. Raises: AtomError while the DHT cannot be asked."""

    @property
    def ledger(self) -> Ledger:
        """The certified rounds, as far as they were read here."""

    @property
    def note(self) -> str:
        """Why the ledger is not newer; empty: it is as new as can be."""

    async def read(self) -> None:
        """Reads what is new of the chain. May take minutes; `note` says how far it is."""


@dataclass(frozen=True)
class Seen:
    """Everything the page shows."""

    view: SwarmView
    rounds: int | None
    """The run's last round; None: endless, or not known."""
    ledger: Ledger
    problem: str = ""
    """Why the view is not newer; empty: it is as new as can be."""
    ledger_note: str = ""
    """As `Swarm.note`."""

    @property
    def losses(self) -> tuple[Point, ...]:
        """Of the certified rounds, and no later ones: those are what anybody's lease claims."""
        return tuple((each.number, each.loss) for each in self.ledger.rounds)


class SwarmFeed:
    """The latest sight of one run. For one event loop."""

    def __init__(self, swarm: Swarm, first: SwarmView, rounds: int | None = None) -> None:
        self._swarm, self._view, self._rounds = swarm, first, rounds
        self._problem = ""
        self._news = asyncio.Event()

    @property
    def seen(self) -> Seen:
        swarm = self._swarm
        return Seen(self._view, self._rounds, swarm.ledger, self._problem, swarm.note)

    async def news(self) -> None:
        """Waits for the next look."""
        await self._news.wait()

    async def look(self) -> None:
        """Looks once; a silent DHT leaves the last view, and says so."""
        try:
            self._view = await self._swarm.view()
            self._problem = ""
        except AtomError as unavailable:
            self._problem = f"the DHT is silent, trying again ({unavailable})"
        news, self._news = self._news, asyncio.Event()
        news.set()

    async def follow(self, every_s: float = LOOK_EVERY_S) -> None:
        """Looks until cancelled; a chain that takes long to read keeps nobody from looking."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self._follow_view(every_s))
            group.create_task(self._follow_chain())

    async def _follow_view(self, every_s: float) -> None:
        while True:
            await asyncio.sleep(every_s)
            await self.look()

    async def _follow_chain(self) -> None:
        while True:
            await self._swarm.read()
            await asyncio.sleep(READ_EVERY_S)
