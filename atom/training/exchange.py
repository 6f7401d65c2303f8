"""Exchange (all-reduce) of one ballot on its own thread; only one at a time reads the gradients."""

import itertools
import threading
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass, replace

from atom.base.clock import Clock
from atom.base.errors import Reason
from atom.optim.clipping import gradient_norm
from atom.swarm.chain.commit import Ballot
from atom.swarm.exchange.allreduce import Channels, SpeedBook, all_reduce, open_exchange
from atom.swarm.exchange.choice import HANDSHAKES_S, averages_moved
from atom.swarm.exchange.contribution import Contribution
from atom.swarm.exchange.plans import ring_tag
from atom.swarm.exchange.reduction import ExchangeBroken, Terms
from atom.swarm.state.arenas import state_digest
from atom.swarm.stream.frames import Pace
from atom.swarm.transport.limits import UNCLAIMED_RING_S
from atom.swarm.transport.transport import Transport
from atom.training.round.events import Event, ExchangeFailed, ExchangeFinished, StartExchange
from atom.training.storage.results import Results

OPEN_S = 4.0
"""Seconds to open one channel: enough for an introduction and a punched connection on one
continent, or for four handshakes between continents."""
INTRODUCTION_S = 0.045
"""Seconds that an introducer may take to introduce two members: two TLS handshakes on a processor
that is busy with passes, and 16 kB on a line of 10 Mbit/s. One introducer may have to introduce all
members to each other."""
LEAST_SILENCE_S, MOST_SILENCE_S = 1.3, 10.0
"""Bounds on the seconds without any bytes after which a neighbour counts as frozen or cut off."""
SILENCE_SHARE = 0.01
"""Accepted silence, as a share of the duration of the slowest acceptable exchange. On a slow line
that several connections share, TCP repeats lost packets after seconds."""


def start_task(
    name: str,
    work: Callable[[], Event],
    failed: Callable[[Exception], Event],
    post: Callable[[Event], None],
) -> None:
    """Run `work` on a new thread and post the event that it returns.

    Args:
        name: Name of the thread.
        work: Function to run.
        failed: Converts an error of `work`, or the failure to start a thread, to an event.
        post: Receives the event.
    """

    def run() -> None:
        try:
            outcome = work()
        except Exception as fault:  # noqa: BLE001 - the round must learn of any error
            outcome = failed(fault)
        post(outcome)

    try:
        threading.Thread(target=run, name=name, daemon=True).start()
    except RuntimeError as fault:
        post(failed(fault))


def silence_s(pace: Pace, moved_bytes: float) -> float:
    """Return the seconds without any bytes after which a neighbour counts as frozen or cut off.

    Args:
        pace: Slowest acceptable pace of the exchange.
        moved_bytes: Bytes that we send in the exchange, before encoding.
    """
    share_s = SILENCE_SHARE * pace.due_s(round(moved_bytes))
    return max(LEAST_SILENCE_S, min(share_s, MOST_SILENCE_S))


def opening_s(members: int, introductions: int = 0) -> float:
    """Return the seconds to open all channels of an exchange, at most `UNCLAIMED_RING_S`.

    A member opens its channels at the same time, so it waits for their round trips once. But their
    handshakes share its processor: with 64 members and as many owners, 126 channels. On a machine
    that is busy with passes they take three times as long.

    Args:
        members: Number of members.
        introductions: Number of channels between members that cannot be dialled.
    """
    handshakes_s = 3 * HANDSHAKES_S * max(members - 2, 0)
    return min(OPEN_S + handshakes_s + INTRODUCTION_S * introductions, UNCLAIMED_RING_S)


def introductions(hidden: Sequence[bool], shares: Sequence[int]) -> int:
    """Return the number of channels between members that cannot be dialled; of a ring, at most.

    Args:
        hidden: True for each member that cannot be dialled, by rank.
        shares: Relative size of each member's part, by rank; empty: a ring.
    """
    owners = sum(map(bool, itertools.compress(shares, hidden)))
    return owners * (2 * sum(hidden) - owners - 1) if shares else sum(hidden)


