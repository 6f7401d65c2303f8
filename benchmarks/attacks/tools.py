"""Tools of a stranger on loopback: connections under fresh identities, leases, and counts."""

import contextlib
import json
import secrets
import socket
import sys
import time
from collections import Counter
from collections.abc import AsyncIterator
from dataclasses import dataclass, replace
from typing import Any

from atom.base.errors import PeerRefused
from atom.config.address import parse_host_port
from atom.swarm.dht.client import DhtClient
from atom.swarm.dht.directory import Directory
from atom.swarm.dht.p2pd import NodeSettings
from atom.swarm.identity import Identity
from atom.swarm.records.lease import LEASE_SECONDS, Lease, Reached
from atom.swarm.records.manifest import encode_lease, lease_key
from atom.swarm.records.store import DirectoryUnavailable
from atom.swarm.stream import handshake
from atom.swarm.stream.frames import Channel, Patience, Purpose
from atom.swarm.stream.handshake import Local
from atom.swarm.stream.tls import SocketStream, TlsStream
from benchmarks.attacks.share import READY

GIVES_UP_S = 5.0
HOSTS = [f"127.0.0.{number}" for number in range(2, 34)]
"""Addresses of this machine: a stranger with its own network has as many."""
FAILED = (OSError, PeerRefused)


@dataclass(frozen=True)
class Target:
    """A run under attack, as any stranger sees it."""

    run: str
    owner: str
    run_id: str
    """Hexadecimal."""
    peers: list[str]
    dht: list[str]
    """Multiaddr of each peer's DHT node."""
    doors: list[str]
    """HOST:PORT at which each peer takes connections."""

    def stranger(self) -> Local:
        """Return a fresh identity that claims to belong to the run."""
        return Local(Identity.create(), bytes.fromhex(self.run_id), secrets.token_bytes(16))


class Counts(Counter[str]):
    """Counts of an attack, which it writes to its standard output now and then."""

    def __init__(self) -> None:
        super().__init__()
        self._told_at = 0.0

    def add(self, name: str, number: int = 1) -> None:
        self[name] += number
        if time.monotonic() - self._told_at > 1.0:
            self._told_at = time.monotonic()
            say(json.dumps(self))


def say(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


def ready() -> None:
    """Say that the attack has begun."""
    say(READY)


# ---- connections


def connection(door: str, host: str) -> SocketStream:
    """Connect to a door from that address of this machine. Raises: OSError."""
    address = parse_host_port(door)
    return SocketStream(socket.create_connection(address, GIVES_UP_S, (host, 0)))


def channel(target: Target, number: int, local: Local, purpose: Purpose, host: str) -> Channel:
    """Open a channel to one peer that follows the protocol. Raises: one of FAILED."""
    stream = TlsStream(connection(target.doors[number], host))
    opened = Channel(stream)
    opened.purpose = purpose
    patience = Patience.within(GIVES_UP_S)
    try:
        stream.handshake(patience)
        certificate = stream.certificate() or b""
        handshake.greet(opened, local, target.peers[number], certificate, patience)
    except BaseException:
        opened.close()
        raise
    return opened


# ---- leases


class LeaseForger:
    """A DHT node that reads the leases of a run and publishes leases of made-up peers."""

    def __init__(self, target: Target, client: DhtClient) -> None:
        self._target, self._client = target, client
        self._directory = Directory(client, target.run, target.owner, None)
        self._serials = Counter[str]()
        self.leases: dict[str, Lease] = {}
        """Newest leases of the true peers."""

    async def read(self) -> Lease | None:
        """Return the newest lease of a true peer; None if there is none yet."""
        with contextlib.suppress(DirectoryUnavailable):
            found = await self._directory.read_leases()
            true = {peer: lease for peer, lease in found.items() if peer in self._target.peers}
            self.leases.update(true)
        working = [lease for lease in self.leases.values() if lease.state_digest]
        return max(working, key=lambda lease: (lease.round, lease.issued_at), default=None)

    async def publish(self, like: Lease, local: Local, **changes: Any) -> bool:
        """Publish a lease at the head of `like`; return False if the DHT does not take it."""
        me, target = local.identity.peer_id, self._target
        self._serials[me] += 1
        expires_at = time.time() + LEASE_SECONDS
        forged = replace(
            like,
            peer_id=me,
            incarnation=local.incarnation,
            serial=self._serials[me],
            issued_at=time.time(),
            reached=Reached.YES,
            links=(),
            name="",
            **changes,
        )
        record = encode_lease(forged, target.run, target.owner, local.identity, expires_at)
        try:
            await self._client.store(lease_key(target.run, target.owner), me, record, expires_at)
        except DirectoryUnavailable:
            return False
        return True


@contextlib.asynccontextmanager
async def lease_forger(target: Target) -> AsyncIterator[LeaseForger]:
    """Start a DHT node of the attacker that knows the run's peers."""
    client = DhtClient(NodeSettings(initial_peers=tuple(target.dht)))
    await client.start()
    try:
        yield LeaseForger(target, client)
    finally:
        await client.close()
