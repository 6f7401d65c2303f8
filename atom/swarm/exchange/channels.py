"""Opening the connections that make a peer a member of one attempt's exchange."""

import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from atom.base.errors import PeerRefused
from atom.base.reasons import Reason
from atom.swarm.chain.commit import Ballot
from atom.swarm.exchange.failure import ExchangeBroken, tell_broken
from atom.swarm.exchange.plans import connected, ring_tag
from atom.swarm.stream.frames import Channel, Purpose
from atom.swarm.transport.transport import PeerTransport

_TO_PEER, _FROM_PEER = bytes([1]), bytes([2])
"""End the tag of a connection: which way its chunks go, seen from who dials."""


@dataclass(frozen=True)
class Channels:
    """Of a ring: to both neighbours, as many to each. Of parts: to all that we exchange with. None
    for a single member."""

    left: tuple[Channel, ...] = ()
    right: tuple[Channel, ...] = ()

    def close(self) -> None:
        for channel in (*self.left, *self.right):
            channel.close()


def open_exchange(
    transport: PeerTransport,
    members: Sequence[str],
    shares: Sequence[int],
    parent: bytes,
    ballot: Ballot,
    timeout_s: float,
    connections: int = 1,
) -> Channels:
    """This peer's channels for one attempt's exchange: by parts of these shares, or, if there are
    none, in a ring with so many `connections` to each neighbour. All within `timeout_s`.

    Raises: ExchangeBroken naming a peer that did not come.
    """
    if shares:
        return open_parts(transport, members, shares, parent, ballot, timeout_s)
    return open_ring(transport, members, parent, ballot, timeout_s, connections)


def open_ring(
    transport: PeerTransport,
    order: Sequence[str],
    parent: bytes,
    ballot: Ballot,
    timeout_s: float,
    connections: int = 1,
) -> Channels:
    """This peer's channels to its neighbours in `order`, all within `timeout_s`.

    Raises: ExchangeBroken naming the neighbour that did not come.
    """
    if len(order) == 1:
        return Channels()
    rank, tag = order.index(transport.peer_id), ring_tag(parent, ballot)
    left, right = order[rank - 1], order[(rank + 1) % len(order)]
    tags = [tag + bytes([number]) for number in range(connections)]
    deadline = time.monotonic() + timeout_s
    outgoing, incoming = list[Channel](), list[Channel]()
    try:
        for each in tags:
            outgoing.append(_dialled(transport, right, each, deadline))
        for each in tags:
            incoming.append(_awaited(transport, left, each, deadline))
    except BaseException as failure:
        _hang_up([*outgoing, *incoming], failure, transport.peer_id)
        raise
    return Channels(tuple(incoming), tuple(outgoing))


def open_parts(
    transport: PeerTransport,
    order: Sequence[str],
    shares: Sequence[int],
    parent: bytes,
    ballot: Ballot,
    timeout_s: float,
) -> Channels:
    """This peer's channels to and from all that it exchanges with (`PartsPlan.peers`), in their
    order. Owners dial each other; a member that owns no part dials both channels itself, so that
    nobody has to reach it.

    Raises: ExchangeBroken naming one that did not come.
    """
    rank, tag = order.index(transport.peer_id), ring_tag(parent, ballot)
    deadline = time.monotonic() + timeout_s
    peers = connected(shares, rank)

    def dial(peer: int, direction: bytes) -> Channel:
        return _dialled(transport, order[peer], tag + direction, deadline)

    def accept(peer: int, direction: bytes) -> Channel:
        return _awaited(transport, order[peer], tag + direction, deadline)

    ours = [(peer, _TO_PEER) for peer in peers if shares[peer]]
    ours += [(peer, _FROM_PEER) for peer in peers if not shares[rank]]
    theirs = [(peer, _TO_PEER) for peer in peers if shares[rank]]
    theirs += [(peer, _FROM_PEER) for peer in peers if not shares[peer]]
    sending, receiving = dict[int, Channel](), dict[int, Channel]()
    try:
        with ThreadPoolExecutor(max(len(ours), 1), "atom-dial") as pool:  # round trips at once
            dials = [(peer, way, pool.submit(dial, peer, way)) for peer, way in ours]
        for peer, way, dialled in dials:
            if dialled.exception() is None:
                (sending if way == _TO_PEER else receiving)[peer] = dialled.result()
        for _, _, dialled in dials:
            dialled.result()
        for peer, way in theirs:
            (receiving if way == _TO_PEER else sending)[peer] = accept(peer, way)
    except BaseException as failure:
        _hang_up([*sending.values(), *receiving.values()], failure, transport.peer_id)
        raise
    return Channels(tuple(receiving[p] for p in peers), tuple(sending[p] for p in peers))


def _hang_up(channels: list[Channel], failure: BaseException, me: str) -> None:
    """Tells the neighbours that did come who did not, so that they do not blame us."""
    for channel in channels:
        if isinstance(failure, ExchangeBroken):
            tell_broken(channel, failure, me)
        channel.close()


def _dialled(transport: PeerTransport, right: str, tag: bytes, deadline: float) -> Channel:
    try:
        return transport.connect(right, Purpose.RING, tag, max(deadline - time.monotonic(), 0.0))
    except PeerRefused as refused:
        raise ExchangeBroken(right, refused.reason, refused.detail) from refused
    except OSError as error:
        raise ExchangeBroken(right, Reason.RING_BROKEN, str(error)) from error


def _awaited(transport: PeerTransport, left: str, tag: bytes, deadline: float) -> Channel:
    try:
        return transport.accept_ring(left, tag, max(deadline - time.monotonic(), 0.0))
    except (PeerRefused, OSError) as error:
        reason = error.reason if isinstance(error, PeerRefused) else Reason.RING_BROKEN
        raise ExchangeBroken(left, reason, str(error)) from error
