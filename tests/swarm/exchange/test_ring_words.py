"""Which word on a broken ring counts: the first, or that of a neighbour that saw it closer."""

import torch

from atom.base.reasons import Reason
from atom.swarm.exchange.plans import RingPlan
from atom.swarm.exchange.reduction import Arenas, ExchangeBroken, Reduction, Terms

MEMBERS = ("us", "right", "left")


def broken(suspect: str, told: bool = False) -> ExchangeBroken:
    return ExchangeBroken(suspect, Reason.TIMEOUT, told=told)


def last_word(*failures: ExchangeBroken) -> ExchangeBroken:
    reduction = Reduction(
        Terms(MEMBERS, 0, b"t" * 32, 1.0),
        Arenas(None, torch.zeros(256)),
        RingPlan.usual(256, len(MEMBERS)),
    )
    for failure in failures:
        reduction.fail(failure)
    assert isinstance(reduction.failure, ExchangeBroken)
    return reduction.failure


def test_a_neighbour_that_saw_it_closer_is_believed() -> None:
    ours, closer = broken("left"), broken("right", told=True)
    assert last_word(ours, closer) is closer
    assert last_word(ours, broken("us", told=True), closer).suspect == "us", "the first one"


def test_an_echo_of_what_we_saw_is_no_news() -> None:
    """Else both would refer to each other, and one of them would be taken for the culprit."""
    ours = broken("left")
    assert last_word(ours, broken("left", told=True)) is ours
