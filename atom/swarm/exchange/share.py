"""One-shot exchange: the parts of our own share, and one connection that brings them."""

import time

import torch
from torch import Tensor

from atom.base.reasons import Reason
from atom.swarm.exchange.chunk_kernels import NotCanonical, NotFinite
from atom.swarm.exchange.failure import RingBroken
from atom.swarm.exchange.geometry import Step
from atom.swarm.exchange.one_shot import WINDOW, OneShotPlan
from atom.swarm.exchange.receiver import RingReceiver
from atom.swarm.exchange.reduction import Reduction
from atom.swarm.stream.frames import Channel

_LOOK_S = 1.0


class Parts:
    """What the others sent for our own segments, on the wire's terms, until all of it is there."""

    def __init__(self, reduction: Reduction, plan: OneShotPlan) -> None:
        self._reduction, self._plan = reduction, plan
        self._others = plan.members - 1
        self._chunk_bytes = reduction.terms.codec.wire_bytes(plan.chunk_elements)
        slots = WINDOW * plan.segment_chunks
        self._held = torch.empty(self._others, slots, self._chunk_bytes, dtype=torch.uint8)
        self._missing = [self._others] * slots

    def room(self, number: int, step: Step, lane: int) -> Tensor:
        """Where the part of the `lane`-th of the others belongs (uint8)."""
        size = self._reduction.terms.codec.wire_bytes(step.stop - step.start)
        return self._held[lane, self._plan.slot(number), :size]

    def before(self, number: int) -> int | None:
        """The chunk that must be finished before a part of this one may be taken."""
        return self._plan.before(number)

    def complete(self, number: int) -> bool:
        """One more part of a chunk is there; whether it was the last, and the sum is due."""
        slot = self._plan.slot(number)
        with self._reduction.changed:
            self._missing[slot] -= 1
            if self._missing[slot]:
                return False
            self._missing[slot] = self._others
            return True

    def add_up(self, number: int, step: Step, scratch: Tensor) -> None:
        """The mean of the chunk, into the result. Raises: RingBroken(NOT_FINITE)."""
        reduction, own = self._reduction, self._reduction.part(step)
        limits = reduction.terms.limits
        total = reduction.arenas.result[step.start : step.stop]
        for lane in range(self._others):
            arrived = self.room(number, step, lane)
            factor = reduction.terms.scale if lane == self._others - 1 else 1.0
            try:
                addend, largest = own if lane == 0 else total, limits.of_parts(lane + 2)
                reduction.terms.codec.add(arrived, addend, factor, total, largest)
            except NotFinite:
                raise self._spoilt(number, step, lane) from None
        reduction.round(total, step.start, scratch)

    def _spoilt(self, number: int, step: Step, lane: int) -> RingBroken:
        """By whom: the part's sender, or one before it, or we."""
        terms, numbers = self._reduction.terms, torch.empty(step.stop - step.start)
        suspect = terms.me
        for before in range(lane + 1):
            try:
                arrived = self.room(number, step, before)
                terms.codec.decode(arrived, numbers, terms.limits.rounded_part)
            except (NotFinite, NotCanonical):
                suspect = terms.members[self._plan.peer(terms.rank, before)]
                break
        return RingBroken(suspect, Reason.NOT_FINITE, f"in elements from {step.start}")


class ShareReceiver(RingReceiver):
    """Takes what one of the others sends: parts of our segments, and its own finished ones."""

    def __init__(self, reduction: Reduction, channel: Channel, lane: int, parts: Parts) -> None:
        super().__init__(reduction, channel, lane)
        self._parts = parts
        self._awaits_part = True

    def due(self) -> float:
        """Later for finished segments: their owner may miss a part itself, and says so in time."""
        terms = self._reduction.terms
        return super().due() + (0.0 if self._awaits_part else terms.pace.slack_s)

    def blame(self, reason: Reason, detail: str) -> RingBroken:
        """The other end, too slow or silent: what it owes us depends on nobody, or it would have
        named whom it depends on."""
        late = reason is Reason.TIMEOUT and time.monotonic() >= self.due()
        return RingBroken(self._left.peer_id, Reason.TOO_SLOW if late else reason, detail)

    def take(self, number: int, step: Step) -> None:
        self._awaits_part = not step.gather
        if step.gather:
            super().take(number, step)
            return
        while not self._reduction.wait_for(self._parts.before(number), _LOOK_S):
            pass  # whoever is honest has not sent it yet: it would take the place of an earlier one
        self._receive(step, self._parts.room(number, step, self._lane))
        self._reduction.moved(4 * (step.stop - step.start))
        if self._parts.complete(number):
            self._parts.add_up(number, step, self._scratch)
            self._reduction.arenas.landed(step.start, step.stop)
            self._reduction.arrived(number, 0)
