"""Looks at the swarm again and again, and keeps what the page shows."""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Protocol

from atom.base.errors import AtomError
from atom.extras.dashboard.chart import LossHistory, Point
from atom.swarm.chain.commit_chain import Ledger
from atom.swarm.records.view import SwarmView

LOOK_EVERY_S = 1.0
READ_EVERY_S = 2.0

ReadView = Callable[[], Awaitable[SwarmView]]
"""The swarm now. May raise AtomError while the DHT cannot be asked."""


class Chain(Protocol):
    """The run's certified rounds, as far as they were read here."""

    @property
    def ledger(self) -> Ledger | None: ...
    @property
    def note(self) -> str:
        """Why the ledger is not newer; empty: it is as new as can be."""
        ...

    async def read(self) -> None:
        """Reads what is new. May take minutes; `note` says how far it is."""


@dataclass(frozen=True)
class Seen:
    """Everything the page shows."""

    view: SwarmView
    rounds: int | None
    """The run's last round; None: endless, or not known."""
    losses: tuple[Point, ...]
    """Of the whole run once its chain was read, else of the rounds seen since."""
    problem: str = ""
    """Why the view is not newer; empty: it is as new as can be."""
    ledger: Ledger | None = None
    """None: nothing of the chain was read yet."""
    ledger_note: str = ""
    """As `Chain.note`."""


class SwarmFeed:
    """The latest sight of one run. For one event loop."""

    def __init__(
        self,
        read_view: ReadView,
        first: SwarmView,
        rounds: int | None = None,
        chain: Chain | None = None,
    ) -> None:
        """`chain`: None for a run whose chain nobody here may read."""
        self._read_view = read_view
        self._history = LossHistory()
        self._view = first
        self._keep(first)
        self._rounds = rounds
        self._chain = chain
        self._problem = ""
        self._certified_by: Ledger | None = None
        self._certified: tuple[Point, ...] = ()
        self._news = asyncio.Event()

    @property
    def seen(self) -> Seen:
        ledger, note = None, ""
        if self._chain is not None:
            ledger, note = self._chain.ledger, self._chain.note
        losses = self._losses(ledger)
        return Seen(self._view, self._rounds, losses, self._problem, ledger, note)

    def _losses(self, ledger: Ledger | None) -> tuple[Point, ...]:
        if ledger is None or not ledger.rounds:
            return self._history.points
        if self._certified_by is not ledger:
            self._certified_by = ledger
            self._certified = tuple((each.number, each.loss) for each in ledger.rounds)
        return self._certified  # and no later rounds: those are what anybody's lease claims

    async def news(self) -> None:
        """Waits for the next look."""
        await self._news.wait()

    async def look(self) -> None:
        """Looks once; a silent DHT leaves the last view, and says so."""
        try:
            self._keep(await self._read_view())
            self._problem = ""
        except AtomError as unavailable:
            self._problem = f"the DHT is silent, trying again ({unavailable})"
        news, self._news = self._news, asyncio.Event()
        news.set()

    def _keep(self, view: SwarmView) -> None:
        self._view = view
        self._history.add(view.round, view.loss)

    async def follow(self, every_s: float = LOOK_EVERY_S) -> None:
        """Looks until cancelled; a chain that takes long to read keeps nobody from looking."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self._follow_view(every_s))
            if self._chain is not None:
                group.create_task(self._follow_chain(self._chain))

    async def _follow_view(self, every_s: float) -> None:
        while True:
            await asyncio.sleep(every_s)
            await self.look()

    async def _follow_chain(self, chain: Chain) -> None:
        while True:
            await chain.read()
            await asyncio.sleep(READ_EVERY_S)
