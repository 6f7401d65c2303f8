"""Which parts of the optimizer's state a simulated process has, whole and of its own head."""

from typing import TYPE_CHECKING

from atom.swarm.chain.commit import Head, Value
from atom.training.round.events import Phase
from atom.training.round.holders import parts_in, still_held

if TYPE_CHECKING:
    from simulated_peer import Process

FETCHED_AT_ONCE = 3


class HeldParts:
    """Of one process. At genesis everybody can make all of it."""

    def __init__(self, process: "Process") -> None:
        self._process, count = process, process.swarm.setting.parts
        head, found = process.chain.head, process.seat.held
        self.parts = found[1] if found[0] == head.digest else frozenset[int]()
        if head.round == 0:
            self.parts = frozenset(range(count))
        self._told = self._told_by(head)
        self._fetching = False

    def _told_by(self, head: Head) -> frozenset[int]:
        us = (each.parts for each in head.holders if each.peer_id == self._process.peer_id)
        return parts_in(next(us, 0))

    def step(self, value: Value) -> None:
        """Who was in the exchange has its means; others fetch them from those that have them."""
        us, renewed = self._process.me, parts_in(value.renewed)
        holds = {m.peer_id: parts_in(m.holds) | renewed for m in value.contributions}
        told = {each.peer_id: parts_in(each.parts) for each in value.holders_next}
        mine = [m.incarnation for m in value.contributions if m.peer_id == us.peer_id]
        if mine == [us.incarnation]:
            self.parts = still_held(us.peer_id, told, holds)
        else:
            self.parts = frozenset(part for part in self.parts if self._served(part, holds))
        self._told = told.get(us.peer_id, frozenset())

    def _served(self, part: int, holds: dict[str, frozenset[int]]) -> bool:
        us, swarm = self._process.peer_id, self._process.swarm
        return any(part in parts and swarm.reachable(us, peer) for peer, parts in holds.items())

    def caught_up(self, head: Head, replayed: bool) -> None:
        """Means that are asked for may be served; another branch's state is of no use."""
        dice = self._process.dice
        kept = [part for part in self.parts if replayed and self._at(head, part)]
        self.parts = frozenset(part for part in kept if dice.random() < 0.8)
        self._told = self._told_by(head)

    def fetch(self) -> None:
        """Begins with what it shall hold and does not, unless that is under way."""
        if not self._fetching and self._told - self.parts:
            self._fetching = True
            self._process.later(self._process.dice.uniform(0.1, 2.0), self._fetched)

    def _fetched(self) -> None:
        """Brought to the head with the means that came meanwhile."""
        self._fetching, process = False, self._process
        here = process.chain.head
        stands = process.machine.phase is Phase.ACCUMULATING and here == process.machine.head
        if stands and not process.gradients.frozen:
            missing = sorted(self._told - self.parts)[:FETCHED_AT_ONCE]
            self.parts |= {part for part in missing if self._at(here, part)}

    def _at(self, head: Head, part: int) -> bool:
        process = self._process
        others = (each for each in process.swarm.living if each is not process)
        return any(
            other.chain.head == head
            and part in other.held.parts
            and process.swarm.reachable(process.peer_id, other.peer_id)
            for other in others
        )
