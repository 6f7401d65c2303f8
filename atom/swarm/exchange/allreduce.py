"""All-reduce: every member ends with the same bytes, or with a failure that names its cause.

First all connections of an attempt are opened; if one cannot be opened, all are closed.

Each connection carries chunks in one direction and has its own thread. The caller's thread watches
for cancellation. The result is in new memory, so a broken exchange costs nothing but time. A member
that notices a failure names the suspect to its peers before it hangs up. A member that waits for
bytes says so in WAITING frames. So a silent peer is blamed, not the peers that wait for it.
"""

import sys
import threading
import time
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial

from atom.base.errors import PeerRefused
from atom.base.reasons import Reason
from atom.swarm.exchange.contribution import Contribution, Sums
from atom.swarm.exchange.encoded import MeanWires
from atom.swarm.exchange.halves import Half, OwnPart, PartsReceiver, Receiver, Sender
from atom.swarm.exchange.plans import PartsPlan, Step
from atom.swarm.exchange.reduction import (
    ExchangeBroken,
    Reduction,
    Terms,
    send_broken,
)
from atom.swarm.stream.frames import Channel, Interrupted, Purpose
from atom.swarm.transport.transport import Transport

__all__ = [
    "Channels",
    "Contribution",
    "ExchangeBroken",
    "Sums",
    "Terms",
    "all_reduce",
    "open_exchange",
]

assert sys.byteorder == "little", "chunks travel in the machine's own byte order"

_DIALLED_BY_SENDER, _DIALLED_BY_RECEIVER = bytes([1]), bytes([2])
"""Last byte of a connection's tag: chunks are sent in only one direction of a connection."""

_Link = tuple[int, int]
"""Ranks of the sender and the receiver of a connection."""
_WATCH_S = 0.05
_GRACE_S = 1.0


@dataclass(frozen=True)
class Channels:
    """Connections from and to all neighbours, as in `Terms.neighbours`.

    A single member has no connections.
    """

    left: tuple[Channel, ...] = ()
    right: tuple[Channel, ...] = ()

    def close(self) -> None:
        """Close all connections."""
        for channel in (*self.left, *self.right):
            channel.close()


def open_exchange(transport: Transport, terms: Terms, timeout_s: float) -> Channels:
    """Open all connections of this peer for one attempt's exchange.

    The sender of a connection dials it. But a member that owns no part is never dialled: it dials
    both its connections to an owner.

    Args:
        transport: Transport of this peer.
        terms: Terms of the exchange.
        timeout_s: Time for all connections together.

    Raises:
        ExchangeBroken: A connection failed; the suspect is the peer at its other end.
    """
    deadline, (left, right) = time.monotonic() + timeout_s, terms.neighbours
    links = [*((terms.rank, peer) for peer in right), *((peer, terms.rank) for peer in left)]
    ours = [link for link in links if _dials(terms, link) == terms.rank]
    opened = dict[_Link, Channel]()

    def dial(link: _Link) -> None:
        opened[link] = _open(transport, terms, link, deadline)

    try:
        with ThreadPoolExecutor(max(len(ours), 1), "atom-dial") as pool:  # round trips at once
            dials = [pool.submit(dial, link) for link in ours]
        for each in dials:
            each.result()
        for link in links:
            opened[link] = opened.get(link) or _open(transport, terms, link, deadline)
    except BaseException as failure:
        _hang_up(opened.values(), failure, terms.me)
        raise
    return Channels(
        tuple(opened[peer, terms.rank] for peer in left),
        tuple(opened[terms.rank, peer] for peer in right),
    )


def _dials(terms: Terms, link: _Link) -> int:
    """Return the rank of the member that dials a connection."""
    sender, receiver = link
    return sender if not terms.shares or terms.shares[receiver] else receiver


def _open(transport: Transport, terms: Terms, link: _Link, deadline: float) -> Channel:
    """Dial a connection, or wait until its other end dials it. Raises: ExchangeBroken."""
    dials, left_s = _dials(terms, link), max(deadline - time.monotonic(), 0.0)
    tag = terms.tag + (_DIALLED_BY_SENDER if dials == link[0] else _DIALLED_BY_RECEIVER)
    other = terms.members[link[0] if link[1] == terms.rank else link[1]]
    try:
        if dials == terms.rank:
            return transport.connect(other, Purpose.RING, tag, left_s)
        return transport.accept_ring(other, tag, left_s)
    except PeerRefused as refused:
        raise ExchangeBroken(other, refused.reason, refused.detail) from refused
    except OSError as error:
        raise ExchangeBroken(other, Reason.RING_BROKEN, str(error)) from error


