"""Parts with owners: what an owner holds of its own part, and the connections to its peers."""

import math
import time
from collections.abc import Iterable

import torch
from torch import Tensor

from atom.base.reasons import Reason
from atom.swarm.exchange.codec import NotCanonical, NotFinite
from atom.swarm.exchange.plans import WINDOW, PartsPlan, Step
from atom.swarm.exchange.reduction import ExchangeBroken, Reduction
from atom.swarm.exchange.ring import Receiver
from atom.swarm.stream.frames import Channel


class OwnPart:
    """The encoded contributions to our own part, until they are summed: nobody contributes to a
    slot's next chunk before it has the last one's sum."""

    def __init__(self, reduction: Reduction, plan: PartsPlan) -> None:
        self._reduction, self._plan, terms = reduction, plan, reduction.terms
        self.peers = [terms.members[rank] for rank in plan.peers(terms.rank)]
        """In the order in which their contributions are added: each is a lane."""
        slots = WINDOW * plan.owned_chunks if plan.shares[terms.rank] else 0
        most = terms.codec.wire_bytes(plan.chunk_elements)
        self._held = torch.empty(len(self.peers), slots, most, dtype=torch.uint8)
        self._arrived: list[dict[int, Tensor]] = [{} for _ in range(slots)]

    def room(self, step: Step, lane: int) -> Tensor:
        """Where the contribution of the `lane`-th peer belongs (uint8)."""
        size = self._reduction.terms.codec.wire_bytes(step.stop - step.start)
        return self._held[lane, self._plan.slot(step.number), :size]

    def take(self, step: Step, lane: int, wire: Tensor) -> bool:
        """One more contribution is there; whether it was the last, and the sum is due."""
        arrived = self._arrived[self._plan.slot(step.number)]
        with self._reduction.changed:
            arrived[lane] = wire
            return len(arrived) == len(self.peers)

    def add_up(self, step: Step) -> None:
        """The mean of the chunk. Raises: ExchangeBroken."""
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
    """Takes what one peer sends: its contributions to our part, and the sums of its own."""

    _awaits_contribution = True

    def __init__(
        self, own: OwnPart, reduction: Reduction, channel: Channel, steps: Iterable[Step]
    ) -> None:
        super().__init__(reduction, channel, steps)
        self._own, self._lane = own, own.peers.index(channel.peer_id)

    def due(self) -> float:
        """A contribution depends on nobody but us. For a sum its owner may be waiting, says so, and
        finds out who is late: only once it begins to send is it late itself."""
        if self._awaits_contribution:
            return super().due()
        if self._heard_at is None:
            return math.inf
        return self._heard_at + self.reduction.terms.pace.due_s(
            4 * self.reduction.plan.chunk_elements
        )

    def blame(self, reason: Reason, detail: str) -> ExchangeBroken:
        """The other end, too slow or silent: what it owes us depends on nobody, or it would have
        named whom it depends on."""
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
