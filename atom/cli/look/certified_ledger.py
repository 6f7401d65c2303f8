"""A run's ledger read once, for a command that shows it and ends."""

import asyncio
from functools import partial
from pathlib import Path

from atom.base.errors import AddressError, TrustError
from atom.cli.look.bookkeeper import Bookkeeper, bookkeeping, identity_in
from atom.cli.look.onlooker import EMPTY_RETRIES, RETRY_S, Onlooker, Sight, onlooking
from atom.cli.shell.console import TerminalConsole
from atom.swarm.addresses import parse_join_address
from atom.swarm.chain.ledger import Ledger
from atom.swarm.records.manifest import Manifest


async def read_ledger(address: str, state: Path | None) -> tuple[Manifest, Ledger]:
    """The run's ledger as it is now. Raises: AddressError: also if nobody serves the chain;
    TrustError if that is for listed peers only, and this is none of them."""
    me = identity_in(state)
    async with onlooking(parse_join_address(address)) as onlooker:
        sight = await onlooker.first_look()
        async with bookkeeping(onlooker.manifest, me) as keeper:
            ledger = await _up_to_date(keeper, onlooker, sight)
            return onlooker.manifest, ledger


async def _up_to_date(keeper: Bookkeeper, onlooker: Onlooker, sight: Sight) -> Ledger:
    """Asks again for a while: peers serve their last heads only, and a lease may name one before
    them. Raises: AddressError, TrustError."""
    console = TerminalConsole()
    tell = partial(console.progress, "checking the chain", unit="rounds")
    try:
        ledger = await keeper.read(sight.leases, tell)
        for _ in range(EMPTY_RETRIES):
            if keeper.shut_out or not keeper.problem:
                break
            await asyncio.sleep(RETRY_S)
            sight = await onlooker.first_look()
            ledger = await keeper.read(sight.leases, tell)
    finally:
        console.close()
    unread = f"the chain cannot be read: {keeper.problem}"
    if keeper.shut_out:
        ask = "ask on the box of such a peer; --state DIR, if its state is not in the usual place"
        raise TrustError(unread, ask)
    if keeper.problem:
        raise AddressError(unread, "try again in a moment; `atom status` shows who is alive")
    if not ledger.head.round and not sight.leases:
        raise AddressError("no peer of the run is alive to serve its chain", "try again later")
    return ledger
