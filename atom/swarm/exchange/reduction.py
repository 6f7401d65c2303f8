"""One member's all-reduce: what its threads share, and the owner's last touch on a sum."""

import math
import threading
import time
from collections.abc import Iterable
from dataclasses import dataclass, field
from itertools import islice

import numpy
import torch
from torch import Tensor

from atom.base.reasons import Reason
from atom.swarm.chain.ring_standing import Place, RingStanding
from atom.swarm.exchange.carriage import Carriage
from atom.swarm.exchange.chunk_kernels import NotFinite
from atom.swarm.exchange.codec import EXACT, Codec
from atom.swarm.exchange.failure import RingBroken
from atom.swarm.exchange.geometry import RingPlan, Step
from atom.swarm.exchange.leaves import LeafPlan
from atom.swarm.exchange.one_shot import OneShotPlan
from atom.swarm.exchange.terms import Arenas, RingTerms
from atom.swarm.stream.frames import Interrupted


def _first_place(plan: RingPlan, steps: Iterable[Step], done: bytearray) -> Place:
    """Of the steps, the first that is not done."""
    number = done.find(0)
    return plan.place(next(islice(steps, number, None))) if number >= 0 else plan.end


_TAIL = 0.5
"""Of a ring's time, for a leaf to take what it lacks when its carrier has all."""
_BUCKET_TAIL = 1.25
"""Of what a bucket took, for its means can be all of that."""
_LEAST_TAIL_S = 1.0


def tail_s(ring: RingPlan, took_s: float) -> float:
    """How long a leaf may go on taking means after all else of a ring, which took that long."""
    last_bucket = min(1.0, ring.bucket_elements / ring.elements)
    return max(_LEAST_TAIL_S, took_s * max(_TAIL, _BUCKET_TAIL * last_bucket))


