"""One connection to the right: a ring member's sending half, or one of several."""

import contextlib
import time

from torch import Tensor

from atom.base.errors import PeerRefused
from atom.base.reasons import Reason
from atom.swarm.exchange.algorithm import Algorithm
from atom.swarm.exchange.chunk_kernels import NotFinite, chunk_kernels
from atom.swarm.exchange.failure import RingBroken, hear_broken
from atom.swarm.exchange.geometry import Step
from atom.swarm.exchange.reduction import Reduction
from atom.swarm.stream.frames import Channel, Kind, Patience


class RingSender:
    """Sends what goes over one connection, each chunk as soon as what it needs has arrived."""

    def __init__(self, reduction: Reduction, right: Channel, lane: int) -> None:
        self.between_frames = True
        self._reduction = reduction
        self._right = right
        self._lane = lane
        self._beat_s = reduction.terms.progress_timeout_s / 4
        self._scratch = reduction.scratch()

    def run(self) -> None:
        reduction, plan = self._reduction, self._reduction.plan
        rank, lanes = reduction.terms.rank, reduction.connections
        for number, step in plan.sends_on(rank, self._lane, lanes):
            while not reduction.wait_to_send(step, self._beat_s):
                self._listen()
                self._send(Kind.WAITING)
            self._listen()
            chunk = self._encoded(step)
            self._send(Kind.CHUNK, plan.header(reduction.terms.tag, step), chunk.numpy().data)
            reduction.sent(number, 4 * (step.stop - step.start))

    def blame(self, reason: Reason, detail: str) -> RingBroken:
        """The right neighbour, unless its last words name another, or it takes what we send, but
        too slowly, and may itself be held up."""
        reduction = self._reduction
        ring = reduction.terms.algorithm is Algorithm.RING
        if ring and reason is Reason.TIMEOUT and time.monotonic() >= reduction.sending_due():
            return RingBroken(None, Reason.TOO_SLOW, "too little has gone")
        with contextlib.suppress(OSError, PeerRefused):
            return hear_broken(self._right, self._reduction.terms.everybody)
        return RingBroken(self._right.peer_id, reason, detail)

    def _encoded(self, step: Step) -> Tensor:
        reduction = self._reduction
        sum_so_far = reduction.arenas.result[step.start : step.stop]
        if step.gather:
            return reduction.terms.codec.encode(sum_so_far, self._scratch)
        if step.hop:
            return reduction.encode(sum_so_far, step.start, self._scratch)
        part = reduction.first_part(step)
        if reduction.carriage is None:  # else it was looked at when the leaf's part came
            try:
                chunk_kernels().require_finite(part, reduction.terms.limits.part)
            except NotFinite:
                raise RingBroken(reduction.terms.me, Reason.NOT_FINITE, "in our own part") from None
        return reduction.encode(part, step.start, self._scratch)

    def _listen(self) -> None:
        """The right neighbour speaks only to say that it gives up."""
        if not self._right.stream.idle():
            raise hear_broken(self._right, self._reduction.terms.everybody)

    def _send(self, kind: Kind, *parts: bytes | memoryview) -> None:
        patience = Patience(self._reduction.silence_s(), self._reduction.sending_due())
        self.between_frames = False
        self._reduction.sending.add(self._lane)
        self._right.send_frame(kind, *parts, patience=patience)
        self._reduction.sending.discard(self._lane)
        self.between_frames = True