@dataclass(eq=False)
class Exchange:
    """Starter of exchanges, one at a time; results go to `results`, and outcomes to `post`."""

    transport: Transport
    results: Results
    offered: Callable[[bytes, Ballot], Contribution]
    """Function that returns this peer's contribution to an exchange.

    It gets the digest of the head of the exchange, and its ballot.
    """
    post: Callable[[Event], None]
    """Function that receives the outcome of each exchange, on the exchange's thread."""
    clock: Clock

    def __post_init__(self) -> None:
        self._cancelled = threading.Event()
        """Event that stops the latest exchange."""
        self._reading = threading.Lock()
        """Lock held while the latest exchange may read the gradients.

        After its thread has the lock, the thread checks `_cancelled` before it reads.
        """
        self.speeds = SpeedBook(self.clock.now)
        self.seconds: dict[bytes, float] = {}
        """Duration of the latest exchange after its channels were open, by its result's digest."""

    def start(self, start: StartExchange) -> None:
        """Begin the exchange of a ballot.

        The caller must not change the gradients until the exchange has ended or been stopped.
        """
        cancelled, reading = threading.Event(), threading.Lock()
        self._cancelled, self._reading = cancelled, reading

        def post(outcome: Event) -> None:
            if not cancelled.is_set():
                self.post(outcome)

        start_task(
            "ring",
            lambda: self._reduce(start, cancelled, reading),
            lambda fault: self._failed(start.ballot, fault),
            post,
        )

    def stop(self) -> None:
        """Stop the running exchange, if any; on return it no longer reads the gradients."""
        self._cancelled.set()
        with self._reading:
            pass

    def fetching_pace(self) -> Pace:
        """Return the slowest acceptable pace for fetching a result: the pace of an exchange."""
        pace, elements = self.speeds.pace(), self.results.elements
        share = self.results.usual_bytes / (4 * elements)
        return replace(pace, bytes_per_s=share * pace.bytes_per_s)

    def _failed(self, ballot: Ballot, fault: Exception) -> ExchangeFailed:
        """Return the event for a failed exchange; an unexpected error counts as our own fault."""
        if not isinstance(fault, ExchangeBroken):
            detail = f"{type(fault).__name__}: {fault}"[:200]
            return ExchangeFailed(ballot, self.transport.peer_id, detail)
        if fault.reason in (Reason.TOO_SLOW, Reason.TIMEOUT) and not fault.reported:
            self.speeds.too_slow()
        seen = fault.suspect if fault.suspect and not fault.reported else ""
        return ExchangeFailed(ballot, seen, fault.reason.value)

    def _reduce(
        self, start: StartExchange, cancelled: threading.Event, reading: threading.Lock
    ) -> ExchangeFinished:
        """Open the channels and average. On an error the channels close, so neighbours stop too.

        Raises: ExchangeBroken.
        """
        terms = self._terms(start)
        with closing(open_exchange(self.transport, terms, terms.opening_s)) as channels, reading:
            if cancelled.is_set():
                raise ExchangeBroken(None, Reason.SUPERSEDED)
            return self._average(start, cancelled, terms, channels)

    def _average(
        self, start: StartExchange, cancelled: threading.Event, terms: Terms, channels: Channels
    ) -> ExchangeFinished:
        """Average over open channels, and hold the result in memory."""
        elements = self.results.elements
        wires = terms.mean_wires(elements)
        gives = start.members[terms.rank].sequences > 0
        source = self.offered(start.parent, start.ballot) if gives else None
        began = self.clock.now()
        all_reduce(source, wires, terms, channels, cancelled)
        took_s = self.clock.now() - began
        if channels.right:
            self.speeds.finished(terms, channels, elements, took_s)
        norm, result = gradient_norm(wires.numbers), wires.encoded()  # `encoded` moves the numbers
        finished = ExchangeFinished(start.ballot, state_digest(result.arenas), norm)
        self.seconds = {finished.digest: took_s}
        self.results.hold(finished.digest, result)
        return finished

    def _terms(self, start: StartExchange) -> Terms:
        """Return the terms of the exchange. Raises: ExchangeBroken(BAD_WEIGHT)."""
        me, members = self.transport.peer_id, tuple(each.peer_id for each in start.members)
        sequences = sum(member.sequences for member in start.members)
        if sequences <= 0:
            raise ExchangeBroken(None, Reason.BAD_WEIGHT, "nobody contributes")
        rank, hidden = members.index(me), [*map(self.transport.is_undialled, members)]
        moved = averages_moved(start.shares or (1,) * len(members), rank)
        limit_s = opening_s(len(members), introductions(hidden, start.shares))
        pace = replace(self.speeds.pace(), slack_s=limit_s + 1.0)
        return Terms(
            members=members,
            rank=rank,
            tag=ring_tag(start.parent, start.ballot),
            scale=1.0 / sequences,
            codec=self.results.codec,
            shares=start.shares,
            progress_timeout_s=silence_s(pace, 4 * self.results.elements * max(moved, 2.0)),
            opening_s=limit_s,
            pace=pace,
        )
