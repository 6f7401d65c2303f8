"""A DHT node that trains nothing: an entrance for others, `atom bootstrap`."""

import asyncio
from collections.abc import Callable
from pathlib import Path

from atom.base.events import EventSink
from atom.swarm.addresses import rank_addresses
from atom.swarm.dht.client import DirectoryUnavailable
from atom.swarm.dht.directory import no_answer, primary_host
from atom.swarm.dht.frames import NodeSettings
from atom.swarm.dht.supervisor import SteadyClient
from atom.swarm.identity import Identity


async def run_bootstrap(
    node: NodeSettings,
    stop: asyncio.Event,
    on_ready: Callable[[tuple[str, ...]], None],
    events: EventSink | None = None,
) -> None:
    """Serves until `stop` is set, and does not begin if that is before it could; `on_ready` gets
    the multiaddrs others may use, best first, and `events` that the DHT's process ended and was
    started again.

    Raises: AddressError, PortInUseError, StorageError, UserError.
    """
    if node.identity_path is not None:
        Identity.load_or_create(Path(node.identity_path))
    client = SteadyClient(node, events)
    opening = asyncio.create_task(_addresses(client))
    stopping = asyncio.create_task(stop.wait())
    try:
        await asyncio.wait({opening, stopping}, return_when=asyncio.FIRST_COMPLETED)
        if opening.done():
            on_ready(rank_addresses(opening.result(), primary_host()))
            await stopping
    finally:
        opening.cancel()
        stopping.cancel()
        await asyncio.gather(opening, stopping, return_exceptions=True)
        await client.close()


async def _addresses(client: SteadyClient) -> list[str]:
    """Of the node, once it is part of the DHT. Raises: as `run_bootstrap`."""
    try:
        await client.start()
        found: list[str] = (await client.call("addresses"))["addresses"]
    except DirectoryUnavailable as problem:
        raise no_answer(problem) from problem
    return found
