"""Every piece lands once, whoever is slow; nobody is asked for more than helps."""

import random
from collections import Counter, deque

from hypothesis import given
from hypothesis import strategies as st

from atom.swarm.state.pieces import FEWEST, MOST, Piece, PieceBook, requests_for


def pieces(count: int) -> list[Piece]:
    return [(0, number) for number in range(count)]


def fill(book: PieceBook, donor: str, now: float) -> list[Piece]:
    taken = []
    while piece := book.take(donor, now):
        taken.append(piece)
    return taken


def test_queues_grow_with_the_link() -> None:
    assert requests_for(None) == requests_for(0.1) == FEWEST
    assert requests_for(2.0) == 4
    assert requests_for(1000.0) == MOST


def test_a_queue_that_limits_the_rate_grows() -> None:
    """At a round trip of half a second, two requests bring four pieces per second."""
    assert requests_for(FEWEST / 0.5) > FEWEST
    assert requests_for(MOST / 1.0) == MOST


def test_the_last_pieces_are_shared_out() -> None:
    book = PieceBook(pieces(100))
    asked = Counter[str]()
    for donor in ("a", "b"):
        asked[donor] += book.take(donor, 0.0) is not None
    for _ in range(40):  # both are as fast as can be
        for donor in ("a", "b"):
            book.landed(donor, 1.0)
            asked[donor] += len(fill(book, donor, 1.0)) - 1
    assert len(fill(book, "a", 1.0)) == 0
    assert asked["a"] <= MOST
    assert book.missing == 20


def test_what_a_lost_donor_was_asked_for_is_wanted_first() -> None:
    book = PieceBook(pieces(5))
    taken = fill(book, "a", 0.0)
    book.drop("a")
    assert fill(book, "b", 0.0) == taken
    book.drop("nobody")


def test_the_slow_ones_pieces_are_taken_over_once() -> None:
    book = PieceBook(pieces(4))
    slow, fast = fill(book, "slow", 0.0), fill(book, "fast", 0.0)
    assert slow + fast == pieces(4)
    book.landed("fast", 0.5)
    book.landed("fast", 0.9)
    assert book.take("fast", 0.9) is None, "too early to say"
    assert fill(book, "fast", 60.0) == [(0, 1), (0, 0)]
    assert fill(book, "late", 90.0) == [], "two donors are enough for any piece"
    assert book.duplicates == 2
    assert book.landed("fast", 60.1)
    assert book.landed("slow", 60.2), "the first of its two is the one still missing"
    assert not book.landed("slow", 60.3)
    assert not book.landed("fast", 60.4)
    assert book.missing == 0


def test_of_equals_none_is_asked_twice() -> None:
    book = PieceBook(pieces(60))
    now, queues = 0.0, {name: deque(fill(book, name, 0.0)) for name in "abc"}
    while book.missing:
        now += 0.1
        for name, queue in queues.items():
            if queue:
                queue.popleft()
                book.landed(name, now)
            queue.extend(fill(book, name, now))
    assert book.duplicates == 0


def test_who_has_given_nothing_yet_may_help_out() -> None:
    book = PieceBook(pieces(1))
    assert book.take("stuck", 0.0) == (0, 0)
    assert book.take("new", 0.0) is None
    assert book.take("new", 5.0) == (0, 0)


@given(st.integers(0, 40), st.integers(1, 5), st.integers(0, 2**32))
def test_everything_lands_whatever_happens(count: int, donors: int, seed: int) -> None:
    """Donors of any speed, that are lost and come back: as long as one of them answers."""
    chance = random.Random(seed)
    names = [f"donor {number}" for number in range(donors)]
    speed = {name: chance.choice([0.01, 0.3, 1.0]) for name in names}
    book, now = PieceBook(pieces(count)), 0.0
    queues: dict[str, deque[Piece]] = {name: deque() for name in names}
    landed: Counter[Piece] = Counter()
    while book.missing:
        now += 0.25
        for name in names:
            queues[name].extend(fill(book, name, now))
            assert len(queues[name]) <= MOST
            if chance.random() < 0.02:
                book.drop(name)
                queues[name].clear()
            elif queues[name] and chance.random() < speed[name]:
                piece = queues[name].popleft()
                landed[piece] += book.landed(name, now)
    assert sorted(landed) == pieces(count)
    assert set(landed.values()) <= {1}
