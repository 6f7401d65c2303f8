"""Sending and receiving threads of an exchange's connections, for a ring and for parts with owners;
and the contributions that an owner holds until it sums them."""

import contextlib
import math
import time
from abc import ABC, abstractmethod
from collections.abc import Iterable

import torch
from torch import Tensor

from atom.base.errors import PeerRefused, Reason
from atom.swarm.exchange.codec import NotCanonical, NotFinite
from atom.swarm.exchange.plans import WINDOW, PartsPlan, Step, chunk_header
from atom.swarm.exchange.reduction import (
    MAX_BROKEN_BYTES,
    ExchangeBroken,
    Reduction,
    hear_broken,
    parse_broken,
)
from atom.swarm.stream.frames import Channel, Kind, Patience

BEAT_S = 0.3
"""Longest pause between two signs of life. Members may differ in the silence that they accept: the
shortest is 1.3 s."""


class Half(ABC):
    """Work of one thread: one direction of the exchange over one connection."""

    between_frames = True
    """False while a frame of ours is half sent: a BROKEN frame could then not be recognised."""

    def __init__(self, reduction: Reduction, channel: Channel, steps: Iterable[Step]) -> None:
        self.reduction, self.channel, self._steps = reduction, channel, steps
        self._scratch = torch.empty(4 * reduction.plan.chunk_elements, dtype=torch.uint8)

    @abstractmethod
    def run(self) -> None:
        """Send or receive the chunks of all steps, in order.

        Raises:
            ExchangeBroken: A member failed, or sent what no member sends.
            PeerRefused, OSError: The connection failed.
        """

    @abstractmethod
    def blame(self, reason: Reason, detail: str) -> ExchangeBroken:
        """Return the failure to report if this half ends early; it may name a suspect.

        Args:
            reason: Reason of the early end.
            detail: Explanation for people.
        """


class Sender(Half):
    """Sender of one connection's chunks, each once the chunk that it depends on is here."""

    def run(self) -> None:
        reduction = self.reduction
        beat_s = min(BEAT_S, reduction.terms.progress_timeout_s / 4)
        for step in self._steps:
            while not reduction.wait_for(step.needs, beat_s):
                self._listen()
                self._send(Kind.WAITING)
            self._listen()
            chunk = self._encoded(step)
            header = chunk_header(reduction.terms.tag, step)
            self._send(Kind.CHUNK, header, chunk.numpy().data)
            reduction.sent(step)

    def blame(self, reason: Reason, detail: str) -> ExchangeBroken:
        """Return a failure that blames the right neighbour, or the suspect in its BROKEN frame.

        In a ring, a neighbour that takes our bytes too slowly may itself be held up: then no member
        is blamed.
        """
        reduction = self.reduction
        slow = reason is Reason.TIMEOUT and time.monotonic() >= reduction.sending_due()
        if slow and not reduction.terms.shares:
            return ExchangeBroken(None, Reason.TOO_SLOW, "too few bytes were sent")
        with contextlib.suppress(OSError, PeerRefused):
            return hear_broken(self.channel, reduction.terms.members)
        return ExchangeBroken(self.channel.peer_id, reason, detail)

    def _encoded(self, step: Step) -> Tensor:
        """Return the encoded bytes of a chunk. Raises: ExchangeBroken."""
        reduction = self.reduction
        if step.gather or step.hop:
            return reduction.wires.chunk(step)
        return reduction.encoded_part(step, self._scratch)

    def _listen(self) -> None:
        """Raise ExchangeBroken if the right neighbour has sent a frame: it sends only BROKEN."""
        if not self.channel.stream.idle():
            raise hear_broken(self.channel, self.reduction.terms.members)

    def _send(self, kind: Kind, *parts: bytes | memoryview) -> None:
        patience = Patience(self.reduction.silence_s(), self.reduction.sending_due())
        self.between_frames = False
        self.channel.send_frame(kind, *parts, patience=patience)
        self.between_frames = True


