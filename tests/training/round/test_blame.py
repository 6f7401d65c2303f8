"""Who spoilt a ring: rings of the real plan with a liar in them, and what it can spoil at most."""

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from simulated_stall import stalled

from atom.base.reasons import Reason
from atom.swarm.chain.commit import Ballot
from atom.swarm.chain.messages import Suspect
from atom.swarm.chain.ring_standing import RingStanding
from atom.swarm.exchange.geometry import ALIGNMENT, RingPlan
from atom.training.round.blame import Accusation, accusations, is_eyewitness
from atom.training.round.suspicions import PATIENT_WITH, Suspicions

NAMES = "ABCDEFG"
BALLOT = Ballot(1, "A", bytes(16))
HEAD, NEXT = b"h" * 32, b"n" * 32
SHORT = st.integers(0, 40)


def says(
    about: str = "",
    reason: Reason = Reason.TIMEOUT,
    told_by: str = "",
    standing: RingStanding | None = None,
) -> Suspect:
    return Suspect(HEAD, BALLOT, about, reason, told_by, standing)


def too_slow(standing: RingStanding | None) -> Suspect:
    return says(reason=Reason.TOO_SLOW, standing=standing)


PLANS = st.builds(
    RingPlan,
    elements=st.integers(8, 60).map(lambda n: n * ALIGNMENT),
    members=st.integers(2, 6),
    bucket_elements=st.integers(8, 30).map(lambda n: n * ALIGNMENT),
    chunk_elements=st.integers(1, 3).map(lambda n: n * ALIGNMENT),
)
LIES = st.one_of(
    st.none(),
    st.builds(
        says,
        st.sampled_from(["", *NAMES, "nobody"]),
        st.sampled_from([Reason.TOO_SLOW, Reason.TIMEOUT, Reason.SUPERSEDED]),
        st.sampled_from(["", *NAMES, "nobody"]),
        st.one_of(st.none(), st.builds(RingStanding, SHORT, SHORT, SHORT, SHORT, st.booleans())),
    ),
)


@given(PLANS, st.integers(0, 5), SHORT, LIES)
@settings(max_examples=400, deadline=None)
def test_a_ring_that_is_held_up_names_who_does_it(
    plan: RingPlan, liar: int, sends: int, lie: Suspect | None
) -> None:
    liar %= plan.members
    sends %= max(sum(1 for _ in plan.sends(liar)), 1)
    members = NAMES[: plan.members]
    said = {
        name: too_slow(place)
        for name, place in zip(members, stalled(plan, liar, sends), strict=True)
    }
    del said[members[liar]]
    if lie is not None:
        said[members[liar]] = lie
    found = accusations(members, said)
    assert found
    assert all(members[liar] in pair for pair in found), found


@given(PLANS, st.integers(0, 5), SHORT)
@settings(max_examples=100, deadline=None)
def test_who_is_only_slow_says_so_itself(plan: RingPlan, slow: int, sends: int) -> None:
    slow %= plan.members
    sends %= max(sum(1 for _ in plan.sends(slow)), 1)
    members = NAMES[: plan.members]
    places = stalled(plan, slow, sends)
    said = {name: too_slow(place) for name, place in zip(members, places, strict=True)}
    assert accusations(members, said) == {(members[slow], members[slow])}


def test_who_cannot_send_names_its_right_neighbour() -> None:
    plan = RingPlan(12 * ALIGNMENT, 3, 12 * ALIGNMENT, ALIGNMENT)
    places = stalled(plan, 1, 2)
    blocked = RingStanding(*places[1].lacks, *places[1].unsent, True)
    said = dict(zip("ABC", map(too_slow, [places[0], blocked, places[2]]), strict=True))
    assert accusations("ABC", said) == {("B", "C")}


@pytest.mark.parametrize(
    ("said", "found"),
    [
        ({"A": says("B")}, {("A", "B")}),
        ({"A": says("B"), "C": says("B")}, {("A", "B"), ("C", "B")}),
        ({"A": says("B"), "D": says(told_by="A")}, {("A", "B")}),
        ({"A": says("C")}, {("A", "A")}),  # it cannot see C
        ({"A": says("nobody")}, {("A", "A")}),
        ({"A": says("")}, {("A", "A")}),
        ({"A": says("A")}, {("A", "A")}),
        ({"A": says("C", told_by="B")}, {("A", "B")}),  # B has not said it to us
        ({"A": says("C", told_by="D"), "D": says("C", told_by="C")}, {("D", "C")}),
        ({"A": says(told_by="B"), "B": says(told_by="A")}, {("B", "A")}),  # each other's words
        ({"A": says(told_by="C")}, {("A", "A")}),  # C is not beside it
        ({"A": too_slow(None)}, {("A", "A")}),  # and how far it got, it does not say
    ],
)
def test_words(said: dict[str, Suspect], found: set[Accusation]) -> None:
    assert accusations("ABCD", said) == found


@pytest.mark.parametrize(
    ("said", "found"),
    [
        ({"A": says("C")}, {("A", "C")}),  # it sees everybody
        ({"A": says("C"), "B": says("C", told_by="A")}, {("A", "C")}),
        ({"A": says("C", Reason.TOO_SLOW), "B": says("C", Reason.TOO_SLOW)},
         {("A", "C"), ("B", "C")}),
        ({"A": says("B", told_by="C")}, {("A", "C")}),  # C has not said it to us
        ({"A": says("nobody")}, {("A", "A")}),
    ],
)  # fmt: skip
def test_words_of_a_one_shot_exchange(said: dict[str, Suspect], found: set[Accusation]) -> None:
    assert accusations("ABCD", said, one_shot=True) == found