def _hang_up(channels: Iterable[Channel], failure: BaseException, me: str) -> None:
    """Report the missing peer on all open connections, so that no neighbour blames us; close."""
    for channel in channels:
        if isinstance(failure, ExchangeBroken):
            send_broken(channel, failure, me)
        channel.close()


def all_reduce(
    source: Contribution | None,
    wires: MeanWires,
    terms: Terms,
    channels: Channels,
    cancelled: threading.Event | None = None,
) -> None:
    """Compute the encoded mean, scale · Σ contributions, with the same bytes on all members.

    All threads have ended when this returns or raises. After a failure, the contents of `wires` and
    the errors reported to `source.record_lost` are undefined.

    Args:
        source: Contribution of this member; None counts as zeros.
        wires: Memory for the mean: a new `terms.mean_wires`.
        terms: Terms of the exchange.
        channels: Connections from `open_exchange`; closed at the end.
        cancelled: Event that ends the exchange early when it is set.

    Raises:
        ExchangeBroken: TIMEOUT or RING_BROKEN: a peer fell silent or hung up. TOO_SLOW: a peer is
            too slow, or, without a suspect, the ring as a whole. MALFORMED: a chunk of the wrong
            place, hop or attempt, or bytes that no encoder writes. NOT_FINITE: numbers of a member
            are not finite; this peer itself may be the suspect. SUPERSEDED: `cancelled` was set.
    """
    reduction = Reduction(terms, source, wires)
    if not channels.right:
        assert len(terms.members) == 1
        reduction.alone()
        return
    try:
        _run(reduction, channels, cancelled or threading.Event())
    finally:
        channels.close()
    if reduction.failure is not None:
        raise reduction.failure


def _halves(reduction: Reduction, channels: Channels) -> list[Half]:
    """Return the work of each thread: one per connection and direction."""
    plan, rank, (lefts, rights) = reduction.plan, reduction.terms.rank, reduction.terms.neighbours
    receiver: Callable[[Reduction, Channel, Iterable[Step]], Half] = Receiver
    if isinstance(plan, PartsPlan):
        receiver = partial(PartsReceiver, OwnPart(reduction, plan))
    sends = zip(channels.right, rights, strict=True)
    receives = zip(channels.left, lefts, strict=True)
    return [
        *(Sender(reduction, right, plan.stream(rank, peer)) for right, peer in sends),
        *(receiver(reduction, left, plan.stream(peer, rank)) for left, peer in receives),
    ]


def _run(reduction: Reduction, channels: Channels, cancelled: threading.Event) -> None:
    """Run all threads to their end. After a failure, threads have `_GRACE_S` to report it."""
    halves, threads = _halves(reduction, channels), list[threading.Thread]()
    for half in halves:
        thread = threading.Thread(target=_work, args=(half,), name="atom-all-reduce")
        thread.start()
        threads.append(thread)
    while not reduction.over.wait(_WATCH_S):
        if cancelled.is_set():
            reduction.fail(ExchangeBroken(None, Reason.SUPERSEDED, "cancelled here"))
    deadline = time.monotonic() + _GRACE_S
    for thread in threads:
        thread.join(max(deadline - time.monotonic(), 0.0))
    channels.close()  # frees a sender whose neighbour does not read
    for thread in threads:
        thread.join()


def _work(half: Half) -> None:
    """Run a half. Record its error as the reduction's failure, and report that to the neighbour."""
    reduction = half.reduction
    try:
        half.run()
        reduction.through()
    except Interrupted:
        pass  # another thread has failed and has recorded its failure
    except ExchangeBroken as broken:
        reduction.fail(broken)
    except PeerRefused as refused:
        reduction.fail(half.blame(refused.reason, refused.detail))
    except TimeoutError as error:
        reduction.fail(half.blame(Reason.TIMEOUT, str(error)))
    except OSError as error:
        reduction.fail(half.blame(Reason.RING_BROKEN, str(error)))
    except Exception as error:  # noqa: BLE001 - supervisor: raised again in the caller's thread
        reduction.fail(error)
    if reduction.failure is not None and half.between_frames:
        send_broken(half.channel, reduction.failure, reduction.terms.me)
