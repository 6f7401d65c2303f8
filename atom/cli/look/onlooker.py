"""Looking at a swarm from outside: a DHT node in client mode that publishes nothing."""

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass

from atom.base.errors import ConfigError
from atom.cli.shell.terminal import waiting
from atom.config.load import run_from_text
from atom.swarm.addresses import JoinAddress
from atom.swarm.dht.client import DirectoryUnavailable
from atom.swarm.dht.directory import Directory, no_answer, open_directory
from atom.swarm.dht.p2pd import NodeSettings
from atom.swarm.records.lease import Lease
from atom.swarm.records.manifest import Manifest
from atom.swarm.records.view import SwarmView, view_swarm

EMPTY_RETRIES = 3
"""A DHT that was just entered may need a moment to find the leases."""
RETRY_S = 0.7


@dataclass(frozen=True)
class Sight:
    """A swarm at one moment."""

    view: SwarmView
    rounds: int | None
    """The run's last round; None: endless, or its run file is of a newer version."""
    leases: dict[str, Lease]


class Onlooker:
    """Reads one run's leases. `look` may be called as often as one likes."""

    def __init__(self, directory: Directory, manifest: Manifest) -> None:
        self._directory = directory
        self.manifest = manifest
        self._rounds, self._global_batch = _agreed_on(manifest)

    async def look(self) -> Sight:
        """The swarm now. Raises: DirectoryUnavailable while the DHT cannot be asked."""
        leases = await self._directory.read_leases()
        view = view_swarm(self.manifest, leases.values(), self._global_batch, time.time())
        return Sight(view, self._rounds, leases)

    async def first_look(self) -> Sight:
        """As `look`, but patient with a DHT that was entered a moment ago.

        Raises: AddressError if the DHT answered no question.
        """
        problem: DirectoryUnavailable | None = None
        sight: Sight | None = None
        for attempt in range(EMPTY_RETRIES):
            if attempt:
                await asyncio.sleep(RETRY_S)
            try:
                sight = await self.look()
            except DirectoryUnavailable as unavailable:
                problem = unavailable
                continue
            if sight.view.peers:
                break
        if sight is None:
            assert problem is not None
            raise no_answer(problem)
        return sight


@contextlib.asynccontextmanager
async def onlooking(address: JoinAddress) -> AsyncIterator[Onlooker]:
    """An onlooker of the run that `address` names; its DHT node ends with the block.

    Raises: AddressError if no node is reached, or none knows the run.
    """
    node = NodeSettings(initial_peers=address.bootstrap, client_mode=True)
    with waiting("looking for the swarm"), _answering():
        directory = await open_directory(address.run, address.owner, node)
    try:
        with waiting("reading what the run is"), _answering():
            manifest, _ = await directory.read_manifest()
        yield Onlooker(directory, manifest)
    finally:
        await directory.close()


@contextlib.contextmanager
def _answering() -> Iterator[None]:
    """Raises: AddressError where the DHT cannot be asked."""
    try:
        yield
    except DirectoryUnavailable as problem:
        raise no_answer(problem) from problem


def _agreed_on(manifest: Manifest) -> tuple[int | None, int | None]:
    """Rounds of the run, and sequences of its global batch, as far as we can read them."""
    try:
        run = run_from_text(manifest.run_file)
    except ConfigError:
        return None, None
    return run.run.rounds, run.batch.global_sequences
