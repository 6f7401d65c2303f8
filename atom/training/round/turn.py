"""Whether it is our turn to lead an attempt, and whom it would have to ask."""

from atom.swarm.chain.commit import Voter
from atom.swarm.records.lease import Lease
from atom.training.round.desk import Desk
from atom.training.round.electorate import (
    Electorate,
    alive_voters,
    rank,
    same_head,
)
from atom.training.round.events import Phase
from atom.training.round.hold_up import HoldUp
from atom.training.round.ring_watch import RingWatch
from atom.training.round.silence import Silence

UNHEEDED = 2
"""Calls for promises without a quorum, at one head: then it is others' turn."""


class Turn:
    """There has to be a cause, the others have to be quiet, and those before us in line had their
    chance."""

    def __init__(self, desk: Desk, rings: RingWatch, silence: Silence, hold_up: HoldUp) -> None:
        self._desk = desk
        self._hold_up = hold_up
        self.caused = False
        """Whether there is something to decide, when we looked last."""
        self._rings = rings
        self._silence = silence
        stranger = desk.me not in desk.head.voters
        self._lead_after = desk.now + (desk.patience.thaw_rest if stranger else 0.0)
        self._others_until = desk.now
        self.new_head()

    def new_head(self) -> None:
        self._retry_at = self._desk.now
        self._unheeded = 0
        self._trigger_since: float | None = None
        self._told_waiting = False
        self.waiting_for: frozenset[str] = frozenset()
        """Voters that are not in sight, by peer id, while no round can be decided without some of
        them."""
        self.caused = False
        self.stood_back = False
        """Whether we let others lead at this head, since we may be what fails. Not twice without
        our own word for it: liars may have made it look so."""

    # ---- others first

    def rest(self) -> None:
        """We were frozen: what we know is old, and others lead by now."""
        self._lead_after = self._desk.now + self._desk.patience.thaw_rest
        self._trigger_since = None

    def stand_back(self, own_word: bool) -> None:
        """Our rings break because of us: by our `own_word`, or so it seems. Then only as long as
        there is another voter: if those that failed us are dead, nobody else will lead."""
        until = self._desk.now + self._desk.patience.shun
        self.stood_back = True
        if own_word:
            self._lead_after = until
        else:
            self._others_until = until

    def _lets_others_lead(self) -> bool:
        desk = self._desk
        if desk.now < self._lead_after or desk.behind:
            return True
        if desk.now >= self._others_until:
            return False
        return bool(alive_voters(desk.head, desk.me, desk.view) - {desk.me})

    def back_off(self, unheeded: bool = False) -> None:
        """After an attempt in vain: not all at once again.

        `unheeded`: it called for promises, and no quorum answered. Perhaps we are heard and do not
        hear. Each call keeps those who promise from leading for a while, so from the second on we
        leave them the time in which one of them can.
        """
        patience, spread = self._desk.patience, 1 + self._desk.jitter.random()
        self._unheeded += unheeded
        pause_s = patience.retry
        if self._unheeded >= UNHEEDED:  # until another is due, and has asked who would follow
            pause_s = patience.quiet + patience.rank + patience.prevote
        self._retry_at = self._desk.now + pause_s * spread

    def at_once(self) -> None:
        """The next attempt has better prospects than the last."""
        self._retry_at = self._desk.now

    # ---- ours

    def come(self) -> Electorate | None:
        """Whom to ask, if we are to lead now."""
        desk, self.waiting_for = self._desk, frozenset()
        if desk.phase is not Phase.ACCUMULATING:
            return None
        self.caused = self.has_cause()
        if self._lets_others_lead():
            return None
        if not self.caused:
            self._trigger_since = None
            return None
        if self._trigger_since is None:
            self._trigger_since = desk.now
        patience, chosen = desk.patience, self._hold_up.chosen()
        self._tell_if_waiting(chosen)
        if chosen is None or desk.now < self._retry_at:
            return None
        alive = alive_voters(desk.head, desk.me, desk.view) | set(chosen.survivors)
        place = rank(chosen.voters, desk.me, desk.head, alive) + self._places_given_way(alive)
        turn = self._trigger_since + patience.rank * place
        due = max(turn, desk.state.active_at + patience.quiet)
        return chosen if desk.now >= due else None

    def _places_given_way(self, alive: set[Voter]) -> int:
        """A coordinator has to be in the exchange. So a voter with nothing to give lets those lead
        that have something."""
        fresh, me = self._desk.view.fresh, self._desk.me
        working = [v for v in alive - {me} if v.peer_id in fresh and fresh[v.peer_id].sequences]
        return len(working) if not self._desk.view.sequences else 0

    def has_cause(self) -> bool:
        """The swarm has reached the global batch, or an accepted value waits to be finished."""
        desk = self._desk
        if any(slot.accepted for slot in desk.state.slots.by_survivors.values()):
            return True
        others = self.answering(same_head(desk.head, desk.view)).values()
        wanted = desk.terms.global_batch
        counts = [min(lease.sequences, wanted) for lease in others]
        return desk.view.sequences + sum(counts) >= wanted

    def answering(self, leases: dict[str, Lease]) -> dict[str, Lease]:
        """Those of `leases` to count on: whose work will come to the next ring."""
        left_out = self._rings.left_out() | self._hold_up.unserved
        counted = self._silence.counted_on(leases)
        for peer in left_out & counted.keys():
            del counted[peer]
        return counted

    def _tell_if_waiting(self, chosen: Electorate | None) -> None:
        """Once per wait: as a voter, or as one who has none in sight and could wait for ever."""
        desk = self._desk
        alive = alive_voters(desk.head, desk.me, desk.view)
        waiting = chosen is None and (desk.me in desk.head.voters or not alive)
        missing = set(desk.head.voters) - alive if waiting else set()
        self.waiting_for = frozenset(voter.peer_id for voter in missing)
        if waiting and not self._told_waiting:
            desk.report(
                "no-quorum",
                waiting_for=sorted(self.waiting_for),
                grace_seconds=desk.patience.grace,
            )
        self._told_waiting = waiting
