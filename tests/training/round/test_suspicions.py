"""Whom a coordinator leaves out, by the exchanges that broke."""

import random

from hypothesis import given, settings
from hypothesis import strategies as st

from atom.training.round.suspicions import PATIENT_WITH, REMEMBERED_S, Suspicions

HEAD, NEXT = b"h" * 32, b"n" * 32


def test_suspicions_of_one_break_are_of_the_accused_and_a_second_finds_the_culprit() -> None:
    memory = Suspicions("A")
    memory.add(HEAD, frozenset({("C", "D")}), 0.0)
    assert memory.left_out(HEAD, 0.0) == {"D"}
    memory.add(HEAD, frozenset({("C", "B")}), 1.0)
    assert memory.left_out(HEAD, 1.0) == {"C"}, "C alone explains both; D and B are forgiven"


def test_suspicions_find_a_culprit_over_several_rounds() -> None:
    memory = Suspicions("A")
    memory.add(HEAD, frozenset({("C", "D")}), 0.0)
    memory.add(NEXT, frozenset({("C", "B")}), 300.0)
    assert memory.left_out(NEXT, 300.0) == {"C"}


def test_suspicions_of_one_accident_are_soon_forgiven_and_of_habits_not() -> None:
    memory = Suspicions("A")
    memory.add(HEAD, frozenset({("C", "D")}), 0.0)
    assert memory.left_out(NEXT, 9.0) == {"D"}
    assert memory.left_out(NEXT, 11.0) == set()
    for number, time in enumerate((20.0, 30.0, 40.0)):
        memory.add(bytes([number]), frozenset({("C", "D")}), time)
    assert memory.left_out(NEXT, 100.0) == {"D"}
    assert memory.left_out(NEXT, 700.0) == set()


def test_suspicions_of_several_breaks_of_one_round_count_once() -> None:
    """A fault seen from several sides, or before it was known whose it is."""
    memory = Suspicions("A")
    for time, other in ((0.0, "B"), (1.0, "C"), (2.0, "E")):
        memory.add(HEAD, frozenset({(other, "D")}), time)
    assert memory.left_out(NEXT, 11.0) == {"D"}
    assert memory.left_out(NEXT, 13.0) == set()


def test_suspicions_never_leave_out_oneself() -> None:
    memory = Suspicions("A")
    memory.add(HEAD, frozenset({("C", "A")}), 0.0)
    assert memory.left_out(HEAD, 0.0) == {"C"}
    memory.add(HEAD, frozenset({("A", "A")}), 0.0)
    assert memory.own_fault(HEAD)
    assert memory.left_out(HEAD, 0.0) == {"C"}


@given(st.integers(2, 9), st.integers(0, 8), st.integers(0, 2**32))
@settings(max_examples=300, deadline=None)
def test_suspicions_bound_what_bad_members_can_break(peers: int, bad: int, seed: int) -> None:
    """They do what they like, as long as each accusation has one of them at an end."""
    dice = random.Random(seed)
    names = [f"peer {number}" for number in range(peers)]
    bad_ones = set(dice.sample(names[1:], min(bad, peers - 1)))
    memory, broken = Suspicions(names[0]), 0
    while True:
        ring = [name for name in names if name not in memory.left_out(HEAD, float(broken))]
        pairs = [(a, b) for a in ring for b in ring if {a, b} & bad_ones]
        if not pairs:
            break
        found = frozenset(dice.sample(pairs, min(dice.randrange(1, 3), len(pairs))))
        memory.add(HEAD, found, float(broken))
        broken += 1
    assert broken <= (0 if not bad_ones else len(bad_ones) + PATIENT_WITH)
    if len(bad_ones) == 1:
        assert broken <= PATIENT_WITH


def test_suspicions_of_a_break_that_nobody_explains_name_nobody() -> None:
    memory = Suspicions("A")
    memory.add(HEAD, frozenset(), 0.0)
    assert memory.left_out(HEAD, 0.0) == set()
    assert memory.unexplained(1.0)
    assert not memory.unexplained(REMEMBERED_S)
