"""Row `order` of the papers: the end of a pass, by hand."""

import pytest

from atom.swap.schedule import Backward, Forward
from benchmarks.papers import order
from benchmarks.papers.order import Visit

CHAIN: list[list[Visit]] = [
    [Forward(0, 0), Forward(0, 1), Backward(0, 0), Backward(0, 1)],
    [Forward(1, 0), Backward(1, 0), Forward(1, 1), Backward(1, 1)],
]
"""Two sub-models, a device each, two micro-batches."""


@pytest.mark.parametrize(
    ("slow", "by_messages", "in_step"),
    [(None, 6, 6), (Forward(0, 1), 6, 7), (Forward(0, 0), 7, 7)],
)
def test_in_step_all_wait_for_the_slowest(
    slow: Visit | None, by_messages: int, in_step: int
) -> None:
    def seconds(visit: Visit) -> float:
        return 1.0 + (visit == slow)

    assert order.by_messages(CHAIN, seconds) == by_messages
    assert order.in_step(CHAIN, seconds) == in_step
    assert order.idle(CHAIN, seconds, 10.0) == pytest.approx(1 - (8 + (slow is not None)) / 20)
