"""Parts with owners: what an owner holds of its own part, and the connections to its peers."""

import math
import time
from collections.abc import Iterable

import torch
from torch import Tensor

from atom.base.reasons import Reason
from atom.swarm.exchange.chunk_kernels import NotCanonical, NotFinite
from atom.swarm.exchange.plans import WINDOW, PartsPlan, Step
from atom.swarm.exchange.reduction import ExchangeBroken, Reduction
from atom.swarm.exchange.ring import RingReceiver, RingSender
from atom.swarm.stream.frames import Channel

_LOOK_S = 1.0


class OwnPart:
    """The encoded contributions to our own part until they are summed, and the encoded sums until
    everybody has them: nobody contributes to a slot's next chunk before it has its last sum."""

    def __init__(self, reduction: Reduction, plan: PartsPlan) -> None:
        self._reduction, self._plan = reduction, plan
        owns = plan.shares[reduction.terms.rank] > 0
        self._lanes = len(plan.peers(reduction.terms.rank))
        chunk_bytes = reduction.terms.codec.wire_bytes(plan.chunk_elements)
        slots = WINDOW * plan.owned_chunks if owns else 0
        self._held = torch.empty(self._lanes, slots, chunk_bytes, dtype=torch.uint8)
        self._summed = torch.empty(slots, chunk_bytes, dtype=torch.uint8)
        self._arrived: list[dict[int, Tensor]] = [{} for _ in range(slots)]
        self._sums: dict[int, Tensor] = {}

    def room(self, step: Step, lane: int) -> Tensor:
        """Where the contribution of the `lane`-th peer belongs (uint8)."""
        size = self._reduction.terms.codec.wire_bytes(step.stop - step.start)
        return self._held[lane, self._plan.slot(step.number), :size]

    def wait_for_room(self, step: Step) -> None:
        """Until what was held in the chunk's place is summed. A well-behaved peer has not sent it
        before: it would overwrite an earlier one. Raises: Interrupted."""
        while not self._reduction.wait_for(self._plan.before(step.number), _LOOK_S):
            pass

    def take(self, step: Step, lane: int, wire: Tensor) -> bool:
        """One more contribution is there; whether it was the last, and the sum is due."""
        arrived = self._arrived[self._plan.slot(step.number)]
        with self._reduction.changed:
            arrived[lane] = wire
            return len(arrived) == self._lanes

    def add_up(self, step: Step) -> None:
        """The mean of the chunk, into the result. Raises: ExchangeBroken."""
        reduction, slot = self._reduction, self._plan.slot(step.number)
        total, addend = reduction.arenas.result[step.start : step.stop], reduction.part(step)
        arrived, self._arrived[slot] = self._arrived[slot], {}
        for lane in range(self._lanes):
            factor = reduction.terms.scale if lane == self._lanes - 1 else 1.0
            try:
                reduction.terms.codec.add(arrived[lane], addend, factor, total)
            except (NotFinite, NotCanonical) as failure:
                raise self._spoilt(failure, arrived, lane, step) from None
            addend = total
        self._sums[slot] = reduction.round(total, step.start, self._summed[slot])

    def sum(self, step: Step) -> Tensor:
        """The encoded sum of a chunk that is added up."""
        return self._sums[self._plan.slot(step.number)]

    def _spoilt(
        self, failure: Exception, arrived: dict[int, Tensor], lane: int, step: Step
    ) -> ExchangeBroken:
        """By whom: the sender of one of the contributions up to this one, or we."""
        terms, numbers = self._reduction.terms, torch.empty(step.stop - step.start)
        malformed = isinstance(failure, NotCanonical)
        reason = Reason.MALFORMED if malformed else Reason.NOT_FINITE
        for before in range(lane + 1):
            try:
                terms.codec.decode(arrived[before], numbers)
            except (NotFinite, NotCanonical):
                suspect = terms.members[self._plan.peers(terms.rank)[before]]
                return ExchangeBroken(suspect, reason, f"in elements from {step.start}")
        return ExchangeBroken(terms.me, reason, f"in elements from {step.start}")


class PartsSender(RingSender):
    """Sends one peer our contributions to its part, and the sums of ours."""

    def __init__(
        self, reduction: Reduction, right: Channel, steps: Iterable[Step], own: OwnPart
    ) -> None:
        super().__init__(reduction, right, steps)
        self._own = own

    def encoded(self, step: Step) -> Tensor:
        if step.gather:
            return self._own.sum(step)
        return self._reduction.encoded_part(step, self._scratch)


class PartsReceiver(RingReceiver):
    """Takes what one peer sends: its contributions to our part, and the sums of its own."""

    def __init__(
        self, reduction: Reduction, left: Channel, steps: Iterable[Step], own: OwnPart, lane: int
    ) -> None:
        """`lane`: its place in the order in which contributions are added."""
        super().__init__(reduction, left, steps)
        self._own, self._lane = own, lane
        self._awaits_contribution = True

    def due(self) -> float:
        """A contribution depends on nobody but us. For a sum its owner may be waiting, says so, and
        finds out who is late: only once it begins to send is it late itself."""
        if self._awaits_contribution:
            return super().due()
        if self._heard_at is None:
            return math.inf
        return self._heard_at + self._reduction.terms.pace.due_s(
            4 * self._reduction.plan.chunk_elements
        )

    def blame(self, reason: Reason, detail: str) -> ExchangeBroken:
        """The other end, too slow or silent: what it owes us depends on nobody, or it would have
        named whom it depends on."""
        late = reason is Reason.TIMEOUT and time.monotonic() >= self.due()
        return ExchangeBroken(self._left.peer_id, Reason.TOO_SLOW if late else reason, detail)

    def take(self, step: Step) -> None:
        self._awaits_contribution = not step.gather
        if step.gather:
            super().take(step)
            return
        self._own.wait_for_room(step)
        wire = self._receive(step, self._own.room(step, self._lane))
        self._reduction.moved(4 * (step.stop - step.start))
        if self._own.take(step, self._lane, wire):
            self._own.add_up(step)
            self._reduction.arenas.landed(step.start, step.stop)
            self._reduction.finished(step)
