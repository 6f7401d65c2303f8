"""Within short bounds the protocol is sound; each broken rule is found, by its shortest story."""

from functools import cache

import pytest

from .bounds import SHORT, Bounds
from .mutants import MUTANTS, Mutant
from .search import Search, Verdict

_QUICK = [m for m in MUTANTS if not m.bounds.crashes + m.bounds.leaves + m.bounds.branches]


@cache
def verdict_on(mutant: Mutant) -> Verdict:
    return Search(mutant.bounds, mutant.rules).run()


@pytest.mark.parametrize("bounds", SHORT, ids=lambda bounds: bounds.name)
def test_every_state_within_short_bounds_is_sound(bounds: Bounds) -> None:
    verdict = Search(bounds).run()
    assert verdict.trouble is None, "\n" + verdict.story()
    assert verdict.states >= bounds.states, "a model that does less proves less"


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.rules.__name__)
def test_a_broken_rule_is_found(mutant: Mutant) -> None:
    verdict = verdict_on(mutant)
    assert verdict.trouble == mutant.trouble
    assert len(verdict.way) == mutant.way, "\n" + verdict.story()


@pytest.mark.parametrize("mutant", _QUICK, ids=lambda mutant: mutant.rules.__name__)
def test_what_is_forgotten_changes_no_verdict(mutant: Mutant) -> None:
    """Find the same failures in as many moves, with and without tidying."""
    everything = Search(mutant.bounds, mutant.rules, forgets=False).run()
    assert (everything.trouble, len(everything.way)) == (mutant.trouble, mutant.way)
    assert everything.states >= verdict_on(mutant).states
