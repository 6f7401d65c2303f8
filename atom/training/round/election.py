"""Whether it is our turn to lead an attempt, and whom it would have to ask."""

from atom.swarm.chain.commit import Voter, is_quorum
from atom.swarm.records.lease import PeerState
from atom.training.round.electorate import (
    Electorate,
    Survivors,
    alive_voters,
    electorate,
    objection_to_branch,
    place_in_line,
    present_at,
    same_head,
)
from atom.training.round.events import Phase
from atom.training.round.faults import UnreliablePeers
from atom.training.round.round_state import RoundContext

HOLD_OUT = 5
"""Times the grace time and what promises take: until a head is overdue."""
_VIEW_SLACK_S = 2.0
"""Two peers' views of the same lease may differ by a renewal: how much sooner we agree."""
_OVERDUE_SLACK = 0.8
"""And on how long a head is overdue: who proposes must have waited for all of it."""


def objects_to_branch(context: RoundContext, survivors: Survivors) -> bool:
    """Whether we know better than these survivors that they have to go on alone."""
    if context.state.overdue >= _OVERDUE_SLACK:
        return False  # a voter that was left out may live: it does not help us
    grace_s = context.patience.grace - _VIEW_SLACK_S if context.terms.branches else float("inf")
    return objection_to_branch(context.head, context.me, context.view, survivors, max(grace_s, 0.0))


class LeaderElection:
    """There has to be a cause, the others have to be quiet, and those before us in line had their
    chance. Two that lead at once cost time and nothing else: ballots decide between them.

    Leases may show a quorum that never decides: its members cannot reach each other, or not us.
    Nobody waits for that for ever: a head that could have been decided for long is *overdue*. It
    costs a branch, which a quorum's round beats whenever it comes."""

    def __init__(self, context: RoundContext, peers: UnreliablePeers) -> None:
        self._context = context
        self._peers = peers
        self.waiting_for: frozenset[str] = frozenset()
        """Voters that are not in sight, by peer id, while no round can be decided without some of
        them."""
        self.new_head()
        if context.me not in context.head.voters:
            self.rest()

    def new_head(self) -> None:
        self._retry_at = self._context.now
        self._cause_since: float | None = None
        self._stalled_s = 0.0
        """How long the head could have been decided and was not, as far as we can tell."""
        self.waiting_for = frozenset()

    # ---- others first

    def rest(self) -> None:
        """What we know of the others is old, or nothing: perhaps one of them leads."""
        self._retry_at = self._context.now + self._context.patience.quiet
        self._cause_since = None

    def back_off(self) -> None:
        """After an attempt in vain: not all at once again. Each keeps others from leading for a
        while; if exchanges broke because of us we leave them the time in which one of them can."""
        patience, spread = self._context.patience, 1 + self._context.jitter.random()
        pause_s = patience.retry
        if self._peers.we_fail:
            # until another is due, and has asked who would follow
            pause_s = patience.quiet + patience.rank + patience.prevote
        self._retry_at = self._context.now + pause_s * spread

    # ---- ours

    def come(self) -> Electorate | None:
        """Whom to ask, if we are to lead now."""
        context = self._context
        if context.phase is not Phase.ACCUMULATING:
            return None
        if not self._has_cause():
            self._cause_since, self.waiting_for = None, frozenset()
            return None
        if self._cause_since is None:
            self._cause_since = context.now
        seen = context.head, context.me, context.view
        grace_s, branches = context.patience.grace, context.terms.branches
        chosen = electorate(*seen, grace_s, branches, self._given_up())
        self._tell_if_waiting(chosen)
        if chosen is None or context.now < self._retry_at:
            return None
        return chosen if context.now >= self._due(chosen, self._cause_since) else None

    def _due(self, chosen: Electorate, since: float) -> float:
        """When it is our turn: after those before us in line, and after others' attempts."""
        context, patience = self._context, self._context.patience
        alive = alive_voters(context.head, context.me, context.view) | set(chosen.survivors)
        last = self._last_in_line(), context.view.hidden
        place = place_in_line(chosen.voters, context.me, context.head, alive, *last)
        return max(since + patience.rank * place, context.state.led_at + patience.quiet)

    def _last_in_line(self) -> set[Voter]:
        """Those with nothing counted, since whoever leads is in the exchange; and we, if exchanges
        break because of us."""
        context = self._context
        mates = same_head(context.head, context.view)
        idle = {Voter(i, each.incarnation) for i, each in mates.items() if not each.sequences}
        useful = context.view.sequences and not self._peers.we_fail
        return idle if useful else idle | {context.me}

    def _has_cause(self) -> bool:
        """A round is due by the counts, or an accepted value waits to be finished."""
        context, aside = self._context, self._peers.aside
        if context.state.acceptor.accepted:
            return True
        mates = same_head(context.head, context.view)
        others = [lease.sequences for peer, lease in mates.items() if peer not in aside]
        counted = context.view.sequences + sum(others)
        return counted >= context.terms.global_batch

    def _tell_if_waiting(self, chosen: Electorate | None) -> None:
        """Once per wait: as a voter, or as a peer that has no voter in sight."""
        context, before = self._context, self.waiting_for
        alive = alive_voters(context.head, context.me, context.view)
        waiting = chosen is None and (context.me in context.head.voters or not alive)
        missing = set(context.head.voters) - alive if waiting else set()
        self.waiting_for = frozenset(voter.peer_id for voter in missing)
        if missing and not before:
            names, grace_s = sorted(self.waiting_for), context.patience.grace
            context.report("no-quorum", waiting_for=names, grace_seconds=grace_s)

    # ---- heads at which nothing is decided

    def watch(self, leading: bool, passed: float) -> None:
        """Finds out whether our head is overdue, so much later. Time in which we looked away does
        not count, nor does any while we see nobody (for the silent there is the grace time), nor
        that of an exchange, ours or the others': it makes progress, or ends by limits of its own.
        """
        context = self._context
        engaged = leading or context.phase in (Phase.PROMISED, Phase.HOLDING)
        could_be = context.view.fresh and passed <= context.patience.standstill
        if not (could_be and context.terms.branches and (self._cause_since is not None or engaged)):
            return
        if context.phase is Phase.REDUCING or (not engaged and self._others_average()):
            return
        self._stalled_s += passed
        limit_s = context.patience.grace + context.promise_patience()
        before, context.state.overdue = context.state.overdue, self._stalled_s / HOLD_OUT / limit_s
        if before < 1.0 <= context.state.overdue:
            names = sorted(voter.peer_id for voter in self._given_up())
            context.report("held-up", seconds=round(self._stalled_s), given_up=names)

    def _others_average(self) -> bool:
        head, view = self._context.head, self._context.view
        states = {voter: view.fresh[voter.peer_id].state for voter in present_at(head, view)}
        averaging = {voter for voter, state in states.items() if state is PeerState.REDUCING}
        return is_quorum(head.voters, averaging)

    def _given_up(self) -> set[Voter]:
        """Voters on whom nothing depends any more: of an overdue head those that failed us, those
        at another head, and all of them for a peer that may not lead itself."""
        context = self._context
        if context.state.overdue < 1.0:
            return set()
        here = present_at(context.head, context.view)
        alive = alive_voters(context.head, context.me, context.view) - {context.me}
        led_by_others = alive if context.me not in context.head.voters else set[Voter]()
        return (alive - here) | led_by_others | (here & self._peers.owing)
