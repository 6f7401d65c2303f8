"""Following one swarm for as long as a command shows it: leases every second, the chain beside."""

import contextlib
from collections.abc import AsyncIterator
from pathlib import Path

from atom.cli.look.bookkeeper import Bookkeeper, bookkeeping, identity_in
from atom.cli.look.onlooker import Onlooker, Sight, onlooking
from atom.dashboard.feed import SwarmFeed
from atom.swarm.addresses import parse_join_address
from atom.swarm.chain.ledger import Ledger
from atom.swarm.records.view import SwarmView


class Follower:
    """The latest sight, and the chain that its peers serve (`atom.dashboard.feed.Chain`)."""

    def __init__(self, onlooker: Onlooker, keeper: Bookkeeper, first: Sight) -> None:
        self._onlooker = onlooker
        self._keeper = keeper
        self.sight = first

    async def view(self) -> SwarmView:
        self.sight = await self._onlooker.look()
        return self.sight.view

    @property
    def ledger(self) -> Ledger:
        return self._keeper.ledger

    @property
    def note(self) -> str:
        return self._keeper.note

    async def read(self) -> None:
        await self._keeper.read(self.sight.leases)


@contextlib.asynccontextmanager
async def following(address: str, state: Path | None) -> AsyncIterator[tuple[SwarmFeed, Follower]]:
    """A feed that has looked once, and what it looks with; somebody has to `follow` it.

    `state`: of the peer under whose name to ask. Raises: AddressError.
    """
    me = identity_in(state)
    async with onlooking(parse_join_address(address)) as onlooker:
        first = await onlooker.first_look()
        async with bookkeeping(onlooker.manifest, me) as keeper:
            follower = Follower(onlooker, keeper, first)
            yield SwarmFeed(follower.view, first.view, first.rounds, follower), follower
