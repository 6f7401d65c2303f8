"""Asks peers for their chains, as a stranger who only looks: under a key made for the occasion."""

import os
import threading
from collections.abc import Mapping

from atom.base.events import NoEvents
from atom.swarm.chain.commit_chain import MAX_CHAIN_BYTES, chain_name
from atom.swarm.chain.ring_standing import Pace
from atom.swarm.identity import Identity
from atom.swarm.records.lease import Lease
from atom.swarm.records.manifest import Manifest, manifest_digest, seen_from_outside
from atom.swarm.state.fetch_options import FetchOptions
from atom.swarm.state.state_transfer import fetch_bytes
from atom.swarm.stream.handshake import Local
from atom.swarm.transport.outreach import contact_of
from atom.swarm.transport.transport import Transport

_SILENCE_S = 3.0
_PACE = Pace(slack_s=15.0, bytes_per_s=256 * 1024.0)
"""Of a chain, which cannot be checked before it is there: who claims most is asked first, and could
give it byte by byte. An onlooker keeps no round waiting, so a long one may take longer."""


class ChainFetcher:
    """A `FetchChain` over the transport; `close` it from another thread."""

    def __init__(self, manifest: Manifest, identity: Identity | None = None) -> None:
        """`identity`: of a peer of the run, where the run is open to listed peers only."""
        self._transport = Transport(
            Local(
                identity or Identity.create(),
                manifest_digest(manifest),
                os.urandom(16),
                allowed=seen_from_outside(manifest),
            ),
            None,
            NoEvents(),
        )
        self._stop = threading.Event()

    def __call__(self, lease: Lease, since: int) -> bytes:
        options = FetchOptions(MAX_CHAIN_BYTES, tries=1, silence_s=_SILENCE_S, pace=_PACE)
        name = chain_name(lease.head, since)
        return fetch_bytes(self._transport, [lease.peer_id], name, options, stop=self._stop)

    def know(self, leases: Mapping[str, Lease]) -> None:
        """Where everybody is: who cannot be dialled is reached through another. Before a call."""
        for peer_id, lease in leases.items():
            self._transport.set_contact(peer_id, contact_of(lease))

    def close(self) -> None:
        """Ends a fetch under way."""
        self._stop.set()
        self._transport.close()
