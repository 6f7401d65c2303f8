"""One connection from the left: a ring member's receiving half, or one of several."""

import contextlib
import time

import torch
from torch import Tensor

from atom.base.errors import PeerRefused
from atom.base.reasons import Reason
from atom.swarm.exchange.chunk_kernels import NotCanonical, NotFinite
from atom.swarm.exchange.failure import MAX_BROKEN_BYTES, RingBroken, parse_broken
from atom.swarm.exchange.geometry import Step
from atom.swarm.exchange.reduction import Reduction
from atom.swarm.stream.frames import Channel, Kind, Patience


class RingReceiver:
    """Takes what comes over one connection, adds our part or stores it, tells the senders."""

    def __init__(self, reduction: Reduction, left: Channel, lane: int) -> None:
        self._reduction = reduction
        self._left = left
        self._lane = lane
        self._heard = False
        """The left neighbour has all its connections, and says something every now and then."""
        self._scratch = reduction.scratch()
        self._sum = torch.empty(reduction.plan.chunk_elements)

    def run(self) -> None:
        reduction = self._reduction
        rank, lanes = reduction.terms.rank, reduction.connections
        for number, step in reduction.plan.receives_on(rank, self._lane, lanes):
            self.take(number, step)

    def take(self, number: int, step: Step) -> None:
        """Receives one chunk and does with it what is to be done."""
        byte_count = 4 * (step.stop - step.start)
        if self._store(number, step):
            self._reduction.finished(number, step, byte_count)
        else:
            self._reduction.moved(byte_count)

    def due(self) -> float:
        """When more must have come, on the monotonic clock."""
        return self._reduction.receiving_due()

    def blame(self, reason: Reason, detail: str) -> RingBroken:
        """The left neighbour; nobody yet, if it spoke, and the ring as a whole is too slow."""
        if reason is Reason.TIMEOUT and time.monotonic() >= self.due():
            return RingBroken(None, Reason.TOO_SLOW, "too little has come")
        return RingBroken(self._left.peer_id, reason, detail)

    def _store(self, number: int, step: Step) -> bool:
        """Whether it is what it is to be here; else our leaf's part is missing."""
        terms, out = self._reduction.terms, self._reduction.arenas.result
        target = out[step.start : step.stop] if step.gather else self._sum
        target = target[: step.stop - step.start]
        arrived = self._receive(step, terms.codec.wire(target, self._scratch))
        try:
            if step.gather:
                largest = terms.limits.mean(len(terms.members), terms.scale)
                terms.codec.decode(arrived, target, largest)
                return True
            return self._reduction.add(arrived, number, step, self._scratch)
        except NotFinite:
            raise self._not_finite(arrived, step) from None
        except NotCanonical:  # finished pieces only: a part is not passed on as it came
            culprit = self._left.peer_id
            raise RingBroken(culprit, Reason.MALFORMED, "bytes that no encoder writes") from None

    def _not_finite(self, arrived: Tensor, step: Step) -> RingBroken:
        """Who spoilt it: the left, for whoever is honest passes nothing such on (`sum_limits`); or
        we."""
        terms, suspect = self._reduction.terms, self._left.peer_id
        if not step.gather:
            numbers = self._sum[: step.stop - step.start]
            with contextlib.suppress(NotFinite, NotCanonical):
                terms.codec.decode(arrived, numbers, terms.limits.arriving(step))
                suspect = terms.me
        return RingBroken(suspect, Reason.NOT_FINITE, f"in elements from {step.start}")

    def _receive(self, step: Step, into: Tensor) -> Tensor:
        """Reads the chunk of `step` into `into` (uint8) and returns it."""
        terms = self._reduction.terms
        expected = self._reduction.plan.header(terms.tag, step)
        limit = max(len(expected) + into.numel(), MAX_BROKEN_BYTES)
        kind, length = self._left.recv_header(limit, self._patience())
        self._heard = True
        patience = self._patience()
        while kind == Kind.WAITING and length == 0:
            patience.wait_s(time.monotonic())  # a flood never makes us wait, and so never ends
            kind, length = self._left.recv_header(limit, patience)
        if kind == Kind.BROKEN:
            words = self._left.recv_rest(length, patience)
            raise parse_broken(words, self._left.peer_id, terms.everybody)
        if kind != Kind.CHUNK or length != len(expected) + into.numel():
            raise PeerRefused(Reason.MALFORMED, f"frame kind {kind} of {length} bytes")
        if self._left.recv_rest(len(expected), patience) != expected:
            raise PeerRefused(Reason.MALFORMED, f"not the chunk at {step.start}, hop {step.hop}")
        self._left.recv_into(into.numpy().data, patience)
        return into

    def _patience(self) -> Patience:
        reduction = self._reduction
        silence_s = reduction.terms.progress_timeout_s if self._heard else reduction.silence_s()
        return Patience(silence_s, self.due(), reduction.stop)
