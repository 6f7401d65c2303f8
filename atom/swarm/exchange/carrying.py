"""A carrier's work for its leaf: the leaf's sums are added to its own as they come, the means go
back as they become final.

The carrier's gradients are only read. Own part and leaf's stand in the result arena, where this
chunk's sum will be; or, if the ring was faster, what came from the left stands there until the leaf
has caught up. Either way the sum is (own + leaf's) + what came, in the same bits.
"""

import contextlib
import time

import torch
from torch import Tensor

from atom.base.reasons import Reason
from atom.swarm.exchange.carriage import Carriage
from atom.swarm.exchange.chunk_kernels import NotCanonical, NotFinite
from atom.swarm.exchange.codec import EXACT
from atom.swarm.exchange.failure import RingBroken, tell_broken
from atom.swarm.exchange.geometry import Step
from atom.swarm.exchange.receiver import RingReceiver
from atom.swarm.exchange.reduction import Reduction
from atom.swarm.stream.frames import Kind, Patience

HEAD_START = 0.8
"""A leaf that is too slow is found in this share of a ring's slack: before the ring itself is."""


class CarriedReceiver(RingReceiver):
    """Takes the leaf's sums. They depend on nobody, so the leaf is to blame for what is missing."""

    def __init__(self, reduction: Reduction, carriage: Carriage) -> None:
        super().__init__(reduction, carriage.up, 0)
        self._carriage = carriage
        self._brought = torch.empty(reduction.plan.chunk_elements)
        self._both = torch.empty(reduction.plan.chunk_elements)
        self._began = time.monotonic()
        self._done_bytes = 4 * reduction.plan.chunk_elements  # under way

    def run(self) -> None:
        for number, step in enumerate(self._carriage.plan.sends()):
            self.take(number, step)
            self._done_bytes += 4 * (step.stop - step.start)

    def due(self) -> float:
        """When more must have come, on the monotonic clock."""
        pace = self._reduction.terms.pace
        slack_s = (1.0 - HEAD_START) * pace.slack_s
        return self._began + pace.due_s(self._done_bytes) - slack_s

    def blame(self, reason: Reason, detail: str) -> RingBroken:
        late = reason is Reason.TIMEOUT and time.monotonic() >= self.due()
        return RingBroken(self._carriage.leaf, Reason.TOO_SLOW if late else reason, detail)

    def take(self, number: int, step: Step) -> None:
        reduction, carriage, count = self._reduction, self._carriage, step.stop - step.start
        wire = reduction.terms.codec.wire(self._sum[:count], self._scratch)
        wire = self._receive(step, wire)
        result = reduction.arenas.result[step.start : step.stop]
        with carriage.lock:
            came = carriage.parked.pop(step.start, None)
            both = result if came is None else self._both[:count]
            self._add_to_own(wire, step, both)
            if came is None:
                carriage.brought.add(step.start)
            else:
                self._add_what_came(both, result, came[1])
        if came is not None:
            reduction.finished(*came, 0)
        with reduction.changed:
            reduction.changed.notify_all()

    def _add_to_own(self, wire: Tensor, step: Step, both: Tensor) -> None:
        """Raises: RingBroken(NOT_FINITE), of the leaf or of ourselves; RingBroken(MALFORMED)."""
        reduction, brought = self._reduction, self._brought[: step.stop - step.start]
        limits = reduction.terms.limits
        try:
            reduction.terms.codec.decode(wire, brought, limits.rounded_part)
        except NotFinite:
            raise self._refused(Reason.NOT_FINITE, step) from None
        except NotCanonical:
            raise self._refused(Reason.MALFORMED, step) from None
        try:
            own = reduction.part(step)
            EXACT.add(brought.view(torch.uint8), own, 1.0, both, limits.of_parts(2))
        except NotFinite:
            raise RingBroken(reduction.terms.me, Reason.NOT_FINITE, "in our own part") from None

    def _add_what_came(self, both: Tensor, came: Tensor, step: Step) -> None:
        """Both are within their limits, so their sum is."""
        self._reduction.add_up(both.view(torch.uint8), came, step, EXACT, self._scratch)

    def _refused(self, reason: Reason, step: Step) -> RingBroken:
        return RingBroken(self._carriage.leaf, reason, f"in the leaf's elements from {step.start}")


class MeansSender:
    """Gives the means back to the leaf. What goes wrong with that is the leaf's loss only: its part
    is in the sum, or the receiver says so."""

    def __init__(self, reduction: Reduction, carriage: Carriage) -> None:
        self._reduction, self._carriage = reduction, carriage
        self._down = carriage.down
        self._beat_s = reduction.terms.progress_timeout_s / 4
        self._scratch = reduction.scratch()
        self._sending_s = 0.0
        self._done_bytes = 0
        self._between_frames = True

    def run(self) -> None:
        """Until all is sent, the leaf is gone, or the ring is broken."""
        with contextlib.suppress(OSError):  # an Interrupted is one
            self._send_all()
        self._carriage.given_back = True

    def tell(self, failure: Exception) -> None:
        """By whom the ring was broken, if the leaf can still be told."""
        if self._between_frames:
            tell_broken(self._down, failure, self._reduction.terms.me)

    def _send_all(self) -> None:
        reduction, plan = self._reduction, self._carriage.plan
        codec, tag = reduction.terms.codec, reduction.terms.tag
        for step in plan.receives():
            while not reduction.wait_for(step.needs, self._beat_s):
                self._send(Kind.WAITING)
            mean = reduction.arenas.result[step.start : step.stop]
            chunk = codec.encode(mean, self._scratch)
            self._done_bytes += 4 * (step.stop - step.start)
            self._send(Kind.CHUNK, plan.header(tag, step), chunk.numpy().data)

    def _send(self, kind: Kind, *parts: bytes | memoryview) -> None:
        """Raises: OSError when the leaf takes too little, counted over all that it took."""
        reduction, began = self._reduction, time.monotonic()
        left_s = reduction.terms.pace.due_s(self._done_bytes) - self._sending_s
        self._between_frames = False
        patience = Patience(reduction.silence_s(), began + left_s)
        self._down.send_frame(kind, *parts, patience=patience)
        self._between_frames = True
        self._sending_s += time.monotonic() - began


class LeafReceiver(RingReceiver):
    """The leaf's half: takes the means. Its carrier is to blame for what is missing, and would have
    named whoever else is."""

    def blame(self, reason: Reason, detail: str) -> RingBroken:
        late = reason is Reason.TIMEOUT and time.monotonic() >= self.due()
        return RingBroken(self._left.peer_id, Reason.TOO_SLOW if late else reason, detail)