class Receiver(Half):
    """Receiver of one connection's chunks: adds our addend to a sum, or stores a mean."""

    _heard_at: float | None = None
    """Monotonic time at which the last frame began; None before the first. A peer that has sent a
    frame has opened all its connections."""

    def run(self) -> None:
        for step in self._steps:
            self.take(step)

    def take(self, step: Step) -> None:
        """Receive one chunk, and add or store it."""
        self._store(step)
        self.reduction.received(step)
        self.reduction.finished(step)

    def due(self) -> float:
        """Return the monotonic time by which more bytes must have arrived."""
        return self.reduction.receiving_due()

    def blame(self, reason: Reason, detail: str) -> ExchangeBroken:
        """Return a failure that blames the left neighbour.

        If the neighbour sends frames but the ring as a whole is too slow, the failure blames no
        member.
        """
        if reason is Reason.TIMEOUT and time.monotonic() >= self.due():
            return ExchangeBroken(None, Reason.TOO_SLOW, "too few bytes arrived")
        return ExchangeBroken(self.channel.peer_id, reason, detail)

    def _store(self, step: Step) -> None:
        reduction, codec = self.reduction, self.reduction.terms.codec
        numbers = reduction.wires.numbers_room(step)
        room = reduction.wires.room(step) if step.gather else self._scratch
        most = codec.wire_bytes(step.stop - step.start)
        arrived = self._receive(step, room[:most])
        try:
            if step.gather:
                codec.decode(arrived, numbers)
                reduction.wires.put(step, arrived)
                return
            factor = reduction.terms.scale if step.last_sum else 1.0
            codec.add(arrived, reduction.part(step), factor, numbers)
            if step.last_sum:
                reduction.put_mean(step, numbers)
            else:
                reduction.put_sum(step, numbers)
        except (NotFinite, NotCanonical) as failure:
            came = [(self.channel.peer_id, arrived)]
            raise reduction.spoilt(failure, came, step) from None

    def _receive(self, step: Step, into: Tensor) -> Tensor:
        """Receive the chunk of `step` into `into` (uint8), and return the part that was filled."""
        terms = self.reduction.terms
        expected = chunk_header(terms.tag, step)
        limit = max(len(expected) + into.numel(), MAX_BROKEN_BYTES)
        kind, length = self._next_frame(limit)
        while kind == Kind.WAITING and length == 0:
            kind, length = self._next_frame(limit)
        patience = self._patience()
        if kind == Kind.BROKEN:
            words = self.channel.recv_body(length, patience)
            raise parse_broken(words, terms.members)
        size = length - len(expected)
        fits = terms.codec.fits(size, step.stop - step.start)
        if kind != Kind.CHUNK or not fits:
            raise PeerRefused(Reason.MALFORMED, f"frame kind {kind} of {length} bytes")
        if self.channel.recv_body(len(expected), patience) != expected:
            raise PeerRefused(Reason.MALFORMED, f"not the chunk at {step.start}, hop {step.hop}")
        self.channel.recv_into(into[:size].numpy().data, patience)
        return into[:size]

    def _next_frame(self, limit: int) -> tuple[int, int]:
        frame = self.channel.recv_header(limit, self._patience())
        self._heard_at = time.monotonic()
        return frame

    def _patience(self) -> Patience:
        reduction, silence_s = self.reduction, self.reduction.terms.progress_timeout_s
        if self._heard_at is None:
            silence_s = reduction.silence_s()
        return Patience(silence_s, self.due(), reduction.stop)


class OwnPart:
    """Encoded contributions to the part that we own, held until they are summed.

    A slot is used for one chunk after another: no member contributes to the next chunk of a slot
    before it has received the sum of the last one.
    """

    def __init__(self, reduction: Reduction, plan: PartsPlan) -> None:
        self._reduction, self._plan, terms = reduction, plan, reduction.terms
        self.peers = [terms.members[rank] for rank in plan.peers(terms.rank)]
        """Contributing peers, in the order in which their contributions are added. A peer's index
        is its lane."""
        slots = WINDOW * plan.owned_chunks if plan.shares[terms.rank] else 0
        most = terms.codec.wire_bytes(plan.chunk_elements)
        self._held = torch.empty(len(self.peers), slots, most, dtype=torch.uint8)
        self._arrived: list[dict[int, Tensor]] = [{} for _ in range(slots)]

    def room(self, step: Step, lane: int) -> Tensor:
        """Return the memory (uint8) for the contribution of the peer with this lane."""
        size = self._reduction.terms.codec.wire_bytes(step.stop - step.start)
        return self._held[lane, self._plan.slot(step.number), :size]

    def take(self, step: Step, lane: int, wire: Tensor) -> bool:
        """Record a contribution; return True if it was the last and `add_up` must be called."""
        arrived = self._arrived[self._plan.slot(step.number)]
        with self._reduction.changed:
            arrived[lane] = wire
            return len(arrived) == len(self.peers)

    def add_up(self, step: Step) -> None:
        """Sum all contributions to a chunk and store its mean.

        Raises:
            ExchangeBroken: A contribution cannot be decoded, or the sum is not finite.
        """
        reduction, slot = self._reduction, self._plan.slot(step.number)
        total, addend = reduction.wires.numbers_room(step), reduction.part(step)
        arrived, self._arrived[slot] = self._arrived[slot], {}
        for lane in range(len(arrived)):
            factor = reduction.terms.scale if lane == len(arrived) - 1 else 1.0
            try:
                reduction.terms.codec.add(arrived[lane], addend, factor, total)
            except (NotFinite, NotCanonical) as failure:
                before = ((self.peers[each], arrived[each]) for each in range(lane + 1))
                raise reduction.spoilt(failure, before, step) from None
            addend = total
        reduction.put_mean(step, total)


class PartsReceiver(Receiver):
    """Receiver of one peer's contributions to our part, and of the means of that peer's part."""

    _awaits_contribution = True

    def __init__(
        self, own: OwnPart, reduction: Reduction, channel: Channel, steps: Iterable[Step]
    ) -> None:
        super().__init__(reduction, channel, steps)
        self._own, self._lane = own, own.peers.index(channel.peer_id)

    def due(self) -> float:
        """Return the monotonic time by which more bytes must have arrived.

        A contribution depends on no other peer. For a mean, the owner may have to wait for another
        member: it then sends WAITING frames, and reports the member that is late. So the owner
        itself is late only once it has begun to send.
        """
        if self._awaits_contribution:
            return super().due()
        if self._heard_at is None:
            return math.inf
        return self._heard_at + self.reduction.terms.pace.due_s(
            4 * self.reduction.plan.chunk_elements
        )

    def blame(self, reason: Reason, detail: str) -> ExchangeBroken:
        """Return a failure that blames the peer.

        If another member had held up the peer, the peer would have reported that member.
        """
        late = reason is Reason.TIMEOUT and time.monotonic() >= self.due()
        return ExchangeBroken(self.channel.peer_id, Reason.TOO_SLOW if late else reason, detail)

    def take(self, step: Step) -> None:
        self._awaits_contribution = not step.gather
        if step.gather:
            super().take(step)
            return
        wire = self._receive(step, self._own.room(step, self._lane))
        self.reduction.received(step)
        if self._own.take(step, self._lane, wire):
            self._own.add_up(step)
            self.reduction.finished(step)
