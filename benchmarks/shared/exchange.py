"""Exchanges of Atom between transports of this machine, without a round around them."""

import time
from collections.abc import Iterable, Sequence
from typing import Any

from atom.base.events import EventFan
from atom.optim.gradients import FlatNumbers
from atom.swarm.chain.commit import Ballot
from atom.swarm.exchange.allreduce import all_reduce, open_exchange
from atom.swarm.exchange.codec import codec_named
from atom.swarm.exchange.contribution import Sums
from atom.swarm.exchange.plans import ring_tag
from atom.swarm.exchange.reduction import Terms
from atom.swarm.identity import Identity
from atom.swarm.stream.handshake import Local
from atom.swarm.transport.transport import Transport
from benchmarks.shared.members import PATIENCE_S

RUN, PARENT = bytes(32), bytes(32)
Contact = tuple[str, tuple[str, int]]
"""Peer id and address of a transport."""


def opened(host: str = "127.0.0.1", **more: Any) -> Transport:
    """Start a transport with a fresh identity; `more`: see `Transport`."""
    local = Local(Identity.create(), RUN, bytes(16))
    transport = Transport(local, (host, 0), EventFan(), **more)
    transport.start()
    return transport


def introduce(transport: Transport, contacts: Iterable[Contact]) -> None:
    """Make the addresses of these contacts known to a transport."""
    for peer_id, (host, port) in contacts:
        transport.set_addresses(peer_id, [f"{host}:{port}"])


def exchanged(
    transport: Transport,
    order: Sequence[str],
    number: int,
    sums: Sums,
    elements: int,
    codec: str = "float32",
    shares: tuple[int, ...] = (),
) -> tuple[FlatNumbers, float]:
    """Run one exchange with all members of `order`.

    Args:
        transport: of this member.
        order: peer ids of all members.
        number: of the exchange, the same at all members.
        sums: this member's numbers.
        elements: count of the numbers.
        codec: name of the codec.
        shares: of parts by rank; empty: a ring.

    Returns:
        The mean, and the seconds that opening connections took.
    """
    rank, ballot = order.index(transport.peer_id), Ballot(number, order[0], bytes(16))
    terms = Terms(
        tuple(order), rank, ring_tag(PARENT, ballot), 1 / len(order), codec_named(codec), shares,
        PATIENCE_S,
    )  # fmt: skip
    started = time.perf_counter()
    channels = open_exchange(transport, terms, PATIENCE_S)
    opening_s = time.perf_counter() - started
    wires = terms.mean_wires(elements)
    all_reduce(sums, wires, terms, channels)
    return wires.numbers, opening_s
