"""One member's all-reduce: the terms, its memory, what its threads share, and how it ends early."""

import contextlib
import threading
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import numpy
import torch
from google.protobuf.message import DecodeError
from torch import Tensor

from atom.base.errors import PeerRefused
from atom.base.reasons import Reason
from atom.swarm.exchange.codec import EXACT, Codec, NotCanonical, NotFinite, chunk_kernels
from atom.swarm.exchange.contribution import Contribution
from atom.swarm.exchange.encoded import MeanWires
from atom.swarm.exchange.plans import PartsPlan, Plan, RingPlan, Step, connected
from atom.swarm.stream.frames import Channel, Interrupted, Kind, Pace, Patience
from atom.swarm.stream.handshake import named_reason
from atom.wire.transport_pb2 import Broken

LARGEST_PART = 1e30
"""Of any number in one member's sums: a thousand such do not overflow."""
MAX_BROKEN_BYTES = 512
LAST_WORDS_S = 0.3


class ExchangeBroken(PeerRefused):
    """The exchange cannot finish. `suspect`: the peer to leave out next time, if anyone knows.
    `told`: by the last words of a peer that saw it closer, believed over what we saw ourselves."""

    def __init__(
        self, suspect: str | None, reason: Reason, detail: str = "", told: bool = False
    ) -> None:
        super().__init__(reason, detail)
        self.suspect = suspect
        self.told = told


def tell_broken(channel: Channel, failure: Exception | None, me: str) -> None:
    """Tells a neighbour why we hang up, if it still listens."""
    if not isinstance(failure, ExchangeBroken):
        failure = ExchangeBroken(me, Reason.RING_BROKEN)
    words = Broken(suspect=failure.suspect or "", reason=failure.reason.value)
    with contextlib.suppress(OSError):
        patience = Patience.within(LAST_WORDS_S)
        channel.send_frame(Kind.BROKEN, words.SerializeToString(), patience=patience)


def hear_broken(channel: Channel, members: Sequence[str]) -> ExchangeBroken:
    """The neighbour's last words. Raises: OSError; PeerRefused for anything else it says."""
    patience = Patience.within(LAST_WORDS_S)
    return parse_broken(channel.recv_frame(Kind.BROKEN, MAX_BROKEN_BYTES, patience), members)


def parse_broken(raw: bytes, members: Sequence[str]) -> ExchangeBroken:
    """Last words as a failure of our own; a suspect that is no member counts as none."""
    words = Broken()
    with contextlib.suppress(DecodeError):
        words.ParseFromString(raw)
    suspect = words.suspect if words.suspect in members else None
    reason = named_reason(words.reason, Reason.RING_BROKEN)
    return ExchangeBroken(suspect, reason, "told by another", told=True)


@dataclass(frozen=True)
class Terms:
    """What all members of one exchange agree on, and this one's place in it."""

    members: tuple[str, ...]
    """Peer ids; in a ring, each one's right neighbour is the next."""
    rank: int
    """Ours."""
    tag: bytes
    """Of the attempt: see `ring_tag`."""
    scale: float
    """What the sum is multiplied by."""
    codec: Codec = field(default=EXACT)
    shares: tuple[int, ...] = ()
    """Of each member: how large the part is that it sums, relative to others; empty: a ring."""
    progress_timeout_s: float = 3.0
    """Silence that means frozen or cut off."""
    opening_s: float = 0.0
    """After our own start, how long a neighbour may still be busy opening its other connections."""
    pace: Pace = field(default_factory=Pace)

    @property
    def me(self) -> str:
        return self.members[self.rank]

    @property
    def neighbours(self) -> tuple[list[int], list[int]]:
        """The ranks that we receive from, and those that we send to."""
        count = len(self.members)
        if self.shares or count == 1:
            peers = connected(self.shares, self.rank)
            return peers, peers
        return [(self.rank - 1) % count], [(self.rank + 1) % count]

    def mean_wires(self, elements: int) -> MeanWires:
        """For a mean of so many elements, a multiple of 16. Raises: MemoryError."""
        return MeanWires(self.plan(elements), self.codec)

    def plan(self, elements: int) -> Plan:
        """The usual one for an arena of that size."""
        if self.shares:
            return PartsPlan.usual(elements, self.shares, self.codec.element_bytes)
        assert self.codec.fixed_size or len(self.members) == 1, "rings encode at every hop"
        return RingPlan.usual(elements, (1,) * len(self.members), self.codec.element_bytes)


