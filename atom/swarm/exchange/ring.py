"""One connection of a ring: both halves."""

import contextlib
import time
from collections.abc import Iterable

import torch
from torch import Tensor

from atom.base.errors import PeerRefused
from atom.base.reasons import Reason
from atom.swarm.exchange.chunk_kernels import NotCanonical, NotFinite
from atom.swarm.exchange.plans import Step, chunk_header
from atom.swarm.exchange.reduction import (
    MAX_BROKEN_BYTES,
    ExchangeBroken,
    Reduction,
    hear_broken,
    parse_broken,
)
from atom.swarm.stream.frames import Channel, Kind, Patience


class RingSender:
    """Sends what goes over one connection, each chunk as soon as what it needs has arrived."""

    def __init__(self, reduction: Reduction, right: Channel, steps: Iterable[Step]) -> None:
        self.between_frames = True
        self._reduction = reduction
        self._right = right
        self._steps = steps
        self._beat_s = reduction.terms.progress_timeout_s / 4
        self._scratch = reduction.scratch()

    def run(self) -> None:
        reduction = self._reduction
        for step in self._steps:
            while not reduction.wait_for(step.needs, self._beat_s):
                self._listen()
                self._send(Kind.WAITING)
            self._listen()
            chunk = self.encoded(step)
            header = chunk_header(reduction.terms.tag, step)
            self._send(Kind.CHUNK, header, chunk.numpy().data)
            reduction.sent(4 * (step.stop - step.start))

    def blame(self, reason: Reason, detail: str) -> ExchangeBroken:
        """The right neighbour, unless its last words name another, or it takes what we send, but
        too slowly, and may itself be held up."""
        reduction = self._reduction
        slow = reason is Reason.TIMEOUT and time.monotonic() >= reduction.sending_due()
        if slow and not reduction.terms.shares:
            return ExchangeBroken(None, Reason.TOO_SLOW, "too little has gone")
        with contextlib.suppress(OSError, PeerRefused):
            return hear_broken(self._right, reduction.terms.members)
        return ExchangeBroken(self._right.peer_id, reason, detail)

    def encoded(self, step: Step) -> Tensor:
        """The chunk's bytes. Raises: ExchangeBroken."""
        reduction = self._reduction
        sum_so_far = reduction.arenas.result[step.start : step.stop]
        if step.gather:
            return reduction.terms.codec.encode(sum_so_far, self._scratch)
        if step.hop:
            return reduction.encode(sum_so_far, step.start, self._scratch)
        return reduction.encoded_part(step, self._scratch)

    def _listen(self) -> None:
        """The right neighbour speaks only to say that it gives up."""
        if not self._right.stream.idle():
            raise hear_broken(self._right, self._reduction.terms.members)

    def _send(self, kind: Kind, *parts: bytes | memoryview) -> None:
        patience = Patience(self._reduction.silence_s(), self._reduction.sending_due())
        self.between_frames = False
        self._right.send_frame(kind, *parts, patience=patience)
        self.between_frames = True


class RingReceiver:
    """Takes what comes over one connection, adds our part or stores it, tells the senders."""

    def __init__(self, reduction: Reduction, left: Channel, steps: Iterable[Step]) -> None:
        self._reduction = reduction
        self._left = left
        self._steps = steps
        self._heard_at: float | None = None
        """When a frame began last: a peer that has said anything has all its connections."""
        self._scratch = reduction.scratch()
        self._sum = torch.empty(reduction.plan.chunk_elements)

    def run(self) -> None:
        for step in self._steps:
            self.take(step)

    def take(self, step: Step) -> None:
        """Receives one chunk and does with it what is to be done."""
        self._store(step)
        self._reduction.moved(4 * (step.stop - step.start))
        self._reduction.finished(step)

    def due(self) -> float:
        """When more must have come, on the monotonic clock."""
        return self._reduction.receiving_due()

    def blame(self, reason: Reason, detail: str) -> ExchangeBroken:
        """The left neighbour; nobody yet, if it spoke, and the ring as a whole is too slow."""
        if reason is Reason.TIMEOUT and time.monotonic() >= self.due():
            return ExchangeBroken(None, Reason.TOO_SLOW, "too little has come")
        return ExchangeBroken(self._left.peer_id, reason, detail)

    def _store(self, step: Step) -> None:
        terms, out = self._reduction.terms, self._reduction.arenas.result[step.start : step.stop]
        target = out if step.gather else self._sum[: step.stop - step.start]
        arrived = self._receive(step, terms.codec.wire(target, self._scratch))
        try:
            if step.gather:
                terms.codec.decode(arrived, target)
                return
            factor = terms.scale if step.last_sum else 1.0
            terms.codec.add(arrived, self._reduction.part(step), factor, out)
            if step.last_sum:
                self._reduction.round(out, step.start, self._scratch)
        except NotFinite:
            raise self._not_finite(arrived, step) from None
        except NotCanonical:
            culprit = self._left.peer_id
            raise ExchangeBroken(culprit, Reason.MALFORMED, "bytes no encoder writes") from None

    def _not_finite(self, arrived: Tensor, step: Step) -> ExchangeBroken:
        """Who spoilt it: we, if what came is finite; else the left, for a well-behaved member
        passes nothing else on."""
        terms, suspect = self._reduction.terms, self._left.peer_id
        if not step.gather:
            with contextlib.suppress(NotFinite, NotCanonical):
                terms.codec.decode(arrived, self._sum[: step.stop - step.start])
                suspect = terms.me
        return ExchangeBroken(suspect, Reason.NOT_FINITE, f"in elements from {step.start}")

    def _receive(self, step: Step, into: Tensor) -> Tensor:
        """Reads the chunk of `step` into `into` (uint8); returns what of it came."""
        terms = self._reduction.terms
        expected = chunk_header(terms.tag, step)
        limit = max(len(expected) + into.numel(), MAX_BROKEN_BYTES)
        kind, length = self._next_frame(limit)
        while kind == Kind.WAITING and length == 0:
            self._patience().wait_s(time.monotonic())  # a flood never makes us wait: ends here
            kind, length = self._next_frame(limit)
        patience = self._patience()
        if kind == Kind.BROKEN:
            words = self._left.recv_rest(length, patience)
            raise parse_broken(words, terms.members)
        size = length - len(expected)
        fits = size == into.numel() if terms.codec.fixed_size else 0 <= size <= into.numel()
        if kind != Kind.CHUNK or not fits:
            raise PeerRefused(Reason.MALFORMED, f"frame kind {kind} of {length} bytes")
        if self._left.recv_rest(len(expected), patience) != expected:
            raise PeerRefused(Reason.MALFORMED, f"not the chunk at {step.start}, hop {step.hop}")
        self._left.stream.recv_into(into[:size].numpy().data, patience)
        return into[:size]

    def _next_frame(self, limit: int) -> tuple[int, int]:
        frame = self._left.recv_header(limit, self._patience())
        self._heard_at = time.monotonic()
        return frame

    def _patience(self) -> Patience:
        reduction, silence_s = self._reduction, self._reduction.terms.progress_timeout_s
        if self._heard_at is None:
            silence_s = reduction.silence_s()
        return Patience(silence_s, self.due(), reduction.stop)
