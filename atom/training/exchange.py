"""The ring of one ballot, on a thread of its own; at most one at a time touches the gradients."""

import threading
from collections.abc import Callable
from dataclasses import dataclass, field

from torch import Tensor

from atom.base.clock import Clock
from atom.base.reasons import Reason
from atom.swarm.chain.commit import Ballot
from atom.swarm.chain.ring_standing import Pace
from atom.swarm.exchange.algorithm import Algorithm
from atom.swarm.exchange.allreduce import (
    Arenas,
    RingBroken,
    RingTerms,
    all_reduce,
    open_leaf,
    open_one_shot,
    open_ring,
)
from atom.swarm.exchange.channels import RingChannels
from atom.swarm.exchange.codec import Codec, Float32
from atom.swarm.exchange.composition import leaves_of, seats_of
from atom.swarm.exchange.geometry import ring_tag
from atom.swarm.transport.transport import PeerTransport
from atom.training.feedback import Feedback
from atom.training.landing_result import LandingResult
from atom.training.ring_pace import PaceBook
from atom.training.round.events import RingFailed, RingFinished, StartRing
from atom.training.storage.results import Results

OPEN_S = 2.0
"""Two handshakes, even between continents; in a one-shot exchange all of them at once."""
PROGRESS_S = 1.3
"""Whoever has nothing to send says so every quarter of this; so silence means frozen or cut off."""


@dataclass(frozen=True)
class RingStyle:
    """How the run's gradients travel: the same for all of its peers."""

    codec: Codec = field(default_factory=Float32)
    connections: int = 1
    """To each neighbour."""
    feedback: Feedback | None = None
    """For codecs that want it."""


@dataclass
class _Run:
    ballot: Ballot
    cancelled: threading.Event = field(default_factory=threading.Event)
    reading: bool = False
    """Whether it is past the point where it may read the gradients."""
    thread: threading.Thread | None = None


