"""One member's all-reduce: terms, memory, the state that its threads share, and failures."""

import contextlib
import threading
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import numpy
import torch
from google.protobuf.message import DecodeError
from torch import Tensor

from atom.base.errors import PeerRefused, Reason
from atom.swarm.exchange.codec import EXACT, Codec, NotCanonical, NotFinite, chunk_kernels
from atom.swarm.exchange.contribution import Contribution
from atom.swarm.exchange.encoded import MeanWires
from atom.swarm.exchange.plans import PartsPlan, Plan, RingPlan, Step, connected
from atom.swarm.stream.frames import Channel, Interrupted, Kind, Pace, Patience
from atom.swarm.stream.handshake import named_reason
from atom.wire.transport_pb2 import Broken

LARGEST_PART = 1e30
"""Bound of each number in one member's contribution: a thousand of them do not overflow fp32."""
MAX_BROKEN_BYTES = 512
LAST_WORDS_S = 0.3


class ExchangeBroken(PeerRefused):
    """Error of an exchange that cannot finish.

    Attributes:
        suspect: Peer id of the member to exclude from the next attempt; None if unknown.
        reported: True if a neighbour reported the failure in a BROKEN frame. The report overrides
            our own observation, because the neighbour is closer to the cause.
    """

    def __init__(
        self, suspect: str | None, reason: Reason, detail: str = "", reported: bool = False
    ) -> None:
        super().__init__(reason, detail)
        self.suspect = suspect
        self.reported = reported


def send_broken(channel: Channel, failure: Exception | None, me: str) -> None:
    """Send the reason of a failure to a neighbour before we hang up; ignore socket errors.

    Args:
        channel: Connection to the neighbour, between two frames.
        failure: Failure to report. If it is not an `ExchangeBroken`, we report ourselves.
        me: Our peer id.
    """
    if not isinstance(failure, ExchangeBroken):
        failure = ExchangeBroken(me, Reason.RING_BROKEN)
    words = Broken(suspect=failure.suspect or "", reason=failure.reason.value)
    with contextlib.suppress(OSError):
        patience = Patience.within(LAST_WORDS_S)
        channel.send_frame(Kind.BROKEN, words.SerializeToString(), patience=patience)


def hear_broken(channel: Channel, members: Sequence[str]) -> ExchangeBroken:
    """Receive the BROKEN frame of a neighbour, which reports a failure.

    Raises:
        OSError: The frame does not arrive in time.
        PeerRefused: The neighbour sends another frame.
    """
    patience = Patience.within(LAST_WORDS_S)
    return parse_broken(channel.recv_frame(Kind.BROKEN, MAX_BROKEN_BYTES, patience), members)


def parse_broken(raw: bytes, members: Sequence[str]) -> ExchangeBroken:
    """Decode the payload of a BROKEN frame. A suspect that is not a member becomes None."""
    words = Broken()
    with contextlib.suppress(DecodeError):
        words.ParseFromString(raw)
    suspect = words.suspect if words.suspect in members else None
    reason = named_reason(words.reason, Reason.RING_BROKEN)
    return ExchangeBroken(suspect, reason, "reported by another member", reported=True)


@dataclass(frozen=True)
class Terms:
    """Terms of one exchange, on which all its members agree, and our place in it."""

    members: tuple[str, ...]
    """Peer ids by rank. In a ring, the right neighbour of each member is the next member."""
    rank: int
    """Rank of this member."""
    tag: bytes
    """Tag of the attempt: see `ring_tag`."""
    scale: float
    """Factor by which the sum is multiplied to give the mean: 1 / sequences of all members."""
    codec: Codec = field(default=EXACT)
    shares: tuple[int, ...] = ()
    """Relative size of the part that each member sums, by rank; empty: the exchange is a ring."""
    progress_timeout_s: float = 3.0
    """Silence after which a neighbour counts as frozen or cut off."""
    opening_s: float = 0.0
    """Time after our start in which a neighbour may be silent while it opens its connections."""
    pace: Pace = field(default_factory=Pace)

    @property
    def me(self) -> str:
        """Our own peer id."""
        return self.members[self.rank]

    @property
    def neighbours(self) -> tuple[list[int], list[int]]:
        """Ranks from which we receive, and ranks to which we send."""
        count = len(self.members)
        if self.shares or count == 1:
            peers = connected(self.shares, self.rank)
            return peers, peers
        return [(self.rank - 1) % count], [(self.rank + 1) % count]

    def mean_wires(self, elements: int) -> MeanWires:
        """Return memory for a mean of `elements`, a multiple of 16.

        Raises:
            MemoryError: The memory cannot be allocated.
        """
        return MeanWires(self.plan(elements), self.codec)

    def plan(self, elements: int) -> Plan:
        """Return the default plan of this exchange for an arena of `elements`."""
        if self.shares:
            return PartsPlan.usual(elements, self.shares, self.codec.element_bytes)
        assert self.codec.fixed_size or len(self.members) == 1, "rings encode at every hop"
        return RingPlan.usual(elements, (1,) * len(self.members), self.codec.element_bytes)