@dataclass
class Reduction:
    """The state of one all-reduce. Methods may be called from all of its threads."""

    terms: RingTerms
    arenas: Arenas
    plan: RingPlan | OneShotPlan | LeafPlan
    connections: int
    carriage: Carriage | None = None
    """If we carry a leaf."""
    stop: threading.Event = field(default_factory=threading.Event)
    changed: threading.Condition = field(default_factory=threading.Condition)
    failure: Exception | None = None
    over: threading.Event = field(default_factory=threading.Event)
    """Set when all threads are through, or one of them failed."""

    sending: set[int] = field(default_factory=set)
    """Connections in the middle of a frame to the right."""

    def __post_init__(self) -> None:
        self._working = 2 * self.connections + (2 if self.carriage is not None else 0)
        self._arrived = bytearray(self.plan.chunks_received(self.terms.rank))
        self._gone = bytearray(self.plan.chunks_sent(self.terms.rank))
        self._received_bytes = self._sent_bytes = 0
        self._began = time.monotonic()
        self._whole_at: float | None = None
        self._under_way_bytes = 4 * self._chunk * self.connections  # counted when they are whole
        self._blocked = False
        self._zeros = None if self.arenas.source is not None else torch.zeros(self._chunk)

    @property
    def _chunk(self) -> int:
        return self.plan.chunk_elements

    def fail(self, failure: Exception) -> None:
        """Keeps the first failure, unless a neighbour that saw it closer names the culprit. Who
        names the one that we do may only have heard it from us."""
        with self.changed:
            told = failure.suspect if isinstance(failure, RingBroken) and failure.told_by else None
            known = isinstance(self.failure, RingBroken) and (
                self.failure.told_by or self.failure.suspect == told
            )
            if self.failure is None:
                self._blocked = bool(self.sending)
            if self.failure is None or (told and not known):
                self.failure = failure
            self.stop.set()
            self.over.set()
            self.changed.notify_all()

    def through(self) -> None:
        """One of the threads has done all its work."""
        with self.changed:
            self._working -= 1
            if self._working == 0:
                self.over.set()

    def cut_off_late_leaf(self) -> None:
        """To be asked now and then. All else is through: the leaf has a while to take the rest of
        its means. Its part is in them, and it can fetch them; the round does not wait for it."""
        carriage, now = self.carriage, time.monotonic()
        if carriage is None or carriage.given_back or self._working > 1:
            return
        if self._whole_at is None:
            self._whole_at = now
        if now - self._whole_at > tail_s(carriage.plan.ring, self._whole_at - self._began):
            carriage.cut_off = True
            carriage.down.close()

    def finished(self, chunk: int, step: Step, byte_count: int) -> None:
        """The chunk that is number `chunk` in the order of receiving is what it is to be here;
        `byte_count` of it were not told before."""
        if step.gather or step.last_sum:
            self.arenas.landed(step.start, step.stop)
        self.arrived(chunk, byte_count)

    def arrived(self, chunk: int, byte_count: int) -> None:
        """The chunk that is number `chunk` in the order of receiving is in the result."""
        with self.changed:
            self._arrived[chunk] = True
            self._received_bytes += byte_count
            self.changed.notify_all()

    def moved(self, byte_count: int) -> None:
        """So much has come that is no finished chunk yet."""
        with self.changed:
            self._received_bytes += byte_count

    def sent(self, chunk: int, byte_count: int) -> None:
        """The chunk that is number `chunk` in the order of sending is out of our hands."""
        with self.changed:
            self._gone[chunk] = True
            self._sent_bytes += byte_count

    def silence_s(self) -> float:
        """How long a neighbour may say nothing, and take nothing, from now on."""
        opening = self._began + self.terms.opening_s - time.monotonic()
        return max(self.terms.progress_timeout_s, opening)

    def receiving_due(self) -> float:
        """When more must have come, on the monotonic clock. A leaf's carrier may itself be short of
        it, and then says so in time."""
        slack_s = self.terms.pace.slack_s if isinstance(self.plan, LeafPlan) else 0.0
        done_bytes = self._received_bytes + self._under_way_bytes
        return self._began + self.terms.pace.due_s(done_bytes) + slack_s

    def sending_due(self) -> float:
        """When more must have gone, on the monotonic clock. A leaf's carrier looks after that."""
        if isinstance(self.plan, LeafPlan):
            return math.inf
        return self._began + self.terms.pace.due_s(self._sent_bytes + self._under_way_bytes)

    def standing(self) -> RingStanding | None:
        """How far we are, in a ring; to be asked when all threads have ended."""
        plan, rank = self.plan, self.terms.rank
        if not isinstance(plan, RingPlan):
            return None
        lacks = _first_place(plan, plan.receives(rank), self._arrived)
        unsent = _first_place(plan, plan.sends(rank), self._gone)
        return RingStanding(*lacks, *unsent, self._blocked)

    def wait_for(self, chunk: int | None, seconds: float) -> bool:
        """Whether that chunk has arrived (None: nothing is needed); waits. Raises: Interrupted."""
        if self._there(chunk) and not self.stop.is_set():
            return True  # on fast links: nearly always, and without a lock
        with self.changed:
            self.changed.wait_for(lambda: self._there(chunk) or self.stop.is_set(), seconds)
            if self.stop.is_set():
                raise Interrupted("stopped")
            return self._there(chunk)

    def _there(self, chunk: int | None) -> bool:
        return chunk is None or bool(self._arrived[chunk])

    def wait_to_send(self, step: Step, seconds: float) -> bool:
        """As `wait_for`, for all that goes out with `step`: in a segment's first one, our leaf's
        part too."""
        if not self.wait_for(step.needs, seconds):
            return False
        if self.carriage is None or step.gather or step.hop:
            return True
        with self.changed:
            there = self.carriage.expect(step.start)
            self.changed.wait_for(lambda: there() or self.stop.is_set(), seconds)
            if self.stop.is_set():
                raise Interrupted("stopped")
            return there()

    def first_part(self, step: Step) -> Tensor:
        """What a segment's sum begins with: our own part, and our leaf's."""
        if self.carriage is None:
            return self.part(step)
        return self.arenas.result[step.start : step.stop]

    def part(self, step: Step) -> Tensor:
        """Our own addend for the chunk."""
        if self._zeros is not None:
            return self._zeros[: step.stop - step.start]
        assert self.arenas.source is not None
        return self.arenas.source[step.start : step.stop].float()

    def scratch(self) -> Tensor:
        return torch.empty(4 * self._chunk, dtype=torch.uint8)

    def encode(self, values: Tensor, start: int, scratch: Tensor) -> Tensor:
        """A partial sum's bytes, from element `start` on; what they lack goes to the residual.

        Raises: RingBroken(NOT_FINITE).
        """
        try:
            return self.terms.codec.encode(values, scratch, self._lost(values, start))
        except NotFinite:
            raise RingBroken(None, Reason.NOT_FINITE, "the sum overflows") from None

    def add(self, arrived: Tensor, number: int, step: Step, scratch: Tensor) -> bool:
        """Our own part to what arrived, into the result; the mean, if that completes the sum.
        False: our leaf's part is missing, and whoever brings it adds them up.

        Raises: NotFinite; RingBroken(NOT_FINITE).
        """
        codec, carriage = self.terms.codec, self.carriage
        if carriage is None:
            self.add_up(arrived, self.part(step), step, codec, scratch)
            return True
        total = self.arenas.result[step.start : step.stop]
        with carriage.lock:
            if step.start in carriage.brought:
                self.add_up(arrived, total, step, codec, scratch)
                return True
            codec.decode(arrived, total, self.terms.limits.arriving(step))
            carriage.parked[step.start] = number, step
            return False

    def add_up(
        self, arrived: Tensor, own: Tensor, step: Step, codec: Codec, scratch: Tensor
    ) -> None:
        """Two addends, the first as `codec` has it on the wire. Raises: as `add`."""
        total = self.arenas.result[step.start : step.stop]
        factor = self.terms.scale if step.last_sum else 1.0
        codec.add(arrived, own, factor, total, self.terms.limits.passed_on(step))
        if step.last_sum:
            self.round(total, step.start, scratch)

    def alone(self) -> None:
        """A ring of one: the same arithmetic without a wire. Raises: RingBroken(NOT_FINITE)."""
        scratch, nothing, source = self.scratch(), torch.zeros(self._chunk), self.arenas.source
        if source is None:
            self.arenas.result.zero_()
            return
        for start in range(0, source.numel(), self._chunk):
            part, total = (
                arena[start : start + self._chunk] for arena in (source, self.arenas.result)
            )
            try:
                EXACT.add(
                    part.float().view(torch.uint8), nothing[: part.numel()], self.terms.scale, total
                )
            except NotFinite:
                raise RingBroken(self.terms.me, Reason.NOT_FINITE, "in our own part") from None
            self.round(total, start, scratch)

    def round(self, mean: Tensor, start: int, scratch: Tensor) -> None:
        """The owner's last touch: what everybody else will decode. Raises: as `encode`."""
        codec = self.terms.codec
        codec.decode(self.encode(mean, start, scratch), mean)
        lost = self._lost(mean, start)
        if lost is not None:
            numpy.multiply(lost.numpy(), numpy.float32(1 / self.terms.scale), out=lost.numpy())

    def _lost(self, values: Tensor, start: int) -> Tensor | None:
        residual = self.arenas.residual
        return None if residual is None else residual[start : start + values.numel()]