class Exchange:
    """Starts and stops rings; results go to `results`, outcomes to `post`."""

    def __init__(
        self,
        transport: PeerTransport,
        results: Results,
        gradients: Callable[[bytes], Tensor],
        post: Callable[[RingFinished | RingFailed], None],
        clock: Clock,
        style: RingStyle,
    ) -> None:
        self._transport = transport
        self._results = results
        self._gradients = gradients
        self._post = post
        self._clock = clock
        self._style = style
        self._lock = threading.Lock()
        self._run: _Run | None = None
        self._paces = PaceBook()
        self.seconds: dict[bytes, float] = {}
        """How long the latest rings took, by result digest."""

    def start(self, start: StartRing) -> None:
        """Begins the ring of a ballot. The gradients stand still until it ends or is stopped."""
        run = _Run(start.ballot)
        run.thread = threading.Thread(
            target=self._reduce, args=(run, start), name="ring", daemon=True
        )
        with self._lock:
            assert self._run is None or self._run.cancelled.is_set()
            self._run = run
        run.thread.start()

    def stop(self, ballot: Ballot) -> None:
        """Ends it. On return its thread does not read the gradients any more, nor ever will."""
        with self._lock:
            run = self._run
            if run is None or run.ballot != ballot:
                return
            self._run = None
            run.cancelled.set()
            reading = run.reading
        if reading and run.thread is not None:
            run.thread.join()

    def pace(self) -> Pace:
        """The least that the next ring must do, by the last ones."""
        return self._paces.pace()

    def close(self) -> None:
        run = self._run
        if run is not None:
            self.stop(run.ballot)

    def _reduce(self, run: _Run, start: StartRing) -> None:
        started = self._clock.now()
        try:
            finished = self._all_reduce(run, start)
        except RingBroken as broken:
            if broken.reason is Reason.TOO_SLOW:
                self._paces.too_slow()
            if not run.cancelled.is_set():  # else the others hung up because it was over
                self._doubt(start, broken)
            seen = (broken.suspect or "", broken.reason.value, broken.told_by, broken.standing)
            self._fail(run, RingFailed(run.ballot, *seen))
            return
        except Exception as fault:  # noqa: BLE001 - whatever it is, it voids this ring only
            detail = f"{type(fault).__name__}: {fault}"[:200]
            self._fail(run, RingFailed(run.ballot, self._transport.peer_id, detail))
            return
        self.seconds = {finished.digest: self._clock.now() - started}
        if not run.cancelled.is_set():
            self._forget(run)
            self._post(finished)

    def _all_reduce(self, run: _Run, start: StartRing) -> RingFinished:
        if sum(member.sequences for member in start.members) <= 0:
            raise RingBroken(None, Reason.BAD_WEIGHT, "nobody contributes")
        channels = self._open(start)
        try:
            if not self._may_read(run):
                raise RingBroken(None, Reason.SUPERSEDED)
            result = self._results.buffer()
            try:
                return self._average(run, start, channels, result)
            except BaseException:
                self._results.discard(result)
                raise
        except BaseException:
            channels.close()  # the neighbours need not wait for us
            raise

    def _average(
        self, run: _Run, start: StartRing, channels: RingChannels, result: Tensor
    ) -> RingFinished:
        """Over open channels, into `result`. Holds it if all went well."""
        counts = {member.peer_id: member.sequences for member in start.members}
        landing = LandingResult(result)
        try:
            source = self._gradients(start.parent) if counts[self._transport.peer_id] else None
            feedback = self._style.feedback if source is not None else None
            residual = feedback.begin() if feedback else None
            terms = self._terms(run, start, sum(counts.values()))
            arenas = Arenas(source, result, residual, landing.landed)
            began = self._clock.now()
            late_leaf = all_reduce(arenas, terms, channels, run.cancelled)
            seconds = self._clock.now() - began
            seats = len(terms.members)
            self._note_pace(result, seats if terms.rank < seats else 2, seconds)
            if not start.one_shot:
                self._note_links(channels, seconds)
            norm, digest = landing.known()
        except BaseException:
            landing.close()
            raise
        self._results.hold(digest, result)
        if feedback:
            feedback.written(digest)
        return RingFinished(run.ballot, digest, norm, late_leaf)

    def _terms(self, run: _Run, start: StartRing, sequences: int) -> RingTerms:
        seats, leaves = seats_of(start.members), leaves_of(start.members)
        members = [*seats, *(leaf.peer_id for leaf in leaves)]
        return RingTerms(
            members=seats,
            leaves=leaves,
            rank=members.index(self._transport.peer_id),
            tag=ring_tag(start.parent, run.ballot),
            scale=1.0 / sequences,
            codec=self._style.codec,
            algorithm=Algorithm.ONE_SHOT if start.one_shot else Algorithm.RING,
            progress_timeout_s=PROGRESS_S,
            opening_s=OPEN_S,
            pace=self.pace(),
        )

    def _open(self, start: StartRing) -> RingChannels:
        """Raises: RingBroken."""
        seats, leaves = seats_of(start.members), leaves_of(start.members)
        transport, lanes, me = self._transport, self._style.connections, self._transport.peer_id
        attempt = (start.parent, start.ballot)
        if start.one_shot:
            return open_one_shot(transport, seats, *attempt, OPEN_S)
        for leaf in leaves:
            if leaf.peer_id == me:
                return open_leaf(transport, seats[leaf.carrier], *attempt, OPEN_S)
        ours = [leaf.peer_id for leaf in leaves if seats[leaf.carrier] == me]
        return open_ring(transport, seats, *attempt, OPEN_S, lanes, *ours)

    def _note_links(self, channels: RingChannels, seconds: float) -> None:
        """What the ring tells of the way to the right neighbour, over all its connections, and of
        the way to our leaf."""
        for lanes in (channels.right, channels.leaf[1:] if channels.leaf else ()):
            if lanes:
                busiest_s = max(lane.sending_s for lane in lanes)
                count = sum(lane.sent_bytes for lane in lanes)
                self._transport.links.carried(lanes[0].peer_id, count, busiest_s, seconds)

    def _note_pace(self, result: Tensor, members: int, seconds: float) -> None:
        if members > 1:
            moved = 2 * result.nbytes * (members - 1) // members
            self._paces.finished(moved, seconds)

    def _doubt(self, start: StartRing, broken: RingBroken) -> None:
        """The next ring looks for other ways, where a relay joins us: it may have swallowed what it
        was given. Who is blamed itself cannot know which of its ways that was."""
        me, members = self._transport.peer_id, [member.peer_id for member in start.members]
        doubted = members if broken.suspect == me else [broken.suspect]
        self._transport.doubt([peer for peer in doubted if peer and peer != me])

    def _fail(self, run: _Run, failed: RingFailed) -> None:
        if not run.cancelled.is_set():
            self._forget(run)
            self._post(failed)

    def _may_read(self, run: _Run) -> bool:
        with self._lock:
            run.reading = not run.cancelled.is_set()
            return run.reading

    def _forget(self, run: _Run) -> None:
        with self._lock:
            if self._run is run:
                self._run = None
