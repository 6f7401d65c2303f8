"""All-reduce: every member ends with the same bytes, or with a failure that names its cause.

First all connections of an attempt are opened; if one cannot be opened, all are closed.

Each connection carries chunks in one direction and has its own thread. The caller's thread watches
for cancellation. The result is in new memory, so a broken exchange costs nothing but time. A member
that notices a failure names the suspect to its peers before it hangs up. A member that waits for
bytes says so in WAITING frames. So a silent peer is blamed, not the peers that wait for it.

A member that sends for most of the time holds up the exchange: then the exchange's pace is the
speed of that member's line. All other members only learn that their lines are at least as fast.
`SpeedBook` keeps these speeds, and gives the slowest pace that the next exchange may have.
"""

import math
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial

from atom.base.errors import PeerRefused, Reason
from atom.swarm.exchange.choice import averages_moved
from atom.swarm.exchange.contribution import Contribution
from atom.swarm.exchange.encoded import MeanWires
from atom.swarm.exchange.halves import Half, OwnPart, PartsReceiver, Receiver, Sender
from atom.swarm.exchange.plans import PartsPlan, Step
from atom.swarm.exchange.reduction import ExchangeBroken, Reduction, Terms, send_broken
from atom.swarm.records.lease import LONGEST_ROUND_TRIP_S, Link, short_name
from atom.swarm.stream.frames import SLOWEST_BYTES_PER_S, Channel, Interrupted, Pace, Purpose
from atom.swarm.transport.transport import Transport

assert sys.byteorder == "little", "chunks travel in the machine's own byte order"

_DIALLED_BY_SENDER, _DIALLED_BY_RECEIVER = bytes([1]), bytes([2])
"""Last byte of a connection's tag: chunks are sent in only one direction of a connection."""

_Link = tuple[int, int]
"""Ranks of the sender and the receiver of a connection."""
_WATCH_S = 0.05
_GRACE_S = 1.0
FRACTION = 20
"""Factor by which an exchange may be slower than the fastest of the last exchanges."""
REMEMBERED = 16
"""Number of exchanges whose rates are kept."""
KEPT = 64
"""Number of peers whose speed is kept; the peer met longest ago is forgotten first."""
BUSY_SHARE = 0.5
"""Fraction of an exchange's time spent in sending from which on the line held up the exchange."""
LEAST_BYTES = 1 << 20
"""Least bytes of a measurement: shorter transfers measure buffers rather than lines."""
RATE_KEPT_S = 1800.0
"""Time after which a measured speed is forgotten, so that a slow line that no exchange has used
since is tried again."""


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


class SpeedBook:
    """Speeds of the connections to other peers, and rates of the last exchanges. Thread-safe."""

    def __init__(self, now: Callable[[], float] = time.monotonic) -> None:
        self._now = now
        self._lock = threading.Lock()
        self._links: dict[str, tuple[Link, float]] = {}
        """Link to each peer, by peer id, and the time at which its speed was measured."""
        self._rates = deque[float](maxlen=REMEMBERED)
        self._given_way = 0

    def finished(self, terms: Terms, channels: Channels, elements: int, seconds: float) -> None:
        """Record the speed of a completed exchange.

        Args:
            terms: Terms of the exchange.
            channels: Its connections.
            elements: Elements of its arena.
            seconds: Its duration.
        """
        shares = terms.shares or (1,) * len(terms.members)
        moved = [averages_moved(shares, rank) for rank in range(len(shares))]
        wire_bytes, seconds = terms.codec.wire_bytes(elements), max(seconds, 1e-3)
        ours = all(right.sending_s >= BUSY_SHARE * seconds for right in channels.right)
        with self._lock:
            self._rates.append(4 * elements * moved[terms.rank] / seconds)
            self._given_way = 0
            for right in channels.right:
                line = terms.rank if ours else terms.members.index(right.peer_id)
                self._note(right, moved[line] * wire_bytes, seconds)

    def too_slow(self) -> None:
        """Record that an exchange was too slow: halve the pace that the next one must reach.

        If a line has become slower, a few attempts find a pace that it can reach.
        """
        with self._lock:
            self._given_way += 1

    def pace(self) -> Pace:
        """Return the least pace of the next exchange."""
        with self._lock:
            best, halved = max(self._rates, default=0.0), 2.0 ** min(self._given_way, 60)
        return Pace(bytes_per_s=max(best / FRACTION / halved, SLOWEST_BYTES_PER_S))

    def links(self, most: int) -> dict[str, Link]:
        """Return the links to the peers met last, by peer id; at most `most`."""
        with self._lock:
            known = [
                (peer, replace(link, bytes_per_s=self._rate(peer)))
                for peer, (link, _) in self._links.items()
            ]
        return dict(known[-most:])

    def _note(self, right: Channel, count: float, seconds: float) -> None:
        rate, pace = self._rate(right.peer_id), count / seconds
        _, rated_at = self._links.pop(right.peer_id, (None, -math.inf))
        if count >= LEAST_BYTES and (right.sending_s >= BUSY_SHARE * seconds or pace > rate):
            rate, rated_at = pace, self._now()
        round_trip_s = min(right.round_trip_s, LONGEST_ROUND_TRIP_S)
        link = Link(short_name(right.peer_id), round_trip_s, rate)
        self._links[right.peer_id] = link, rated_at
        while len(self._links) > KEPT:
            del self._links[next(iter(self._links))]

    def _rate(self, peer_id: str) -> float:
        """Return the measured speed to a peer in bytes per second; infinite if this connection held
        up no exchange lately."""
        link, rated_at = self._links.get(peer_id, (None, -math.inf))
        return link.bytes_per_s if link and self._now() - rated_at <= RATE_KEPT_S else math.inf
