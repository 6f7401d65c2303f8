"""What a peer says of its ways to others comes from handshakes and rings, smoothed and bounded."""

import math

import pytest

from atom.swarm.records.lease import LONGEST_ROUND_TRIP_S
from atom.swarm.transport.link_book import (
    KEPT,
    LEAST_BYTES,
    RATE_KEPT_S,
    LinkBook,
)
from tests.manual_clock import ManualClock

MANY = 100 * LEAST_BYTES


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def book(clock: ManualClock) -> LinkBook:
    return LinkBook(clock.now)


def rate(book: LinkBook, peer_id: str = "p") -> float:
    book.met(peer_id, 0.01)
    return book.links(10)[peer_id].bytes_per_s


def test_a_faster_round_trip_counts_at_once_a_slower_one_little_by_little(book: LinkBook) -> None:
    for sample, expected in ((0.1, 0.1), (0.05, 0.05), (0.25, 0.11), (0.02, 0.02)):
        book.met("p", sample)
        assert book.links(10)["p"].round_trip_s == pytest.approx(expected)
    book.met("p", -1.0)
    assert book.links(10)["p"].round_trip_s == 0.0
    book.met("far", 1e9)
    assert book.links(10)["far"].round_trip_s == LONGEST_ROUND_TRIP_S


def test_a_member_busy_sending_rates_its_link(book: LinkBook) -> None:
    book.carried("p", MANY, sending_s=3.0, seconds=10.0)
    assert math.isinf(rate(book)), "it waited for others"
    book.carried("p", MANY, sending_s=9.0, seconds=10.0)
    assert rate(book) == MANY / 10
    book.carried("p", MANY, sending_s=19.0, seconds=20.0)
    assert rate(book) == pytest.approx(MANY / 10 * (1 - 0.3 * 0.5))
    book.carried("p", LEAST_BYTES - 1, sending_s=9.0, seconds=10.0)
    book.carried("p", MANY, sending_s=1.0, seconds=40.0)
    assert rate(book) == pytest.approx(MANY / 10 * (1 - 0.3 * 0.5)), "neither says anything"


def test_a_ring_that_goes_faster_shows_that_the_link_does(book: LinkBook) -> None:
    book.carried("p", MANY, sending_s=9.0, seconds=10.0)
    book.carried("p", MANY, sending_s=0.1, seconds=1.0)
    assert rate(book) > MANY / 10


def test_a_slow_link_is_looked_at_again_one_day(book: LinkBook, clock: ManualClock) -> None:
    book.carried("p", MANY, sending_s=9.0, seconds=10.0)
    clock.advance(RATE_KEPT_S + 1)
    assert math.isinf(rate(book))
    book.carried("p", MANY, sending_s=2.0, seconds=2.5)
    assert rate(book) == MANY / 2.5, "the old figure does not weigh any more"


def test_it_remembers_few_and_tells_of_fewer(book: LinkBook) -> None:
    for number in range(KEPT + 10):
        book.met(f"{number}", 0.01)
    assert list(book.links(KEPT + 10)) == [f"{n}" for n in range(10, KEPT + 10)]
    book.met("10", 0.01)
    assert list(book.links(2)) == [f"{KEPT + 9}", "10"]
    book.carried("silent", MANY, 9.0, 10.0)
    assert "silent" not in book.links(KEPT), "a rate alone is no link yet"