@pytest.mark.parametrize(
    ("said", "found"),
    [
        ({"B": says("L"), "A": says("L", told_by="B")}, {("B", "L")}),  # its carrier sees it
        ({"A": says("L")}, {("A", "A")}),  # nobody else does
        ({"L": says("B")}, {("L", "B")}),
        ({"L": says("C")}, {("L", "L")}),
        ({"L": says("")}, {("L", "L")}),
        ({"B": says("L"), "L": says("B")}, {("B", "L"), ("L", "B")}),
        ({"L": says("A", told_by="B"), "B": says("A")}, {("B", "A")}),
        ({"L": says("A", told_by="B")}, {("L", "B")}),  # B has not said it to us
        ({"A": says("C", told_by="L")}, {("A", "A")}),  # they do not talk
        ({"L": too_slow(None)}, {("L", "L")}),  # whom it waits for, it knows
        ({"L": too_slow(RingStanding(0, 0, 0, 0, False))}, {("L", "L")}),
        ({"A": too_slow(None), "B": says("L", Reason.TOO_SLOW)}, {("B", "L")}),
    ],
)  # fmt: skip
def test_words_of_a_leaf_and_its_carrier(said: dict[str, Suspect], found: set[Accusation]) -> None:
    assert accusations("ABCD", said, carried={"L": "B"}) == found


def test_who_saw_it_is_not_waited_for() -> None:
    assert is_eyewitness(says("B"))
    assert is_eyewitness(says("B", Reason.TOO_SLOW))
    assert not is_eyewitness(says("B", told_by="A"))
    assert not is_eyewitness(too_slow(None))


# ---- whom to leave out


def test_one_broken_ring_leaves_out_the_accused_and_a_second_finds_the_liar() -> None:
    memory = Suspicions("A")
    memory.add(HEAD, frozenset({("C", "D")}), 0.0)
    assert memory.left_out(HEAD, 0.0) == {"D"}
    memory.add(HEAD, frozenset({("C", "B")}), 1.0)
    assert memory.left_out(HEAD, 1.0) == {"C"}, "C alone explains both; D and B are forgiven"


def test_a_liar_is_found_over_several_rounds() -> None:
    memory = Suspicions("A")
    memory.add(HEAD, frozenset({("C", "D")}), 0.0)
    memory.add(NEXT, frozenset({("C", "B")}), 300.0)
    assert memory.left_out(NEXT, 300.0) == {"C"}


def test_one_accident_is_soon_forgiven_and_habits_are_not() -> None:
    memory = Suspicions("A")
    memory.add(HEAD, frozenset({("C", "D")}), 0.0)
    assert memory.left_out(NEXT, 9.0) == {"D"}
    assert memory.left_out(NEXT, 11.0) == set()
    for number, time in enumerate((20.0, 30.0, 40.0)):
        memory.add(bytes([number]), frozenset({("C", "D")}), time)
    assert memory.left_out(NEXT, 100.0) == {"D"}
    assert memory.left_out(NEXT, 700.0) == set()


def test_who_spoils_several_rings_of_one_round_has_done_it_once() -> None:
    """A fault seen from several sides, or before it was known whose it is."""
    memory = Suspicions("A")
    for time, other in ((0.0, "B"), (1.0, "C"), (2.0, "E")):
        memory.add(HEAD, frozenset({(other, "D")}), time)
    assert memory.left_out(NEXT, 11.0) == {"D"}
    assert memory.left_out(NEXT, 13.0) == set()


def test_nobody_leaves_itself_out() -> None:
    memory = Suspicions("A")
    memory.add(HEAD, frozenset({("C", "A")}), 0.0)
    assert memory.left_out(HEAD, 0.0) == {"C"}
    memory.add(HEAD, frozenset({("A", "A")}), 0.0)
    assert memory.own_fault(HEAD)
    assert memory.left_out(HEAD, 0.0) == {"C"}


@given(st.integers(2, 9), st.integers(0, 8), st.integers(0, 2**32))
@settings(max_examples=300, deadline=None)
def test_bad_members_break_a_bounded_number_of_rings(peers: int, bad: int, seed: int) -> None:
    """They do what they like, as long as each accusation has one of them at an end."""
    dice = random.Random(seed)
    names = [f"peer {number}" for number in range(peers)]
    liars = set(dice.sample(names[1:], min(bad, peers - 1)))
    memory, broken = Suspicions(names[0]), 0
    while True:
        ring = [name for name in names if name not in memory.left_out(HEAD, float(broken))]
        pairs = [(a, b) for a in ring for b in ring if {a, b} & liars]
        if not pairs:
            break
        found = frozenset(dice.sample(pairs, min(dice.randrange(1, 3), len(pairs))))
        memory.add(HEAD, found, float(broken))
        broken += 1
    assert broken <= (0 if not liars else len(liars) + PATIENT_WITH)
    if len(liars) == 1:
        assert broken <= PATIENT_WITH
