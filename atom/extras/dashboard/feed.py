"""Latest state of a swarm, read again and again, for the page to show."""

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Protocol, TypeVar

from atom.base.errors import AtomError
from atom.swarm.chain.commit_chain import Ledger
from atom.swarm.records.view import SwarmView

LOOK_EVERY_S = 1.0
"""Seconds between two views."""
MOST_REMEMBERED = 500
"""Validations, and sample texts, that a feed keeps for the curve."""
T = TypeVar("T")
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
    validations: Mapping[int, float] = field(default_factory=dict)
    """Validation losses by round, as far as this feed saw them."""
    samples: Mapping[int, str] = field(default_factory=dict)
    """Sample texts by round, as far as this feed saw them."""


def _with(by_round: Mapping[int, T], number: int, value: T) -> dict[int, T]:
    """Return the newest values, with one more."""
    return dict(sorted({**by_round, number: value}.items())[-MOST_REMEMBERED:])


class SwarmFeed:
    """Latest state of one run. Belongs to one event loop."""

    def __init__(self, swarm: Swarm, first: SwarmView, rounds: int | None = None) -> None:
        self._swarm, self._last = swarm, Seen(first, rounds, swarm.ledger)
        self._remember(first)
        self._news = asyncio.Event()

    @property
    def seen(self) -> Seen:
        """Latest state of the swarm."""
        return replace(self._last, ledger=self._swarm.ledger, ledger_note=self._swarm.note)

    async def news(self) -> None:
        """Wait until the next view was read, or the DHT failed to answer."""
        await self._news.wait()

    async def look(self) -> None:
        """Read the view once; if the DHT or all peers are silent, keep the last view and note it.

        A reading without peers does not prove that they are gone: the DHT nodes through which this
        process entered may be.
        """
        last, problem = self._last.view, ""
        try:
            view = await self._swarm.view()
            if last.peers and not (view.peers or view.other_versions):
                since = f"{datetime.fromtimestamp(last.unix_time):%H:%M:%S}"
                problem = f"no peer has been found since {since}: this is the last known state"
        except AtomError as unavailable:
            problem = f"the DHT does not answer, trying again ({unavailable})"
        if problem:
            self._last = replace(self._last, problem=problem)
        else:
            self._remember(view)
        news, self._news = self._news, asyncio.Event()
        news.set()

    def _remember(self, view: SwarmView) -> None:
        """Keep a view, with its validation and sample text: leases hold only the newest ones."""
        validations, samples = self._last.validations, self._last.samples
        if losses := view.validation:
            validations = _with(validations, losses["round"], losses["loss"])
        if sample := view.sample:
            samples = _with(samples, sample.round, sample.text)
        self._last = replace(
            self._last, view=view, problem="", validations=validations, samples=samples
        )

    async def follow(self, every_s: float = LOOK_EVERY_S) -> None:
        """Read views and the chain until cancelled.

        Two tasks do so, because reading a long chain must not delay the views.
        """
        async with asyncio.TaskGroup() as group:
            group.create_task(self._follow_chain())
            while True:
                await asyncio.sleep(every_s)
                await self.look()

    async def _follow_chain(self) -> None:
        while True:
            await self._swarm.read()
            await asyncio.sleep(READ_EVERY_S)
