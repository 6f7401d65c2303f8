"""Which parts of the optimizer's state a simulated process has, whole and of its own head."""

from typing import TYPE_CHECKING

from atom.swarm.chain.commit import Head, Value
from atom.training.round.holders import parts_in, still_held

if TYPE_CHECKING:
    from simulated_peer import Process


class HeldParts:
    """Of one process. At genesis the founder has all of it."""

    def __init__(self, process: "Process") -> None:
        self._process, count = process, process.swarm.setting.parts
        head, found = process.chain.head, process.seat.held
        self.parts = found[1] if found[0] == head.digest else frozenset[int]()
        if head.round == 0 and process.peer_id in {voter.peer_id for voter in head.voters}:
            self.parts = frozenset(range(count))
        self._told = self._told_by(head)

    def _told_by(self, head: Head) -> frozenset[int]:
        us = (each.parts for each in head.holders if each.peer_id == self._process.peer_id)
        return parts_in(next(us, 0))

    def step(self, value: Value) -> None:
        """Who was in the exchange has its means, and what it was to hold from then on; others fetch
        means from those that have them."""
        us = self._process.me
        holds = {m.peer_id: parts_in(m.holds) for m in value.contributions}
        told = {each.peer_id: parts_in(each.parts) for each in value.holders_next}
        mine = [m.incarnation for m in value.contributions if m.peer_id == us.peer_id]
        if mine == [us.incarnation]:
            ours = holds[us.peer_id] | self._told
            self.parts = still_held(us.peer_id, told, {**holds, us.peer_id: ours})
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

    def _at(self, head: Head, part: int) -> bool:
        process = self._process
        others = (each for each in process.swarm.living if each is not process)
        return any(
            other.chain.head == head
            and part in other.held.parts
            and process.swarm.reachable(process.peer_id, other.peer_id)
            for other in others
        )
