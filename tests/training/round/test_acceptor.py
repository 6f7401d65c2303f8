"""An acceptor promises upwards, accepts only what it promised, and keeps its slots apart."""

import pytest

from atom.swarm.chain.commit import Ballot, Contribution, Value, Voter
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


def test_a_ballot_that_was_never_promised_is_not_accepted_not_even_a_higher_one() -> None:
    slot = Slot()
    slot.promise(ballot(2))
    for stranger in (ballot(1), ballot(3)):
        assert not slot.may_accept(stranger)
        with pytest.raises(AssertionError):
            slot.accept(stranger, value("x"))
    assert slot.accepted is None


def test_what_was_accepted_survives_higher_promises() -> None:
    slot = Slot()
    slot.promise(ballot(1))
    slot.accept(ballot(1), value("x"))
    slot.promise(ballot(5, B))
    assert slot.accepted is not None
    assert (slot.accepted.ballot, slot.accepted.value) == (ballot(1), value("x"))
    assert not slot.may_accept(ballot(1))


def test_a_branch_has_a_slot_of_its_own() -> None:
    slots = Acceptor()
    slots.slot((A,)).promise(ballot(3))
    slots.slot((A,)).accept(ballot(3), value("branch"))
    assert slots.ordinary.accepted is None
    assert slots.ordinary.promise(ballot(1)), "its promises bind the branch alone"
    assert slots.survivors_of(ballot(3)) == (A,)
    assert slots.survivors_of(ballot(1)) == ORDINARY


def test_an_outdone_or_unknown_ballot_belongs_to_no_slot() -> None:
    slots = Acceptor()
    slots.slot((A,)).promise(ballot(3))
    slots.slot((A,)).promise(ballot(4, B))
    assert slots.survivors_of(ballot(3)) is None, "least of all to the ordinary one"
    assert slots.survivors_of(ballot(9)) is None


def test_a_new_attempt_has_to_surpass_every_slot() -> None:
    slots = Acceptor()
    assert slots.highest_promised is None
    slots.ordinary.promise(ballot(2))
    slots.slot((A, B)).promise(ballot(7, B))
    assert slots.highest_promised == ballot(7, B)
