"""What exchanges tell of lines, bounded, and how slow the next may be."""

import math
from typing import Any

import pytest

from atom.swarm.exchange.channels import Channels
from atom.swarm.exchange.reduction import Terms
from atom.swarm.exchange.speeds import (
    FRACTION,
    KEPT,
    LEAST_BYTES,
    RATE_KEPT_S,
    REMEMBERED,
    SpeedBook,
)
from atom.swarm.records.lease import LONGEST_ROUND_TRIP_S
from atom.swarm.stream.frames import SLOWEST_BYTES_PER_S, Channel
from tests.manual_clock import ManualClock

ELEMENTS, MANY = 25 * LEAST_BYTES, 100 * LEAST_BYTES
"""Four bytes each: two members of a ring send as many as the average has."""


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def book(clock: ManualClock) -> SpeedBook:
    return SpeedBook(clock.now)


def ring(
    book: SpeedBook,
    seconds: float,
    sending_s: float = 0.0,
    elements: int = ELEMENTS,
    peer_id: str = "p",
    round_trip_s: float = 0.01,
) -> None:
    """Of two."""
    nowhere: Any = None
    right = Channel(nowhere)
    right.peer_id, right.sending_s, right.round_trip_s = peer_id, sending_s, round_trip_s
    book.finished(Terms(("us", peer_id), 0, b"", 1.0), Channels((), (right,)), elements, seconds)


def rate(book: SpeedBook) -> float:
    return book.links(1)["p"].bytes_per_s


def test_a_member_busy_sending_rates_its_line(book: SpeedBook, clock: ManualClock) -> None:
    ring(book, 10.0, sending_s=3.0)
    assert math.isinf(rate(book)), "it waited for others"
    for seconds, sending_s in ((10.0, 9.0), (20.0, 19.0), (5.0, 0.1)):
        ring(book, seconds, sending_s)
        assert rate(book) == MANY / seconds, "it held up, or shows that the line is faster"
    ring(book, 10.0, 9.0, elements=LEAST_BYTES // 4 - 16)
    ring(book, 40.0, sending_s=1.0)
    assert rate(book) == MANY / 5, "neither says anything"
    clock.advance(RATE_KEPT_S + 1)
    assert math.isinf(rate(book)), "it is looked at again one day"
    ring(book, 2.5, sending_s=2.0)
    assert rate(book) == MANY / 2.5


def test_it_remembers_few_and_tells_of_fewer(book: SpeedBook) -> None:
    for number in range(KEPT + 10):
        ring(book, 1.0, peer_id=f"{number}")
    assert list(book.links(KEPT + 10)) == [f"{n}" for n in range(10, KEPT + 10)]
    ring(book, 1.0, peer_id="10", round_trip_s=1e9)
    assert list(book.links(2)) == [f"{KEPT + 9}", "10"]
    assert book.links(1)["10"].round_trip_s == LONGEST_ROUND_TRIP_S


def test_an_exchange_is_measured_against_the_best_of_the_last(book: SpeedBook) -> None:
    assert book.pace().bytes_per_s == SLOWEST_BYTES_PER_S
    ring(book, 1.0)
    ring(book, 4.0)
    assert book.pace().bytes_per_s == MANY / FRACTION
    for _ in range(REMEMBERED):
        ring(book, 4.0)
    assert book.pace().bytes_per_s == MANY / 4 / FRACTION


def test_no_member_slows_exchanges_down_step_by_step(book: SpeedBook) -> None:
    """Each just quick enough: after as many as are remembered, no slower than that."""
    ring(book, 1.0)
    for _ in range(REMEMBERED - 1):
        ring(book, MANY / book.pace().bytes_per_s)
    assert book.pace().bytes_per_s == MANY / FRACTION


def test_what_was_too_slow_for_all_is_quick_enough_in_the_end(book: SpeedBook) -> None:
    ring(book, 1.0)
    for times in range(1, 6):
        book.too_slow()
        assert book.pace().bytes_per_s == MANY / FRACTION / 2**times
    for _ in range(100):
        book.too_slow()
    assert book.pace().bytes_per_s == SLOWEST_BYTES_PER_S
    ring(book, 1.0)
    assert book.pace().bytes_per_s == MANY / FRACTION


def test_the_line_rises_with_what_is_done(book: SpeedBook) -> None:
    pace = book.pace()
    assert pace.due_s(0) == pace.slack_s
    assert pace.due_s(int(SLOWEST_BYTES_PER_S)) == pace.slack_s + 1.0
