"""What is known about reaching others, and how much of it."""

from itertools import count

import pytest

from atom.swarm.transport import contacts
from atom.swarm.transport.contacts import FAILED_S, Contact, ContactBook


def test_who_was_heard_of_longest_ago_is_forgotten_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(contacts, "MOST_KNOWN", 3)
    book = ContactBook()
    for name in "abc":
        book.set(name, Contact(("host:1", "host:2")))
    book.worked("b", "host:2")
    book.set("a", Contact(("host:1",)))
    book.set("d", Contact(("host:1",)))
    assert [name for name in "abcd" if book.knows(name)] == ["a", "c", "d"]
    book.failed("b")
    book.worked("b", "host:2")
    book.set("b", Contact(("host:1", "host:2")))
    assert book.addresses("b") == ["host:1", "host:2"], "nothing is left of what was known"
    assert not book.dial_last("b")


def test_addresses_that_failed_are_tried_last_until_they_get_another_chance() -> None:
    book = ContactBook()
    book.set("a", Contact(("host:1",)))
    book.failed("a")
    assert book.dial_last("a")
    book.give_another_chance("a")
    assert not book.dial_last("a")
    book.set("b", Contact(("host:1",), dials_out=True))
    book.give_another_chance("b")
    assert book.dial_last("b"), "it says itself that nobody can dial it"


def test_relays_that_led_nowhere_come_last_the_latest_at_the_end() -> None:
    seconds = count()
    book = ContactBook(lambda: float(next(seconds)))
    book.set("a", Contact(relays=("r", "s", "t")))
    orders = []
    for _ in range(4):
        orders.append("".join(book.relays("a")))
        book.came_there("a", book.relays("a")[0])
        book.give_another_chance("a")
    assert orders == ["rst", "str", "trs", "rst"]
    book.give_another_chance("a")
    book.came_there("a", "")
    book.give_another_chance("a")
    book.led_nowhere("a", "no relay of it")
    assert "".join(book.relays("a")) == "str", "none was tried since"


def test_addresses_that_fail_again_and_again_get_no_chance_after_each_time() -> None:
    """A dial in a hurry gets no further than to what it tries first."""
    now_s = [0.0]
    book = ContactBook(lambda: now_s[0])
    book.set("a", Contact(("host:1",), relays=("r",)))
    tried_last = []
    for _ in range(3):
        book.failed("a")
        book.give_another_chance("a")
        tried_last.append(book.dial_last("a"))
        now_s[0] += 0.4 * FAILED_S
    assert tried_last == [False, True, True]
    book.failed("a")
    book.give_another_chance("a")
    assert not book.dial_last("a"), "a while ago"
