"""Election of a coordinator: when this replica leads an attempt, and which peers it asks."""

from atom.swarm.chain.commit import Voter, is_quorum
from atom.swarm.records.lease import PeerState
from atom.training.round.electorate import (
    Electorate,
    Survivors,
    alive_voters,
    batch_of,
    believed,
    counted_leases,
    electorate,
    is_backed,
    objection_to_branch,
    place_in_line,
    present_at,
    same_head,
    trusted_peers_rest,
)
from atom.training.round.events import Phase
from atom.training.round.faults import UnreliablePeers
from atom.training.round.round_state import RoundContext

HOLD_OUT = 5
"""Number of time limits (grace time plus time for promises) after which a head is overdue."""
_VIEW_SLACK_S = 2.0
"""Largest difference in seconds between two peers' views of the same lease: one renewal."""
OVERDUE_SLACK = 0.8
"""Fraction of the time limit after which we agree that a head is overdue.

A peer that proposes a branch must have waited for the whole limit.
"""


def objects_to_branch(context: RoundContext, survivors: Survivors) -> bool:
    """Return True if our own view contradicts the survivors' claim that they must go on alone."""
    if context.state.overdue >= OVERDUE_SLACK:
        # A voter that was left out may be alive, but no round has been decided with it.
        backing = len({v.peer_id for v in context.head.voters} & {v.peer_id for v in survivors})
        agrees = context.me in survivors
        return not (agrees or is_backed(context.head, context.me, context.view, backing))
    grace_s = context.patience.grace - _VIEW_SLACK_S if context.terms.branches else float("inf")
    return objection_to_branch(context.head, context.me, context.view, survivors, max(grace_s, 0.0))


class LeaderElection:
    """Decision of a voter to lead an attempt.

    A voter leads if there is a cause, no other voter leads, and the voters before it in line had
    their chance. Two coordinators at the same time only cost time: ballots decide.

    Leases may show a quorum that never decides, because its members cannot reach each other or us.
    No peer waits for such a quorum forever: if a head could have been decided for a long time, it
    is *overdue*, and a branch may leave it. A later round of the quorum still replaces the branch.
    """

    def __init__(self, context: RoundContext, peers: UnreliablePeers) -> None:
        self._context = context
        self._peers = peers
        self.waiting_for: frozenset[str] = frozenset()
        """Peer ids of the missing voters without which no round can be decided."""
        self.new_head()
        if context.me not in context.head.voters:
            self.rest()

    def new_head(self) -> None:
        """Start over at another head."""
        self._retry_at = self._context.now
        self._cause_since: float | None = None
        self._stalled_s = 0.0
        """Seconds in which, by our own view, the head could have been decided but was not."""
        self.waiting_for = frozenset()

    # ---- other coordinators first

    def rest(self) -> None:
        """Wait for `RoundPatience.quiet`, because another voter may lead without our knowledge."""
        self._retry_at = self._context.now + self._context.patience.quiet
        self._cause_since = None

    def back_off(self) -> None:
        """Put off the next attempt after a failed one; return at once.

        The pause is short, because the attempt has brought new knowledge. If exchanges broke
        because of us, the pause lasts until another voter can lead. We also wait while other peers
        ignore us (`RoundContext.free_at`).
        """
        patience, spread = self._context.patience, 1 + self._context.jitter.random()
        pause_s = patience.retry
        if self._peers.we_fail:
            # until another voter is due, and has asked which peers would follow
            pause_s = patience.quiet + patience.rank + patience.prevote
        self._retry_at = self._context.now + pause_s * spread

    # ---- our turn

    def come(self) -> Electorate | None:
        """Return the electorate of a new attempt if it is our turn to lead now, else None."""
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
        self._report_waiting(chosen)
        heeded_at = context.free_at(context.me) + context.patience.retry
        if chosen is None or context.now < max(self._retry_at, heeded_at):
            return None
        return chosen if context.now >= self._due(chosen, self._cause_since) else None

    def _due(self, chosen: Electorate, since: float) -> float:
        """Return the time of our turn, after the voters before us and other voters' attempts."""
        context, patience = self._context, self._context.patience
        alive = alive_voters(context.head, context.me, context.view) | set(chosen.survivors)
        last = self._last_in_line(), context.view.undialled
        place = place_in_line(chosen.voters, context.me, context.head, alive, *last)
        return max(since + patience.rank * place, context.state.led_at + patience.quiet)

    def _last_in_line(self) -> set[Voter]:
        """Return the voters that lead last.

        They are voters that have counted nothing, because a coordinator is always in the exchange;
        and this process, if exchanges break because of it or it has counted nothing.
        """
        context = self._context
        mates = same_head(context.head, context.view)
        idle = {Voter(i, each.incarnation) for i, each in mates.items() if not each.sequences}
        useful = context.view.sequences and not self._peers.we_fail
        return idle if useful else idle | {context.me}

    def _has_cause(self) -> bool:
        """Return True if the counts make a round due, or an accepted value waits to be finished.

        While no voter and no peer with tenure works, the claims of strangers count, too: a failed
        attempt then disturbs no other work, and otherwise the strangers' work would never count.
        """
        context, peers = self._context, self._peers
        if context.state.acceptor.accepted:
            return True
        leases = counted_leases(context.head, context.view, peers.answered, peers.excluded)
        batch, most = context.terms.global_batch, context.terms.counted_peers
        counts = believed(context.head, leases, batch, most)
        if trusted_peers_rest(context.head, context.view):
            leases = same_head(context.head, context.view)
            counts = {peer: leases[peer].sequences for peer in leases.keys() - peers.excluded}
        counts[context.me.peer_id] = context.view.sequences
        return batch_of(context.head, counts, most) >= batch

    def _report_waiting(self, chosen: Electorate | None) -> None:
        """Report once per wait that voters are missing, if we are a voter or see no voter."""
        context, before = self._context, self.waiting_for
        alive = alive_voters(context.head, context.me, context.view)
        waiting = chosen is None and (context.me in context.head.voters or not alive)
        missing = set(context.head.voters) - alive if waiting else set()
        self.waiting_for = frozenset(voter.peer_id for voter in missing)
        if missing and not before:
            names, grace_s = sorted(self.waiting_for), context.patience.grace
            context.report("no-quorum", waiting_for=names, grace_seconds=grace_s)

    # ---- overdue heads

    def watch(self, leading: bool, passed: float) -> None:
        """Measure whether our head is overdue.

        Time in which this process was suspended does not count; neither does time in which we see
        no peer (the grace time covers silence), nor the time of an exchange, which makes progress
        or ends by its own limits.

        Args:
            leading: True if an attempt of ours is under way.
            passed: Seconds since the last call.
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
        """Return the voters that are not waited for at an overdue head.

        They are living voters that failed us or are at another head; for a peer that is no voter,
        and so may not lead, they are all living voters.
        """
        context = self._context
        if context.state.overdue < 1.0:
            return set()
        here = present_at(context.head, context.view)
        alive = alive_voters(context.head, context.me, context.view) - {context.me}
        led_by_others = alive if context.me not in context.head.voters else set[Voter]()
        return (alive - here) | led_by_others | (here & self._peers.owing)
