"""Opening the connections that make a peer a member of one attempt's ring."""

import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from atom.base.errors import PeerRefused
from atom.base.reasons import Reason
from atom.swarm.chain.commit import Ballot
from atom.swarm.exchange.failure import RingBroken, tell_broken
from atom.swarm.exchange.geometry import ring_tag
from atom.swarm.stream.frames import Channel, Purpose
from atom.swarm.transport.transport import PeerTransport

_LEAF = b"leaf"
"""Ends the tag of the connections between a leaf and its carrier."""


@dataclass(frozen=True)
class RingChannels:
    """To both neighbours, as many to each; none in a ring of one. A leaf's are both its carrier."""

    left: tuple[Channel, ...] = ()
    right: tuple[Channel, ...] = ()
    leaf: tuple[Channel, Channel] | None = None
    """From the leaf that we carry, and to it."""

    def close(self) -> None:
        for channel in (*self.left, *self.right, *(self.leaf or ())):
            channel.close()


def open_ring(
    transport: PeerTransport,
    order: Sequence[str],
    parent: bytes,
    ballot: Ballot,
    timeout_s: float,
    connections: int = 1,
    leaf: str = "",
) -> RingChannels:
    """This peer's channels to its neighbours in `order`, and to the leaf that it carries, if it
    does; all within `timeout_s`.

    Raises: RingBroken naming the neighbour, or the leaf, that did not come.
    """
    if len(order) == 1:
        return RingChannels()
    rank, tag = order.index(transport.peer_id), ring_tag(parent, ballot)
    left, right = order[rank - 1], order[(rank + 1) % len(order)]
    tags = [tag + bytes([number]) for number in range(connections)]
    deadline = time.monotonic() + timeout_s
    outgoing, incoming, pair = list[Channel](), list[Channel](), list[Channel]()

    def meet_leaf() -> None:
        pair.append(_dialled(transport, leaf, tag + _LEAF, deadline))
        pair.append(_awaited(transport, leaf, tag + _LEAF, deadline))

    try:
        with ThreadPoolExecutor(1, "atom-leaf") as pool:  # beside the others: it is far away
            met = pool.submit(meet_leaf) if leaf else None
            for each in tags:
                outgoing.append(_dialled(transport, right, each, deadline))
            for each in tags:
                incoming.append(_awaited(transport, left, each, deadline))
        if met is not None:
            met.result()
    except BaseException as failure:
        _hang_up([*outgoing, *incoming, *pair], failure, transport.peer_id)
        raise
    return RingChannels(tuple(incoming), tuple(outgoing), (pair[1], pair[0]) if leaf else None)


def open_leaf(
    transport: PeerTransport, carrier: str, parent: bytes, ballot: Ballot, timeout_s: float
) -> RingChannels:
    """A leaf's channels to its carrier and from it. The carrier may wait for its neighbours for
    all of `timeout_s`, and then says whose fault it was: so as long again is waited.

    Raises: RingBroken naming the carrier.
    """
    tag, deadline = ring_tag(parent, ballot) + _LEAF, time.monotonic() + 2 * timeout_s
    up = _dialled(transport, carrier, tag, deadline)
    try:
        return RingChannels((_awaited(transport, carrier, tag, deadline),), (up,))
    except BaseException as failure:
        _hang_up([up], failure, transport.peer_id)
        raise


def open_one_shot(
    transport: PeerTransport,
    order: Sequence[str],
    parent: bytes,
    ballot: Ballot,
    timeout_s: float,
) -> RingChannels:
    """This peer's channels to and from all others, in ring order from its right neighbour on.

    Raises: RingBroken naming one that did not come.
    """
    if len(order) == 1:
        return RingChannels()
    rank, tag = order.index(transport.peer_id), ring_tag(parent, ballot) + bytes(1)
    others = [order[(rank + 1 + lane) % len(order)] for lane in range(len(order) - 1)]
    deadline = time.monotonic() + timeout_s
    opened = list[Channel]()
    try:
        with ThreadPoolExecutor(len(others), "atom-dial") as pool:  # their round trips at once
            dials = [pool.submit(_dialled, transport, peer, tag, deadline) for peer in others]
        opened += [dial.result() for dial in dials if dial.exception() is None]
        outgoing = tuple(dial.result() for dial in dials)
        for peer in others:
            opened.append(_awaited(transport, peer, tag, deadline))
    except BaseException as failure:
        _hang_up(opened, failure, transport.peer_id)
        raise
    return RingChannels(tuple(opened[len(outgoing) :]), outgoing)


def _hang_up(channels: list[Channel], failure: BaseException, me: str) -> None:
    """Tells the neighbours that did come who did not, so that they do not blame us."""
    for channel in channels:
        if isinstance(failure, RingBroken):
            tell_broken(channel, failure, me)
        channel.close()


def _dialled(transport: PeerTransport, right: str, tag: bytes, deadline: float) -> Channel:
    try:
        return transport.connect(right, Purpose.RING, tag, max(deadline - time.monotonic(), 0.0))
    except PeerRefused as refused:
        raise RingBroken(right, refused.reason, refused.detail) from refused
    except OSError as error:
        raise RingBroken(right, Reason.RING_BROKEN, str(error)) from error


def _awaited(transport: PeerTransport, left: str, tag: bytes, deadline: float) -> Channel:
    try:
        return transport.accept_ring(left, tag, max(deadline - time.monotonic(), 0.0))
    except (PeerRefused, OSError) as error:
        reason = error.reason if isinstance(error, PeerRefused) else Reason.RING_BROKEN
        raise RingBroken(left, reason, str(error)) from error
