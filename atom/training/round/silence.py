"""Who gave no answer, to us or to another coordinator, and what is expected of it from now on."""

from collections.abc import Iterable, Mapping
from collections.abc import Set as AbstractSet

from atom.base.reasons import Reason
from atom.swarm.records.lease import Lease
from atom.swarm.transport.quarantine import Quarantine
from atom.training.round.attempt import Attempt
from atom.training.round.desk import Desk
from atom.training.round.electorate import Electorate
from atom.training.round.events import Unanswered
from atom.training.round.succession import leaves_them_stuck

MUTE_S = 30.0


class Silence:
    """What a silent peer has counted does not come to the ring: until it renews its lease, it is
    not counted on. Who lets a coordinator wait in vain is mute: asked again, but not waited for
    until a hold is over, twice as long each time. A fresh lease is no excuse: leases are free."""

    def __init__(self, desk: Desk) -> None:
        self._desk = desk
        self._mute = Quarantine(MUTE_S)
        self._unheard: dict[str, int] = {}
        """And the serial of the lease that it showed then."""
        self.unanswered = False
        """Whether nobody else answered when we called last, for pre-votes or promises, and none of
        them has averaged with us since."""

    def new_head(self) -> None:
        self._unheard.clear()
        step, me = self._desk.applied, self._desk.me.peer_id
        if step is None or any(part.peer_id != me for part in step.value.contributions):
            self.unanswered = False

    def of(self, peers: Iterable[str]) -> None:
        """They gave no answer to what we asked last."""
        fresh = self._desk.view.fresh
        self._unheard.update({peer: fresh[peer].serial for peer in peers if peer in fresh})

    def after_prevotes(self, attempt: Attempt) -> None:
        """Their time is over."""
        asked = {voter.peer_id for voter in attempt.electorate.voters} - {self._desk.me.peer_id}
        heard = {voter.peer_id for voter in attempt.agreeable} | attempt.refused
        self._waited_in_vain(asked - heard)
        self.unanswered = bool(asked) and not asked & heard

    def after_promises(self, attempt: Attempt, promised: AbstractSet[str]) -> None:
        """All have answered, or the time is over."""
        me = self._desk.me.peer_id
        silent = attempt.expected - promised - {me}  # we wait for our own pass
        self._waited_in_vain(silent)
        self.waited_for(silent)
        asked, heard = attempt.invited - {me}, promised | attempt.refused
        self.unanswered = bool(asked) and not asked & heard

    def _waited_in_vain(self, silent: AbstractSet[str]) -> None:
        if silent:
            self._desk.out.append(Unanswered(tuple(sorted(silent))))

    def waited_for(self, peers: Iterable[str]) -> None:
        """They let us wait for as long as we wait for anybody."""
        for peer in peers:
            self.of([peer])
            self._mute.offend(peer, Reason.TIMEOUT, self._desk.now)

    def broken_by(self, peer_id: str) -> None:
        """It answers."""
        self._mute.forgive(peer_id)

    @property
    def mute(self) -> frozenset[str]:
        """None, if we leave and the others can decide nothing without us: no work of our own is to
        come, so that the round which they need may need that of the mute."""
        desk = self._desk
        if desk.leaving and leaves_them_stuck(desk.head, desk.me, desk.view, desk.signers):
            return frozenset()
        return self._mute.aside(desk.now)

    def worth_waiting(self, chosen: Electorate, invited: AbstractSet[str]) -> set[str]:
        """Of those invited, all but the mute; all, if the others could not decide."""
        others = set(invited - self.mute)
        without = chosen.can_do_with(others, self._desk.me, self._desk.view)
        return others if without else set(invited)

    def counted_on(self, leases: Mapping[str, Lease]) -> dict[str, Lease]:
        """Those of `leases` whose owners will answer, as far as we know."""
        mute = self.mute
        if not mute and not self._unheard:
            return dict(leases)
        return {
            peer_id: lease
            for peer_id, lease in leases.items()
            if self._unheard.get(peer_id) != lease.serial and peer_id not in mute
        }
