"""Real machines keep every property in every order of events within short bounds; each fault that
is planted in them is found.
"""

import pytest

from .bounds import SHORT, Bounds
from .fair import decides
from .mutants import ALL_MUST_VOTE, MUTANTS, Mutant, planted
from .search import search

pytestmark = pytest.mark.timeout(900)  # seconds of a free core; a busy one takes its time


@pytest.mark.parametrize("bounds", SHORT, ids=lambda bounds: bounds.name)
def test_every_order_of_events_within_short_bounds_is_sound(bounds: Bounds) -> None:
    verdict = search(bounds)
    assert verdict.trouble is None, "\n" + verdict.story()
    assert verdict.complete
    assert verdict.states >= bounds.states, "a search that does less proves less"


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_a_planted_fault_is_found(mutant: Mutant) -> None:
    verdict = mutant.search()
    assert verdict.trouble == mutant.trouble, "\n" + verdict.story()


def test_obsolete_letters_change_no_verdict() -> None:
    bounds = Bounds("", 3, 2, sees=("B", "A", ""))
    short, full = search(bounds), search(bounds, tidies=False)
    assert (short.trouble, short.complete) == (full.trouble, full.complete) == (None, True)
    assert short.states < full.states, "they are forgotten"


def test_a_round_follows_every_crash_and_loss() -> None:
    verdict = search(Bounds("", 3, 1, crashes=1, losses=1, depth=5), properties=[decides])
    assert verdict.trouble is None, "\n" + verdict.story()


def test_a_swarm_that_needs_all_its_voters_is_found_to_be_stuck() -> None:
    with planted(ALL_MUST_VOTE):
        verdict = search(Bounds("", 3, 1, crashes=1, depth=2), properties=[decides])
    assert verdict.trouble == "stuck: a quorum lives and decides nothing"