@dataclass
class Reduction:
    """State of one all-reduce. Methods may be called from all of its threads."""

    terms: Terms
    source: Contribution | None
    wires: MeanWires
    stop: threading.Event = field(default_factory=threading.Event)
    changed: threading.Condition = field(default_factory=threading.Condition)
    failure: Exception | None = None
    over: threading.Event = field(default_factory=threading.Event)
    """Set when all threads have finished, or one of them failed."""

    def __post_init__(self) -> None:
        self.plan = self.wires.plan
        connections = len(self.terms.neighbours[1])
        self._working = 2 * connections
        self._arrived = set[int]()
        """Numbers of the chunks that have arrived or were summed here."""
        self._received_bytes = self._sent_bytes = 0
        self._began = time.monotonic()
        self._in_flight_bytes = 4 * self._chunk * connections  # only whole chunks are counted
        self._zeros = None if self.source is not None else torch.zeros(self._chunk)

    @property
    def _chunk(self) -> int:
        return self.plan.chunk_elements

    def fail(self, failure: Exception) -> None:
        """Record a failure and stop all threads.

        The first failure is kept, but a neighbour's report that names a suspect replaces our own
        observation. A report that names our own suspect does not: the neighbour may only repeat our
        report.
        """
        with self.changed:
            reported = isinstance(failure, ExchangeBroken) and failure.reported and failure.suspect
            known = isinstance(self.failure, ExchangeBroken) and (
                self.failure.reported or self.failure.suspect == reported
            )
            if self.failure is None or (reported and not known):
                self.failure = failure
            self.stop.set()
            self.over.set()
            self.changed.notify_all()

    def through(self) -> None:
        """Record that one thread has finished."""
        with self.changed:
            self._working -= 1
            if self._working == 0:
                self.over.set()

    def finished(self, step: Step) -> None:
        """Record that a chunk has its final value here, and wake the senders that need it."""
        with self.changed:
            self._arrived.add(step.number)
            self.changed.notify_all()

    def received(self, step: Step) -> None:
        """Record that the bytes of a chunk were received."""
        with self.changed:
            self._received_bytes += 4 * (step.stop - step.start)

    def sent(self, step: Step) -> None:
        """Record that the bytes of a chunk were handed to the socket."""
        with self.changed:
            self._sent_bytes += 4 * (step.stop - step.start)

    def silence_s(self) -> float:
        """Return for how many seconds a neighbour may neither send nor take a byte from now on."""
        opening = self._began + self.terms.opening_s - time.monotonic()
        return max(self.terms.progress_timeout_s, opening)

    def receiving_due(self) -> float:
        """Return the monotonic time by which more bytes must have arrived."""
        return self._began + self.terms.pace.due_s(self._received_bytes + self._in_flight_bytes)

    def sending_due(self) -> float:
        """Return the monotonic time by which more bytes must have been sent."""
        return self._began + self.terms.pace.due_s(self._sent_bytes + self._in_flight_bytes)

    def wait_for(self, chunk: int | None, seconds: float) -> bool:
        """Wait until a chunk has arrived, for at most `seconds`.

        Args:
            chunk: Number of the chunk; None if nothing is needed.
            seconds: Longest time to wait.

        Returns:
            True if the chunk has arrived.

        Raises:
            Interrupted: Another thread of this all-reduce failed.
        """
        if self._there(chunk) and not self.stop.is_set():
            return True  # the usual case on fast links; needs no lock
        with self.changed:
            self.changed.wait_for(lambda: self._there(chunk) or self.stop.is_set(), seconds)
            if self.stop.is_set():
                raise Interrupted("stopped")
            return self._there(chunk)

    def _there(self, chunk: int | None) -> bool:
        return chunk is None or chunk in self._arrived

    def part(self, step: Step) -> Tensor:
        """Return our own addend for a chunk (fp32, read-only): zeros if we contribute nothing."""
        if self._zeros is not None:
            return self._zeros[: step.stop - step.start]
        assert self.source is not None
        return self.source.part(step.start, step.stop)

    def encoded_part(self, step: Step, scratch: Tensor) -> Tensor:
        """Encode our own addend for a chunk.

        Raises:
            ExchangeBroken: NOT_FINITE: the addend is not finite.
        """
        return self.encode(self._finite_part(step), step.start, scratch)

    def _finite_part(self, step: Step) -> Tensor:
        part = self.part(step)
        try:
            chunk_kernels().require_finite(part, LARGEST_PART)
        except NotFinite:
            detail = "in our own part"
            raise ExchangeBroken(self.terms.me, Reason.NOT_FINITE, detail) from None
        return part

    def encode(self, values: Tensor, start: int, scratch: Tensor, times: float = 0.0) -> Tensor:
        """Encode numbers for the wire, and report the encoding error to the source.

        Args:
            values: Numbers to encode: our own addend, or a sum or mean over members.
            start: Element of the arena at which they begin.
            scratch: Memory for the encoded bytes.
            times: 0 for our own addend. Else the factor that turns `values` into a sum over
                sequences: 1 for a partial sum, 1 / scale for a mean.

        Raises:
            ExchangeBroken: NOT_FINITE: the decoded numbers would not be finite.
        """
        source, codec = self.source, self.terms.codec
        lost = torch.empty(values.numel()) if source and source.keeps_lost else None
        try:
            wire = codec.encode(values, scratch, lost)
        except NotFinite:
            raise ExchangeBroken(None, Reason.NOT_FINITE, "the sum overflows") from None
        if source and lost is not None:
            factor = numpy.float32(codec.given_back * (times or 1.0))
            numpy.multiply(lost.numpy(), factor, out=lost.numpy())
            members = len(self.terms.members)
            source.record_lost(start, lost, 1 / (self.terms.scale * members) if times else 0.0)
        return wire

    def spoilt(
        self, failure: Exception, came: Iterable[tuple[str, Tensor]], step: Step
    ) -> ExchangeBroken:
        """Return a failure that names the member whose bytes spoilt a chunk.

        Args:
            failure: Error of the codec.
            came: Peer id and bytes of each contribution to the sum, or of the received mean.
            step: Chunk to which the bytes belong.

        Returns:
            The suspect is the first member whose bytes cannot be decoded. If all can be decoded, we
            are the suspect: our own addend must have spoilt the sum.
        """
        malformed = isinstance(failure, NotCanonical)
        reason = Reason.MALFORMED if malformed else Reason.NOT_FINITE
        numbers, suspect = torch.empty(step.stop - step.start), self.terms.me
        for peer_id, wire in came:
            try:
                self.terms.codec.decode(wire, numbers)
            except (NotFinite, NotCanonical):
                suspect = peer_id
                break
        return ExchangeBroken(suspect, reason, f"in elements from {step.start}")

    def alone(self) -> None:
        """Compute and encode the mean of a single member, with the same arithmetic as in a swarm.

        Raises:
            ExchangeBroken: NOT_FINITE.
        """
        scale = numpy.float32(self.terms.scale)
        for step in self.plan.means():
            mean = self.wires.numbers_room(step)
            numpy.multiply(self._finite_part(step).numpy(), scale, out=mean.numpy())
            self.put_mean(step, mean)

    def put_sum(self, step: Step, partial: Tensor) -> None:
        """Encode a partial sum for the next member of a ring.

        Args:
            step: Chunk of the sum.
            partial: Sum so far, in the chunk's `numbers_room`.

        Raises:
            ExchangeBroken: As `encode`.
        """
        self.wires.put(step, self.encode(partial, step.start, self.wires.room(step), 1.0))

    def put_mean(self, step: Step, mean: Tensor) -> None:
        """Encode a chunk's mean, as its owner, in the bytes that all members receive.

        Raises:
            ExchangeBroken: As `encode`.
        """
        room, times = self.wires.room(step), 1 / self.terms.scale
        self.wires.put(step, self.encode(mean, step.start, room, times))
