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
from atom.swarm.exchange.encoded import EncodedMean
from atom.swarm.exchange.held_plan import Holding, owners_of
from atom.swarm.exchange.plans import ring_tag
from atom.swarm.exchange.speeds import SpeedBook
from atom.swarm.exchange.stepping import Made, average_and_make
from atom.swarm.state.arenas import state_digest
from atom.swarm.state.part_rows import Row
from atom.swarm.stream.frames import Pace
from atom.swarm.transport.transport import Transport
from atom.training.replica.parts_step import PartsStep
from atom.training.round.events import Event, ExchangeFailed, ExchangeFinished, StartExchange
from atom.training.round.holders import parts_in
from atom.training.storage.parts_results import PartsResult
from atom.training.storage.results import AnyResults

OPEN_S = 2.0
"""Two handshakes, even between continents; by parts all of them at once."""
MOST_GIVEN = 4
"""Parts of the optimizer's state that are handed on in one exchange, those that fewest hold first:
who gives one and who gets one has it in memory beside its own state."""
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


def holding_of(start: StartExchange, ranges: tuple[tuple[int, int], ...]) -> Holding:
    """All members say the same. Raises: ExchangeBroken(NO_HOLDER): not what a coordinator calls
    for."""
    holds = tuple(parts_in(member.holds) for member in start.members)
    every = frozenset(range(len(ranges)))
    told = {each.peer_id: parts_in(each.parts) & every for each in start.told}
    owners = owners_of(holds, ranges)
    if owners is None or any(held - every for held in holds):
        raise ExchangeBroken(None, Reason.NO_HOLDER)
    pairs = zip(start.members, holds, strict=True)
    lacks = [told.get(member.peer_id, frozenset()) - held for member, held in pairs]
    wanted = sorted(
        frozenset[int]().union(*lacks), key=lambda part: (sum(part in h for h in holds), part)
    )
    given = frozenset(wanted[:MOST_GIVEN])
    return Holding(ranges, owners, holds, tuple(each & given for each in lacks))


def result_of(made: Made, work: PartsStep) -> PartsResult:
    """What a member has of an exchange's result."""
    loaded = {part: work.loaded(part, each) for part, each in made.made.items()}
    given = {part: each for part, each in made.made.items() if part not in made.means}
    held = {part: arenas for part, each in given.items() if (arenas := work.held(part, each))}
    rows = tuple(map(Row.of, made.rows))
    return PartsResult(rows, made.means, loaded, held)


@dataclass
class _Run:
    start: StartExchange
    cancelled: threading.Event = field(default_factory=threading.Event)
    reading: threading.Lock = field(default_factory=threading.Lock)
    """Held while its thread may read the gradients: it begins to unless it is cancelled."""


class Exchange:
    """Starts and stops exchanges; results go to `results`, outcomes to `post`."""

    def __init__(
        self,
        transport: Transport,
        results: AnyResults,
        offered: Callable[[bytes], Contribution],
        post: Callable[[Event], None],
        clock: Clock,
        work: Callable[[], PartsStep | None] = lambda: None,
    ) -> None:
        """`offered`: what this peer gives to a round, by the head that it was counted for. `work`:
        of the next round; None: the optimizer's state is whole."""
        self._transport = transport
        self._results = results
        self._offered = offered
        self._post = post
        self._clock = clock
        self._work = work
        self._run: _Run | None = None
        self.speeds = SpeedBook(clock.now)
        self.seconds: dict[bytes, float] = {}
        """How long the latest ring took, once it was open, by its result's digest."""
        self.gave_to: tuple[bytes, Ballot] | None = None
        """The parent and ballot of the latest exchange that ours went into."""

    def start(self, start: StartExchange) -> None:
        """Begins the ring of a ballot. The gradients stand still until it ends or is stopped."""
        self._run = run = _Run(start)

        def post(outcome: Event) -> None:
            if not run.cancelled.is_set():
                self._post(outcome)

        start_task("ring", lambda: self._reduce(run), lambda fault: self._failed(run, fault), post)

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
            return ExchangeFailed(run.start.ballot, self._transport.peer_id, detail)
        if fault.reason is Reason.TOO_SLOW:
            self.speeds.too_slow()
        seen = fault.suspect if fault.suspect and not fault.told else ""
        return ExchangeFailed(run.start.ballot, seen, fault.reason.value)

    def _reduce(self, run: _Run) -> ExchangeFinished:
        """Raises: ExchangeBroken; the neighbours need not wait for us then."""
        work = self._work()
        terms = self._terms(run.start, work)
        with closing(open_exchange(self._transport, terms, OPEN_S)) as channels, run.reading:
            if run.cancelled.is_set():
                raise ExchangeBroken(None, Reason.SUPERSEDED)
            return self._average(run, work, terms, channels)

    def _average(
        self, run: _Run, work: PartsStep | None, terms: Terms, channels: Channels
    ) -> ExchangeFinished:
        """Over open channels. Holds the result if all went well."""
        start = run.start
        gives = start.members[terms.rank].sequences > 0
        if gives:
            self.gave_to = start.parent, start.ballot
        source = self._offered(start.parent) if gives else None
        result: EncodedMean | PartsResult
        if work is None:
            wires, began = terms.mean_wires(self._results.elements), self._clock.now()
            all_reduce(source, wires, terms, channels, run.cancelled)
            took_s = self._took_s(began, terms, channels)
            norm, result = gradient_norm(wires.numbers), wires.encoded()  # in this order
            digest = state_digest(result.arenas)
        else:
            began = self._clock.now()
            made = average_and_make(source, work, terms, channels, run.cancelled)
            result, took_s = result_of(made, work), self._took_s(began, terms, channels)
            norm, digest = work.norm, result.digest
        self.seconds = {digest: took_s}
        self._results.hold(digest, result)
        return ExchangeFinished(start.ballot, digest, norm)

    def _took_s(self, began: float, terms: Terms, channels: Channels) -> float:
        """An exchange that ended well, as the next ones' pace and the ways' speeds are told."""
        took_s = self._clock.now() - began
        if channels.right:
            self.speeds.finished(terms, channels, self._results.elements, took_s)
        return took_s

    def _terms(self, start: StartExchange, work: PartsStep | None) -> Terms:
        """Raises: ExchangeBroken(BAD_WEIGHT, NO_HOLDER)."""
        members = tuple(member.peer_id for member in start.members)
        sequences = sum(member.sequences for member in start.members)
        if sequences <= 0:
            raise ExchangeBroken(None, Reason.BAD_WEIGHT, "nobody contributes")
        holding = None if work is None else holding_of(start, work.ranges)
        return Terms(
            members=members,
            rank=members.index(self._transport.peer_id),
            tag=ring_tag(start.parent, start.ballot),
            scale=1.0 / sequences,
            codec=self._results.codec,
            shares=start.shares if holding is None else holding.shares,
            holding=holding,
            progress_timeout_s=PROGRESS_S,
            opening_s=OPEN_S,
            pace=self.speeds.pace(),
        )
