"""A crowd of identities from one machine that take part in a run as far as that is cheap.

    python -m benchmarks.attacks.crowd_identities PLAN

PLAN is JSON: the fields of `Target`, `identities` and `seconds`. `crowd.py` starts this program.

Each identity has a fresh key, publishes leases that claim work at the run's head, and opens a TLS
connection to every peer. A third of them never answers. The others answer each PREPARE with a
signed promise of a few sequences: a third then neglects the exchange, a third closes its door when
the exchange begins. None computes anything.
"""

import asyncio
import contextlib
import json
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from enum import StrEnum

from atom.base.errors import PeerRefused
from atom.base.events import EventFan
from atom.swarm.chain.commit import Voter, signed_by
from atom.swarm.chain.messages import Prepare, Promise, Ring, decode, encode
from atom.swarm.chain.succession import PROMISE_DOMAIN, promise_payload
from atom.swarm.records.lease import Lease
from atom.swarm.stream.frames import Channel, Purpose
from atom.swarm.transport.limits import Handlers
from atom.swarm.transport.transport import Transport
from benchmarks.attacks.tools import (
    FAILED,
    HOSTS,
    Counts,
    LeaseForger,
    Target,
    channel,
    lease_forger,
    ready,
)

PROMISED = 4
"""Sequences: one micro-batch."""
LOSS = 5.5
LEASES, LEASE_EVERY_S = 3, 4.0
"""Leases of one identity, which lives for so many intervals."""
READ_EVERY_S = 0.5
THREADS = 64
"""Threads for identities that come or go; a closed door may take ten seconds."""


class Manner(StrEnum):
    """Behaviour of an identity towards peers that count on it."""

    SILENT = "silent"
    NEGLECTS = "neglects"
    """Promise, take connections of the exchange, and send nothing."""
    LEAVES = "leaves"
    """Promise, and close the door when the exchange begins."""


MANNERS = tuple(Manner)


class Heads:
    """Newest lease of the run, and the state digest at each head that was seen."""

    def __init__(self) -> None:
        self.newest: Lease | None = None
        self.states: dict[bytes, bytes] = {}
        self.addresses: dict[str, Sequence[str]] = {}

    async def follow(self, forger: LeaseForger) -> None:
        """Read the run's leases for ever."""
        while True:
            self.newest = await forger.read() or self.newest
            for peer, lease in forger.leases.items():
                self.addresses[peer] = lease.addresses
                if lease.state_digest:
                    self.states[lease.head] = lease.state_digest
            await asyncio.sleep(READ_EVERY_S)


class Identity:
    """One identity of the crowd, with its own door."""

    def __init__(self, target: Target, manner: Manner, heads: Heads, counts: Counts) -> None:
        self._target, self._manner, self._heads, self._counts = target, manner, heads, counts
        self.local = target.stranger()
        handlers = Handlers(self._hear)
        self._transport = Transport(self.local, ("127.0.0.1", 0), EventFan(), handlers=handlers)
        self._held = list[Channel]()

    def enter(self, number: int) -> None:
        """Open the door, and connections to all peers of the run."""
        self._transport.start()
        for door in range(len(self._target.doors)):
            host = HOSTS[number % len(HOSTS)]
            try:
                opened = channel(self._target, door, self.local, Purpose.MESSAGES, host)
                self._held.append(opened)
                self._counts.add("connections")
            except FAILED:
                self._counts.add("connections refused")

    def leave(self) -> None:
        for opened in self._held:
            opened.close()
        self._transport.close()

    async def live(self, number: int, forger: LeaseForger) -> None:
        """Publish leases until its time is over."""
        await asyncio.to_thread(self.enter, number)
        self._counts.add("identities")
        address = "{}:{}".format(*self._transport.address)
        for _ in range(LEASES):
            like = self._heads.newest
            changes = {"sequences": PROMISED, "addresses": (address,)}
            if like and await forger.publish(like, self.local, **changes):
                self._counts.add("leases")
            await asyncio.sleep(LEASE_EVERY_S)
        await asyncio.to_thread(self.leave)

    def _hear(self, peer: str, _: bytes, raw: bytes) -> None:
        """Answer a message of a peer, on a thread of the transport."""
        with contextlib.suppress(PeerRefused):
            message = decode(raw)
            if isinstance(message, Prepare):
                self._counts.add("asked")
                self._promise(peer, message)
            elif isinstance(message, Ring):
                self._counts.add("in exchanges")
                if self._manner is Manner.LEAVES:
                    self._transport._endpoint.threads.start("leaves", self._close_door)

    def _close_door(self) -> None:
        self._transport._listener.close()

    def _promise(self, peer: str, call: Prepare) -> None:
        state = self._heads.states.get(call.parent)
        if self._manner is Manner.SILENT or state is None:
            return
        loss = LOSS * PROMISED
        payload = promise_payload(call.parent, call.ballot, PROMISED, loss, state, False)
        me = Voter(self.local.identity.peer_id, self.local.incarnation)
        signature = self.local.identity.sign(PROMISE_DOMAIN, signed_by(me, payload))
        promise = Promise(call.parent, call.ballot, None, None, PROMISED, loss, state, signature)
        self._transport.set_addresses(peer, self._heads.addresses.get(peer, ()))
        self._transport.send(peer, encode(promise))
        self._counts.add("promises")


async def crowd(target: Target, identities: int, seconds: float) -> None:
    """Let the identities arrive one after the other, evenly over `seconds`, and for ever after."""
    asyncio.get_running_loop().set_default_executor(ThreadPoolExecutor(THREADS))
    counts, heads, number = Counts(), Heads(), 0
    async with lease_forger(target) as forger, asyncio.TaskGroup() as tasks:
        tasks.create_task(heads.follow(forger))
        while heads.newest is None:
            await asyncio.sleep(READ_EVERY_S)
        ready()
        while True:
            identity = Identity(target, MANNERS[number % len(MANNERS)], heads, counts)
            tasks.create_task(identity.live(number, forger))
            number += 1
            await asyncio.sleep(seconds / identities)


def main(plan: str) -> None:
    fields = json.loads(plan)
    identities, seconds = fields.pop("identities"), fields.pop("seconds")
    asyncio.run(crowd(Target(**fields), identities, seconds))


if __name__ == "__main__":
    main(*sys.argv[1:])
