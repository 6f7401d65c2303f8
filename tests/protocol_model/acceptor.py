"""The real acceptor and the real choice of what to finish, asked with the model's tuples.

Both only compare ballots and hand values through, so tuples and numbers will do.
"""

from functools import cache

from atom.swarm.chain.messages import Accepted as RealAccepted
from atom.swarm.chain.messages import Promise
from atom.training.round.attempt import value_to_finish
from atom.training.round.round_state import Acceptor
from atom.training.round.round_state import Slot as RealSlot

from . import cast
from .cast import BallotKey
from .state import Accepted, Promised, Slot, Survivors

Slotted = tuple[Slot, ...]


@cache
def promise(slots: Slotted, which: Survivors, ballot: BallotKey) -> Slotted | None:
    real = _thaw(slots)
    return _frozen(real) if real.slot(which).promise(ballot) else None


@cache
def accept(slots: Slotted, which: Survivors, ballot: BallotKey, value: int) -> Slotted | None:
    real = _thaw(slots)
    if real.survivors_of(ballot) != which or not real.slot(which).may_accept(ballot):
        return None
    real.slot(which).accept(ballot, value)
    return _frozen(real)


@cache
def highest_promised(slots: Slotted) -> BallotKey | tuple[()]:
    return _thaw(slots).highest_promised or ()


def accepted_in(slots: Slotted, which: Survivors) -> Accepted:
    return next((slot[2] for slot in slots if slot[0] == which), ())


def _thaw(slots: Slotted) -> Acceptor:
    """The real acceptor; it only compares ballots, so the model's tuples will do."""
    real = Acceptor()
    for which, promised, accepted in slots:
        real.by_survivors[which] = RealSlot(
            promised or None, RealAccepted(*accepted) if accepted else None
        )
    return real


def _frozen(real: Acceptor) -> Slotted:
    return tuple(
        sorted(
            (which, slot.promised or (), (slot.accepted.ballot, slot.accepted.value))
            if slot.accepted
            else (which, slot.promised or (), ())
            for which, slot in real.by_survivors.items()
            if slot.promised or slot.accepted
        )
    )


@cache
def to_finish(promises: tuple[Promised, ...]) -> int | None:
    real = {cast.voter(p.voter): _real_promise(p) for p in promises}
    accepted = value_to_finish(real)
    return None if accepted is None else accepted.value


def _real_promise(promised: Promised) -> Promise:
    before, after = promised.before_branch, promised.accepted
    return Promise(
        parent=b"",
        ballot=(),
        accepted=RealAccepted(*after) if after else None,
        accepted_before_branch=RealAccepted(*before) if before else None,
        sequences=1,
        loss_sum=1.0,
        state_digest=b"",
        leaving=promised.leaving,
    )
