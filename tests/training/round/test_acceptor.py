"""An acceptor promises upwards, accepts only what it promised, and keeps its slots apart."""

import pytest

from atom.swarm.chain.commit import Ballot, Contribution, Value, Voter
from atom.swarm.chain.messages import Accepted
from atom.training.round.electorate import ORDINARY
from atom.training.round.round_state import Acceptor, Slot

A, B = Voter("a", b"a" * 16), Voter("b", b"b" * 16)


def ballot(attempt: int, voter: Voter = A) -> Ballot:
    return Ballot(attempt, voter.peer_id, voter.incarnation)


def value(name: str) -> Value:
    parts = (Contribution("a", b"a" * 16, 8, 8.0),)
    digest = name.encode().ljust(32)
    return Value(b"p" * 32, 1, ballot(1), digest, 1.0, b"", parts, (A,))


def test_promises_only_grow() -> None:
    slot = Slot()
    assert slot.promise(ballot(2))
    assert not slot.promise(ballot(1))
    assert not slot.promise(ballot(2)), "a duplicate is no new promise"
    assert slot.promise(ballot(2, B)), "the same attempt of a higher coordinator"
    assert slot.promised == ballot(2, B)


def test_what_was_promised_is_accepted_and_survives_higher_promises() -> None:
    slot = Slot()
    slot.promise(ballot(2))
    for stranger in (ballot(1), ballot(3)):
        with pytest.raises(AssertionError):
            slot.accept(stranger, value("y"))
    slot.accept(ballot(2), value("x"))
    slot.promise(ballot(5, B))
    assert slot.accepted == Accepted(ballot(2), value("x"))
    assert not slot.may_accept(ballot(2))


def test_a_branch_has_a_slot_of_its_own() -> None:
    slots = Acceptor()
    assert slots.highest_promised is None
    slots.slot((A,)).promise(ballot(3))
    slots.slot((A,)).accept(ballot(3), value("branch"))
    assert slots.ordinary.accepted is None
    assert slots.ordinary.promise(ballot(1)), "its promises bind the branch alone"
    assert (slots.survivors_of(ballot(3)), slots.survivors_of(ballot(1))) == ((A,), ORDINARY)
    assert slots.highest_promised == ballot(3), "a new attempt has to surpass every slot"
    slots.slot((A,)).promise(ballot(4, B))
    for outdone_or_unknown in (ballot(3), ballot(9)):
        assert slots.survivors_of(outdone_or_unknown) is None, "least of all the ordinary one"
