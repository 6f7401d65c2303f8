"""Whether it is our turn to lead an attempt, and whom it would have to ask."""

from collections.abc import Mapping

from atom.swarm.chain.commit import Voter
from atom.swarm.records.lease import Lease
from atom.training.round.electorate import (
    Electorate,
    alive_voters,
    hidden_peers,
    rank,
    same_head,
)
from atom.training.round.events import Phase
from atom.training.round.faults import RingFaults, StallDetector, UnresponsivePeers
from atom.training.round.round_state import RoundContext

UNHEEDED = 2
"""Calls for promises without a quorum, at one head: then it is others' turn."""


class LeaderElection:
    """There has to be a cause, the others have to be quiet, and those before us in line had their
    chance. Two that lead at once cost time and nothing else: ballots decide between them."""

    def __init__(
        self,
        context: RoundContext,
        rings: RingFaults,
        peers: UnresponsivePeers,
        stall: StallDetector,
    ) -> None:
        self._context = context
        self._rings = rings
        self._peers = peers
        self._stall = stall
        stranger = context.me not in context.head.voters
        self._lead_after = context.now + (context.patience.thaw_rest if stranger else 0.0)
        self._others_until = context.now
        self.new_head()

    def new_head(self) -> None:
        self._retry_at = self._context.now
        self._unheeded = 0
        self._cause_since: float | None = None
        self._told_waiting = False
        self.has_cause = False
        """Whether there is something to decide, when we looked last."""
        self.stood_back = False
        """Whether we let others lead at this head, since we may be what fails."""
        self.waiting_for: frozenset[str] = frozenset()
        """Voters that are not in sight, by peer id, while no round can be decided without some of
        them."""

    # ---- others first

    def rest(self) -> None:
        """We were frozen: what we know is old, and others lead by now."""
        self._lead_after = self._context.now + self._context.patience.thaw_rest
        self._cause_since = None

    def stand_back(self) -> None:
        """Our rings break because of us, it seems: others lead first, while there are any."""
        self.stood_back = True
        self._others_until = self._context.now + self._context.patience.stand_back

    def back_off(self, unheeded: bool = False) -> None:
        """After an attempt in vain: not all at once again.

        `unheeded`: it called for promises, and no quorum answered. Perhaps we are heard and do not
        hear. Each call keeps those that promise from leading for a while, so from the second on we
        leave them the time in which one of them can.
        """
        patience, spread = self._context.patience, 1 + self._context.jitter.random()
        self._unheeded += unheeded
        pause_s = patience.retry
        if self._unheeded >= UNHEEDED:  # until another is due, and has asked who would follow
            pause_s = patience.quiet + patience.rank + patience.prevote
        self._retry_at = self._context.now + pause_s * spread

    def at_once(self) -> None:
        """The next attempt has better prospects than the last."""
        self._retry_at = self._context.now

    def _lets_others_lead(self) -> bool:
        context = self._context
        if context.now < self._lead_after or context.behind:
            return True
        if context.now >= self._others_until:
            return False
        return bool(alive_voters(context.head, context.me, context.view) - {context.me})

    # ---- ours

    def come(self) -> Electorate | None:
        """Whom to ask, if we are to lead now."""
        context, self.waiting_for = self._context, frozenset()
        if context.phase is not Phase.ACCUMULATING:
            return None
        self.has_cause = self.find_cause()
        if self._lets_others_lead():
            return None
        if not self.has_cause:
            self._cause_since = None
            return None
        if self._cause_since is None:
            self._cause_since = context.now
        chosen = self._stall.chosen()
        self._tell_if_waiting(chosen)
        if chosen is None or context.now < self._retry_at:
            return None
        return chosen if context.now >= self._due(chosen, self._cause_since) else None

    def _due(self, chosen: Electorate, since: float) -> float:
        """When it is our turn: after those before us in line, and after others' attempts."""
        context, patience = self._context, self._context.patience
        alive = alive_voters(context.head, context.me, context.view) | set(chosen.survivors)
        last = self._idle_voters(), hidden_peers(context.view)
        place = rank(chosen.voters, context.me, context.head, alive, *last)
        return max(since + patience.rank * place, context.state.led_at + patience.quiet)

    def _idle_voters(self) -> set[Voter]:
        """Those with nothing counted: whoever leads is in the ring."""
        context = self._context
        mates = same_head(context.head, context.view)
        idle = {Voter(i, each.incarnation) for i, each in mates.items() if not each.sequences}
        return idle if context.view.sequences else idle | {context.me}

    def find_cause(self) -> bool:
        """A round is due by the counts, or an accepted value waits to be finished."""
        context = self._context
        if context.state.acceptor.accepted:
            return True
        others = self.answering(same_head(context.head, context.view)).values()
        counted = context.view.sequences + sum([lease.sequences for lease in others])
        return context.terms.policy.is_due(counted, context.round_s)

    def answering(self, leases: Mapping[str, Lease]) -> dict[str, Lease]:
        """Those of `leases` to count on: whose work will come to the next ring."""
        left_out = self._rings.left_out()
        counted = self._peers.counted_on(leases)
        return {peer: lease for peer, lease in counted.items() if peer not in left_out}

    def _tell_if_waiting(self, chosen: Electorate | None) -> None:
        """Once per wait: as a voter, or as a peer that has no voter in sight."""
        context = self._context
        alive = alive_voters(context.head, context.me, context.view)
        waiting = chosen is None and (context.me in context.head.voters or not alive)
        missing = set(context.head.voters) - alive if waiting else set()
        self.waiting_for = frozenset(voter.peer_id for voter in missing)
        if waiting and not self._told_waiting:
            names, grace_s = sorted(self.waiting_for), context.patience.grace
            context.report("no-quorum", waiting_for=names, grace_seconds=grace_s)
        self._told_waiting = waiting
