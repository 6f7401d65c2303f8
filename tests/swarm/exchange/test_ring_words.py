"""Which word on a broken ring counts: the first, or that of a neighbour that saw it closer."""

import torch

from atom.base.reasons import Reason
from atom.swarm.exchange.failure import RingBroken
from atom.swarm.exchange.geometry import RingPlan
from atom.swarm.exchange.reduction import Reduction
from atom.swarm.exchange.terms import Arenas, RingTerms

MEMBERS = ("us", "right", "left")


def broken(suspect: str, told_by: str = "") -> RingBroken:
    failure = RingBroken(suspect, Reason.TIMEOUT)
    failure.told_by = told_by
    return failure


def last_word(*failures: RingBroken) -> RingBroken:
    reduction = Reduction(
        RingTerms(MEMBERS, 0, b"t" * 32, 1.0),
        Arenas(None, torch.zeros(256)),
        RingPlan.usual(256, len(MEMBERS)),
        connections=1,
    )
    for failure in failures:
        reduction.fail(failure)
    assert isinstance(reduction.failure, RingBroken)
    return reduction.failure


def test_a_neighbour_that_saw_it_closer_is_believed() -> None:
    ours, closer = broken("left"), broken("right", told_by="left")
    assert last_word(ours, closer) is closer
    assert last_word(ours, broken("us", told_by="left"), closer).suspect == "us", "the first one"


def test_an_echo_of_what_we_saw_is_no_news() -> None:
    """Else both would refer to each other, and one of them would be taken for the culprit."""
    ours = broken("left")
    assert last_word(ours, broken("left", told_by="right")) is ours
