"""The exchange of one ballot, on a thread of its own; one at a time touches the gradients."""

import threading
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass, field, replace

from atom.base.clock import Clock
from atom.base.reasons import Reason
from atom.optim.clipping import gradient_norm
from atom.swarm.chain.commit import Ballot
from atom.swarm.exchange.allreduce import (
    Channels,
    ExchangeBroken,
    Terms,
    all_reduce,
    open_exchange,
)
from atom.swarm.exchange.contribution import Contribution
from atom.swarm.exchange.plans import ring_tag
from atom.swarm.exchange.speeds import SpeedBook
from atom.swarm.state.arenas import state_digest
from atom.swarm.stream.frames import Pace
from atom.swarm.transport.transport import Transport
from atom.training.round.events import Event, ExchangeFailed, ExchangeFinished, StartExchange
from atom.training.storage.results import Results

OPEN_S = 2.0
"""Two handshakes, even between continents; by parts all of them at once."""
PROGRESS_S = 1.3
"""A member with nothing to send says so every quarter of this: silence means frozen or cut off."""


def start_task(
    name: str,
    work: Callable[[], Event],
    failed: Callable[[Exception], Event],
    post: Callable[[Event], None],
) -> None:
    """Posts what `work` returns, from a thread of that name; or, whatever goes wrong with it, what
    `failed` makes of that. A system that has no thread to give is such a failure, too."""

    def run() -> None:
        try:
            outcome = work()
        except Exception as fault:  # noqa: BLE001 - whatever it is, the round must hear of it
            outcome = failed(fault)
        post(outcome)

    try:
        threading.Thread(target=run, name=name, daemon=True).start()
    except RuntimeError as fault:
        post(failed(fault))


@dataclass
class _Run:
    ballot: Ballot
    cancelled: threading.Event = field(default_factory=threading.Event)
    reading: threading.Lock = field(default_factory=threading.Lock)
    """Held while its thread may read the gradients: it begins to unless it is cancelled."""


class Exchange:
    """Starts and stops exchanges; results go to `results`, outcomes to `post`."""

    def __init__(
        self,
        transport: Transport,
        results: Results,
        offered: Callable[[bytes], Contribution],
        post: Callable[[Event], None],
        clock: Clock,
    ) -> None:
        """Start nothing yet.

        Args:
            offered: returns this peer's contribution, given the head that it was counted for.
            post: receives the outcome of each exchange, from the exchange's thread.
        """
        self._transport = transport
        self._results = results
        self._offered = offered
        self._post = post
        self._clock = clock
        self._run: _Run | None = None
        self.speeds = SpeedBook(clock.now)
        self.seconds: dict[bytes, float] = {}
        """How long the latest ring took, once it was open, by its result's digest."""
        self.gave_to: tuple[bytes, Ballot] | None = None
        """The parent and ballot of the latest exchange that ours went into."""

    def start(self, start: StartExchange) -> None:
        """Begins the ring of a ballot. The gradients stand still until it ends or is stopped."""
        self._run = run = _Run(start.ballot)

        def post(outcome: Event) -> None:
            if not run.cancelled.is_set():
                self._post(outcome)

        start_task(
            "ring", lambda: self._reduce(run, start), lambda fault: self._failed(run, fault), post
        )

    def stop(self) -> None:
        """Ends what is under way, if anything is. On return its thread does not read the gradients
        any more, nor ever will."""
        if (run := self._run) is not None:
            run.cancelled.set()
            with run.reading:
                pass

    def fetching_pace(self) -> Pace:
        """Of what a result takes, no slower than an exchange may be."""
        pace, elements = self.speeds.pace(), self._results.elements
        share = self._results.usual_bytes / (4 * elements)
        return replace(pace, bytes_per_s=share * pace.bytes_per_s)

    def _failed(self, run: _Run, fault: Exception) -> ExchangeFailed:
        """Whatever it is, it voids this ring only. What is not the ring's is our own fault."""
        if not isinstance(fault, ExchangeBroken):
            detail = f"{type(fault).__name__}: {fault}"[:200]
            return ExchangeFailed(run.ballot, self._transport.peer_id, detail)
        if fault.reason is Reason.TOO_SLOW:
            self.speeds.too_slow()
        seen = fault.suspect if fault.suspect and not fault.told else ""
        return ExchangeFailed(run.ballot, seen, fault.reason.value)

    def _reduce(self, run: _Run, start: StartExchange) -> ExchangeFinished:
        """Open the channels and average.

        Raises: ExchangeBroken; then the neighbours need not wait for this peer.
        """
        terms = self._terms(start)
        with closing(open_exchange(self._transport, terms, OPEN_S)) as channels, run.reading:
            if run.cancelled.is_set():
                raise ExchangeBroken(None, Reason.SUPERSEDED)
            return self._average(run, start, terms, channels)

    def _average(
        self, run: _Run, start: StartExchange, terms: Terms, channels: Channels
    ) -> ExchangeFinished:
        """Average over open channels, and hold the result."""
        elements = self._results.elements
        wires = terms.mean_wires(elements)
        gives = start.members[terms.rank].sequences > 0
        if gives:
            self.gave_to = start.parent, run.ballot
        source = self._offered(start.parent) if gives else None
        began = self._clock.now()
        all_reduce(source, wires, terms, channels, run.cancelled)
        took_s = self._clock.now() - began
        if channels.right:
            self.speeds.finished(terms, channels, elements, took_s)
        norm, result = gradient_norm(wires.numbers), wires.encoded()  # in this order
        finished = ExchangeFinished(run.ballot, state_digest(result.arenas), norm)
        self.seconds = {finished.digest: took_s}
        self._results.hold(finished.digest, result)
        return finished

    def _terms(self, start: StartExchange) -> Terms:
        """Raises: ExchangeBroken(BAD_WEIGHT)."""
        members = tuple(member.peer_id for member in start.members)
        sequences = sum(member.sequences for member in start.members)
        if sequences <= 0:
            raise ExchangeBroken(None, Reason.BAD_WEIGHT, "nobody contributes")
        return Terms(
            members=members,
            rank=members.index(self._transport.peer_id),
            tag=ring_tag(start.parent, start.ballot),
            scale=1.0 / sequences,
            codec=self._results.codec,
            shares=start.shares,
            progress_timeout_s=PROGRESS_S,
            opening_s=OPEN_S,
            pace=self.speeds.pace(),
        )
