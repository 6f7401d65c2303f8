"""A head at which nothing is decided although everything is there: for how long, and who failed us.

Leases may show a quorum that never decides: it cannot reach itself, or some of it hold back what
they owe. Nobody waits for that for ever. Once the time is over, whoever failed our attempts is
given up, like a peer that is silent. It costs a branch, which a quorum's round beats whenever it
comes.
"""

from collections.abc import Set as AbstractSet

from atom.base.reasons import Reason
from atom.swarm.chain.commit import Voter
from atom.swarm.chain.membership import is_quorum
from atom.swarm.records.lease import PeerState
from atom.training.round.attempt import Attempt, Stage
from atom.training.round.desk import Desk
from atom.training.round.electorate import Electorate, alive_voters, electorate, same_head
from atom.training.round.events import Phase

HOLD_OUT = 5
"""Times the grace time, what promises take, and a ring: until a head is overdue once."""
GIVEN_UP = 1.0
"""So often overdue, who was silent is given up; twice as often, who refused as well."""
_SEEN_FROM_AFAR = 0.1
"""How much of the time counts while others say that they average, and we are not among them."""
_ORDER = list(Stage)


class HoldUp:
    """One coordinator's account of the present head."""

    def __init__(self, desk: Desk) -> None:
        self._desk = desk
        self._ticked_at = desk.now
        self._silent: dict[Voter, Stage] = {}
        """Who owed us an answer, and at which stage."""
        self._unwilling: dict[Voter, Stage] = {}
        self._unserved = set[Voter]()
        """Who says that it accepted a value, and does not hand out its result."""
        self._alone_in_vain = False
        """Whether our last attempt was one of survivors only, and they did not agree to it."""

    def new_head(self) -> None:
        self._silent.clear()
        self._unwilling.clear()
        self._unserved.clear()
        self._alone_in_vain = False

    # ---- how long

    def tick(self, cause: bool, leading: bool) -> None:
        """`cause`: there is something to decide. Time in which we looked away does not count, nor
        does any while we see nobody: for the silent there is the grace time."""
        desk, state = self._desk, self._desk.state
        passed, self._ticked_at = desk.now - self._ticked_at, desk.now
        engaged = leading or desk.phase in (Phase.PROMISED, Phase.HOLDING)
        if not desk.view.fresh or passed > desk.patience.thaw_gap or not (cause or engaged):
            return
        if desk.phase is Phase.REDUCING:
            return  # a ring makes progress, or ends by limits of its own
        state.held_up_s += passed * (_SEEN_FROM_AFAR if self._others_average(engaged) else 1.0)
        least_s = HOLD_OUT * (desk.patience.grace + desk.ring_s)
        if state.held_up_s >= 0.5 * least_s:
            limit_s = least_s + HOLD_OUT * desk.promise_patience()
            before, state.overdue = state.overdue, state.held_up_s / limit_s
            if before < GIVEN_UP <= state.overdue:
                self._tell()

    def _tell(self) -> None:
        names = sorted(voter.peer_id for voter in self.given_up())
        self._desk.report("held-up", seconds=round(self._desk.state.held_up_s), given_up=names)

    def _others_average(self, engaged: bool) -> bool:
        if engaged:
            return False
        desk = self._desk
        averaging = {
            Voter(lease.peer_id, lease.incarnation)
            for voter in desk.head.voters
            if (lease := desk.view.fresh.get(voter.peer_id)) is not None
            and (lease.state, lease.head) == (PeerState.REDUCING, desk.head.digest)
        }
        return is_quorum(desk.head.voters, averaging)

    # ---- who

    def learn(self, attempt: Attempt, reason: Reason) -> None:
        """An attempt of ours ended in vain: who of its electors owes us the stage it ended at?"""
        self._alone_in_vain = bool(attempt.electorate.survivors)
        if reason not in (Reason.NO_QUORUM, Reason.SUPERSEDED):
            return
        me, present = self._desk.me, attempt.present()
        owing = set(attempt.electorate.voters) - present
        if attempt.stage is Stage.ACCEPT and me not in present:
            # For want of the result: others that could not vote either are not to blame.
            assert attempt.value is not None
            owing = attempt.holders(attempt.value.result_digest)
        for voter in {*attempt.electorate.voters} - {me}:
            if voter.peer_id in attempt.refused:
                self._unwilling[voter] = attempt.stage
            elif reason is Reason.NO_QUORUM and voter in owing:
                self._silent[voter] = attempt.stage

    def not_served(self, holders: AbstractSet[Voter]) -> None:
        """A result that these have was not to be had from them: they are cut off from us."""
        self._unserved |= holders - {self._desk.me}

    def dispensable(self, chosen: Electorate, invited: AbstractSet[str]) -> frozenset[str]:
        """Who is not asked to promise, if the others can decide. What others accepted meets any
        quorum of the rest as well, if a quorum has accepted it."""
        without = chosen.can_do_with(invited - self.unserved, self._desk.me, self._desk.view)
        return self.unserved if without else frozenset()

    @property
    def unserved(self) -> frozenset[str]:
        """Whose promise may be not asked for, so that its count is not to be counted on."""
        return frozenset(voter.peer_id for voter in self._unserved)

    def forgive(self, voter: Voter, stage: Stage) -> None:
        """It did at last what it is asked for at this stage."""
        for failed in (self._silent, self._unwilling):
            at = failed.get(voter)
            if at is not None and _ORDER.index(at) <= _ORDER.index(stage):
                del failed[voter]

    def chosen(self) -> Electorate | None:
        """Whom to ask for the next commit. When those that are left have not agreed to go on
        without the given up, these are asked once more: perhaps they are back, and the others
        know it."""
        if self._alone_in_vain and (all_of_them := self._electorate(frozenset())) is not None:
            return all_of_them
        return self._electorate(self.given_up())

    def _electorate(self, given_up: AbstractSet[Voter]) -> Electorate | None:
        desk = self._desk
        grace_s, branches = desk.patience.grace, desk.terms.branches
        return electorate(desk.head, desk.me, desk.view, grace_s, branches, given_up)

    def given_up(self) -> frozenset[Voter]:
        """On whom nothing depends any more."""
        desk = self._desk
        if desk.patience_lost < GIVEN_UP:
            return frozenset()
        here = same_head(desk.head, desk.view)
        alive = alive_voters(desk.head, desk.me, desk.view) - {desk.me}
        elsewhere = {voter for voter in alive if voter.peer_id not in here}
        if desk.patience_lost < 2 * GIVEN_UP:
            return frozenset(elsewhere | self._silent.keys())
        led_by_others = alive if desk.me not in desk.head.voters else set()
        return frozenset(elsewhere | led_by_others | self._silent.keys() | self._unwilling.keys())
