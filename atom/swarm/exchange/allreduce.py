"""The all-reduce: every member ends with the same bytes, or with a named failure.

First all connections of one attempt are opened, or none.

Two threads per connection: one sends, one receives; the caller's thread watches for cancellation.
The result is memory of its own, so a broken exchange costs nothing but time. A
member that notices a failure tells its peers whom it blames before it hangs up; a member that
merely starves says so in WAITING frames. So the silence of one peer is not blamed on the innocent
ones behind it.
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
    tell_broken,
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
"""End the tag of a connection: chunks go one way over it."""

_Way = tuple[int, int]
"""Ranks of who sends and who receives."""
_WATCH_S = 0.05
_GRACE_S = 1.0


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


def all_reduce(
    source: Contribution | None,
    wires: MeanWires,
    terms: Terms,
    channels: Channels,
    cancelled: threading.Event | None = None,
) -> None:
    """The mean, scale · Σ sources over the members, into `wires`: in a ring, or by parts with
    owners. The same bytes on all of them.

    `source`: what this member brings; None counts as zeros. `wires`: `mean_wires` of the terms,
    new.

    `channels` come from `open_exchange` and are closed when this returns or raises; its
    threads are gone by then. After a failure what `wires` hold means nothing, nor what the
    source was told to lack.

    Raises: ExchangeBroken. TIMEOUT or RING_BROKEN: a peer fell silent or hung up. TOO_SLOW: a peer,
    or, without a suspect, the ring as a whole. MALFORMED: a chunk of the wrong place, hop or
    attempt, or bytes that no encoder writes. NOT_FINITE: someone's numbers, and we may
    ourselves be the suspect. SUPERSEDED: `cancelled` was set.
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
    """Run all threads to their end; a failing one has a moment to tell its neighbours why."""
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
    """Turns whatever ends `half` early into the reduction's failure, and passes that on."""
    reduction = half.reduction
    try:
        half.run()
        reduction.through()
    except Interrupted:
        pass  # somebody else failed, and said so
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
        tell_broken(half.channel, reduction.failure, reduction.terms.me)
