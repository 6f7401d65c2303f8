"""Within short bounds the protocol is sound; each broken rule is found, by its shortest story."""

from functools import cache

import pytest

from .bounds import SHORT, Bounds
from .mutants import MUTANTS, Mutant
from .search import Search, Verdict
from .story import story

_QUICK = [m for m in MUTANTS if not m.bounds.crashes + m.bounds.leaves + m.bounds.branches]


@cache
def verdict_on(mutant: Mutant) -> Verdict:
    return Search(mutant.bounds, mutant.rules).run()


@pytest.mark.parametrize("bounds", SHORT, ids=lambda bounds: bounds.name)
def test_every_state_within_short_bounds_is_sound(bounds: Bounds) -> None:
    verdict = Search(bounds).run()
    assert verdict.trouble is None, "\n" + story(verdict)
    assert verdict.states >= bounds.states, "a model that does less proves less"


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.rules.__name__)
def test_a_broken_rule_is_found(mutant: Mutant) -> None:
    verdict = verdict_on(mutant)
    assert verdict.trouble == mutant.trouble
    assert len(verdict.way) == mutant.way, "\n" + story(verdict)


@pytest.mark.parametrize("mutant", _QUICK, ids=lambda mutant: mutant.rules.__name__)
def test_what_is_forgotten_changes_no_verdict(mutant: Mutant) -> None:
    """The same failures in as many moves, whether states are tidied or not."""
    everything = Search(mutant.bounds, mutant.rules, forgets=False).run()
    assert (everything.trouble, len(everything.way)) == (mutant.trouble, mutant.way)
    assert everything.states >= verdict_on(mutant).states


def test_a_story_can_be_read() -> None:
    mutant = next(m for m in MUTANTS if m.rules.__name__ == "PeersVote")
    assert story(verdict_on(mutant)).splitlines() == [
        "  1. A starts ballot 1A",
        "  2. B promises ballot 1A",
        "  3. A proposes in ballot 1A: the average of A, B",
        "  4. B accepts the value of ballot 1A",
        "  5. A crashes",
        "  6. A restarts from its disk, at round 0",
        "  7. C starts ballot 1C",
        "  8. A' promises ballot 1C",
        "  9. C proposes in ballot 1C: the average of A', C",
        " 10. B accepts the value of ballot 1C",
        "     a quorum accepted one value, then another",
    ]
