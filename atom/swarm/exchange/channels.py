"""Opening the connections that make a peer a member of one attempt's exchange."""

import time
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from atom.base.errors import PeerRefused
from atom.base.reasons import Reason
from atom.swarm.exchange.reduction import ExchangeBroken, Terms, tell_broken
from atom.swarm.stream.frames import Channel, Purpose
from atom.swarm.transport.transport import Transport

_DIALLED_BY_SENDER, _DIALLED_BY_RECEIVER = bytes([1]), bytes([2])
"""End the tag of a connection: chunks go one way over it."""

_Way = tuple[int, int]
"""Ranks of who sends and who receives."""


@dataclass(frozen=True)
class Channels:
    """From and to all that we exchange with, as in `Terms.neighbours`; none for a single member."""

    left: tuple[Channel, ...] = ()
    right: tuple[Channel, ...] = ()

    def close(self) -> None:
        for channel in (*self.left, *self.right):
            channel.close()


def open_exchange(transport: Transport, terms: Terms, timeout_s: float) -> Channels:
    """This peer's channels for one attempt's exchange, all within `timeout_s`. Who sends dials, but
    a member that owns no part is dialled by nobody.

    Raises: ExchangeBroken naming a peer that did not come.
    """
    deadline, (left, right) = time.monotonic() + timeout_s, terms.neighbours
    ways = [*((terms.rank, peer) for peer in right), *((peer, terms.rank) for peer in left)]
    ours = [way for way in ways if _dials(terms, way) == terms.rank]
    opened = dict[_Way, Channel]()

    def dial(way: _Way) -> None:
        opened[way] = _open(transport, terms, way, deadline)

    try:
        with ThreadPoolExecutor(max(len(ours), 1), "atom-dial") as pool:  # round trips at once
            dials = [pool.submit(dial, way) for way in ours]
        for each in dials:
            each.result()
        for way in ways:
            opened[way] = opened.get(way) or _open(transport, terms, way, deadline)
    except BaseException as failure:
        _hang_up(opened.values(), failure, terms.me)
        raise
    return Channels(
        tuple(opened[peer, terms.rank] for peer in left),
        tuple(opened[terms.rank, peer] for peer in right),
    )


def _dials(terms: Terms, way: _Way) -> int:
    """The rank of who dials."""
    sender, receiver = way
    return sender if not terms.shares or terms.shares[receiver] else receiver


def _open(transport: Transport, terms: Terms, way: _Way, deadline: float) -> Channel:
    """Dials, or waits to be dialled. Raises: ExchangeBroken."""
    dials, left_s = _dials(terms, way), max(deadline - time.monotonic(), 0.0)
    tag = terms.tag + (_DIALLED_BY_SENDER if dials == way[0] else _DIALLED_BY_RECEIVER)
    other = terms.members[way[0] if way[1] == terms.rank else way[1]]
    try:
        if dials == terms.rank:
            return transport.connect(other, Purpose.RING, tag, left_s)
        return transport.accept_ring(other, tag, left_s)
    except PeerRefused as refused:
        raise ExchangeBroken(other, refused.reason, refused.detail) from refused
    except OSError as error:
        raise ExchangeBroken(other, Reason.RING_BROKEN, str(error)) from error


def _hang_up(channels: Iterable[Channel], failure: BaseException, me: str) -> None:
    """Tells the neighbours that did come who did not, so that they do not blame us."""
    for channel in channels:
        if isinstance(failure, ExchangeBroken):
            tell_broken(channel, failure, me)
        channel.close()
