"""What is known about reaching others, in which order it is tried, and how much of it."""

import pytest

from atom.swarm.transport import dialer
from atom.swarm.transport.dialer import CALL, Contact, ContactBook

ONE, TWO = "host:1", "host:2"


def test_the_contact_heard_of_longest_ago_is_forgotten_first(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(dialer, "MOST_KNOWN", 3)
    book = ContactBook()
    for name in "abc":
        book.set(name, Contact((ONE, TWO)))
    book.worked("b", TWO)
    book.set("a", Contact((ONE,)))
    book.set("d", Contact((ONE,)))
    assert [name for name in "abcd" if book.ways(name) != [CALL]] == ["a", "c", "d"]
    book.failed("b", ONE)
    book.worked("b", TWO)
    book.set("b", Contact((ONE, TWO)))
    assert book.ways("b")[0] == ONE, "nothing is left of what was known"


def test_a_peer_is_dialled_and_one_that_says_it_cannot_be_is_called_first() -> None:
    book = ContactBook()
    book.set("a", Contact((ONE, TWO)))
    assert book.ways("a") == [ONE, TWO, CALL]
    book.set("a", Contact((ONE, TWO), dials_out=True))
    assert book.ways("a") == [CALL, ONE, TWO]
    book.worked("a", CALL)
    assert book.ways("a")[0] == CALL
    book.worked("a", TWO)
    assert book.ways("a") == [TWO, CALL, ONE], "it may sit next door"


def test_ways_that_failed_are_tried_last() -> None:
    book, contact = ContactBook(), Contact((ONE, TWO))
    book.set("a", contact)
    book.failed("a", ONE)
    book.failed("a", CALL)
    book.set("a", contact)
    assert book.ways("a") == [TWO, ONE, CALL]
    book.set("a", Contact(("host:3", ONE)))
    assert book.ways("a") == ["host:3", ONE, CALL], "new addresses deserve a try"
