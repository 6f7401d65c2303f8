"""What is known about reaching others, in which order it is tried, and how much of it."""

import pytest

from atom.swarm.transport import contacts
from atom.swarm.transport.contacts import FAILED_S, Contact, ContactBook, Way, WayKind
from tests.manual_clock import ManualClock

CALL = Way(WayKind.CALLED)


def address(name: str) -> Way:
    return Way(WayKind.DIALLED, name)


def relay(name: str) -> Way:
    return Way(WayKind.RELAYED, name)


def test_the_contact_heard_of_longest_ago_is_forgotten_first(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(contacts, "MOST_KNOWN", 3)
    book = ContactBook()
    for name in "abc":
        book.set(name, Contact(("host:1", "host:2")))
    book.worked("b", address("host:2"))
    book.set("a", Contact(("host:1",)))
    book.set("d", Contact(("host:1",)))
    assert [name for name in "abcd" if book.knows(name)] == ["a", "c", "d"]
    book.failed("b", address("host:1"))
    book.worked("b", address("host:2"))
    book.set("b", Contact(("host:1", "host:2")))
    assert book.ways("b")[0] == address("host:1"), "nothing is left of what was known"


def test_a_peer_is_dialled_then_called_then_looked_for_at_its_relays() -> None:
    book = ContactBook()
    book.set("a", Contact(("host:1",), relays=("r",)))
    assert book.ways("a") == [address("host:1"), CALL, relay("r")]
    book.set("a", Contact(("host:1",), dials_out=True, relays=("r",)))
    assert book.ways("a") == [CALL, relay("r"), address("host:1")]
    book.worked("a", address("host:1"))
    assert book.ways("a")[0] == address("host:1"), "it may sit next door"


def test_ways_that_failed_are_tried_last_for_a_while() -> None:
    clock = ManualClock()
    book = ContactBook(clock.now)
    book.set("a", Contact(("host:1",), relays=("r", "s")))
    book.failed("a", address("host:1"))
    clock.advance(1.0)
    book.failed("a", relay("r"))
    assert book.ways("a") == [CALL, relay("s"), address("host:1"), relay("r")]
    clock.advance(FAILED_S)
    assert book.ways("a") == [address("host:1"), CALL, relay("r"), relay("s")]
    book.failed("a", address("host:1"))
    book.set("a", Contact(("host:2",), relays=("r",)))
    assert book.ways("a")[0] == address("host:2"), "new addresses deserve a try"


def test_a_connection_through_another_peer_that_is_doubted_is_not_tried_first_again() -> None:
    clock = ManualClock()
    book = ContactBook(clock.now)
    book.set("a", Contact(("host:1",), relays=("r", "s")))
    book.failed("a", address("host:1"))
    book.failed("a", CALL)
    book.worked("a", relay("r"))
    clock.advance(1.0)
    book.doubt("a")
    assert book.ways("a") == [relay("s"), address("host:1"), CALL, relay("r")]


def test_an_address_is_not_doubted() -> None:
    book = ContactBook()
    book.set("a", Contact(("host:1", "host:2")))
    book.worked("a", address("host:2"))
    book.doubt("a")
    assert book.ways("a")[0] == address("host:2")