@dataclass
class Reduction:
    """The state of one all-reduce. Methods may be called from all of its threads."""

    terms: Terms
    source: Contribution | None
    wires: MeanWires
    stop: threading.Event = field(default_factory=threading.Event)
    changed: threading.Condition = field(default_factory=threading.Condition)
    failure: Exception | None = None
    over: threading.Event = field(default_factory=threading.Event)
    """Set when all threads are through, or one of them failed."""

    def __post_init__(self) -> None:
        self.plan = self.wires.plan
        connections = len(self.terms.neighbours[1])
        self._working = 2 * connections
        self._arrived = set[int]()
        """Chunks by number."""
        self._received_bytes = self._sent_bytes = 0
        self._began = time.monotonic()
        self._under_way_bytes = 4 * self._chunk * connections  # counted when they are whole
        self._zeros = None if self.source is not None else torch.zeros(self._chunk)

    @property
    def _chunk(self) -> int:
        return self.plan.chunk_elements

    def fail(self, failure: Exception) -> None:
        """Keeps the first failure, unless a peer that saw it closer names the culprit. A peer that
        names the one that we name may only have heard it from us."""
        with self.changed:
            told = isinstance(failure, ExchangeBroken) and failure.told and failure.suspect
            known = isinstance(self.failure, ExchangeBroken) and (
                self.failure.told or self.failure.suspect == told
            )
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

    def finished(self, step: Step) -> None:
        """The chunk is what it is to be here."""
        with self.changed:
            self._arrived.add(step.number)
            self.changed.notify_all()

    def received(self, step: Step) -> None:
        """The chunk's bytes have come."""
        with self.changed:
            self._received_bytes += 4 * (step.stop - step.start)

    def sent(self, step: Step) -> None:
        """The chunk's bytes are out of our hands."""
        with self.changed:
            self._sent_bytes += 4 * (step.stop - step.start)

    def silence_s(self) -> float:
        """How long a neighbour may say nothing, and take nothing, from now on."""
        opening = self._began + self.terms.opening_s - time.monotonic()
        return max(self.terms.progress_timeout_s, opening)

    def receiving_due(self) -> float:
        """When more must have come, on the monotonic clock."""
        return self._began + self.terms.pace.due_s(self._received_bytes + self._under_way_bytes)

    def sending_due(self) -> float:
        """When more must have gone, on the monotonic clock."""
        return self._began + self.terms.pace.due_s(self._sent_bytes + self._under_way_bytes)

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
        return chunk is None or chunk in self._arrived

    def part(self, step: Step) -> Tensor:
        """Our own addend for the chunk."""
        if self._zeros is not None:
            return self._zeros[: step.stop - step.start]
        assert self.source is not None
        return self.source.part(step.start, step.stop)

    def encoded_part(self, step: Step, scratch: Tensor) -> Tensor:
        """The bytes of our own part. Raises: ExchangeBroken(NOT_FINITE)."""
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
        """The bytes of our part, from element `start` on, or of a sum, `times` which it is one over
        sequences; the source is told what they lack. Raises: ExchangeBroken(NOT_FINITE)."""
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
            source.lacks(start, lost, 1 / (self.terms.scale * members) if times else 0.0)
        return wire

    def spoilt(
        self, failure: Exception, came: Iterable[tuple[str, Tensor]], step: Step
    ) -> ExchangeBroken:
        """By whom, of those from whom something `came` for a sum, or as one: we, if all of that can
        be decoded, for a well-behaved member passes nothing else on."""
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
        """A single member: nothing travels, but its mean is what a swarm's would be. Raises:
        ExchangeBroken."""
        scale = numpy.float32(self.terms.scale)
        for step in self.plan.means():
            mean = self.wires.numbers_room(step)
            numpy.multiply(self._finite_part(step).numpy(), scale, out=mean.numpy())
            self.put_mean(step, mean)

    def put_sum(self, step: Step, partial: Tensor) -> None:
        """What the next member of a ring is to have, from the chunk's `numbers_room`. Raises: as
        `encode`."""
        self.wires.put(step, self.encode(partial, step.start, self.wires.room(step), 1.0))

    def put_mean(self, step: Step, mean: Tensor) -> None:
        """The owner's last touch: a chunk's mean as everybody is to have it. Raises: as
        `encode`."""
        room, times = self.wires.room(step), 1 / self.terms.scale
        self.wires.put(step, self.encode(mean, step.start, room, times))
