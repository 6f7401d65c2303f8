"""In which attempt this replica is engaged, and how it gets out of it."""

from atom.swarm.chain.commit import Ballot, Voter
from atom.training.round.coordinator import Coordinator
from atom.training.round.desk import Desk
from atom.training.round.events import CatchUp, Phase, StopRing, Thaw


class Engagement:
    """Moves from phase to phase; which one is the member's business."""

    def __init__(self, desk: Desk, coordinator: Coordinator) -> None:
        self._desk = desk
        self._coordinator = coordinator

    def enter(self, phase: Phase) -> None:
        self._desk.phase = phase
        self._desk.state.since = self._desk.now

    def notice(self, sender: Voter, ballot: Ballot) -> None:
        """Somebody leads an attempt: ours, if it is lower, is over."""
        if sender != self._desk.me:
            self._desk.state.active_at = self._desk.now
            self._desk.state.active_by = sender.peer_id
            self._coordinator.step_aside(ballot)

    def stop_ring(self) -> None:
        desk = self._desk
        if desk.phase is Phase.REDUCING:
            assert desk.state.ballot is not None
            desk.out.append(StopRing(desk.state.ballot))

    def let_go(self) -> None:
        """Back to accumulating. What was promised, accepted or held stays."""
        desk = self._desk
        self._coordinator.attempt = None
        self.stop_ring()
        if desk.phase in (Phase.PROMISED, Phase.REDUCING, Phase.HOLDING):
            self.enter(Phase.ACCUMULATING)
            desk.out.append(Thaw())

    def catch_up(self, donors: tuple[str, ...], reason: str, discard: bool = False) -> None:
        """Out of the rounds until the state is right again."""
        self.let_go()
        desk = self._desk
        desk.phase = Phase.SYNCING
        desk.out.append(CatchUp(donors, reason, discard))
