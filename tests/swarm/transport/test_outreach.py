"""A peer finds out whether others can dial it, and keeps lines open if they cannot. Pure but for
the transport, which is scripted."""

from collections.abc import Callable, Iterable

import pytest
from swarm_samples import a_lease

from atom.base.events import EventList
from atom.swarm.records.lease import PeerState, Reached
from atom.swarm.transport.dialer import Contact
from atom.swarm.transport.outreach import (
    AGAIN_S,
    MAX_LINES,
    SETTLE_S,
    WITNESSES,
    Outreach,
    lines_to,
    verdict,
    witness_of,
)
from tests.manual_clock import ManualClock

YES, NO, UNKNOWN = Reached.YES, Reached.NO, Reached.UNKNOWN


@pytest.mark.parametrize(
    ("answers", "found"),
    [([], UNKNOWN), ([YES, NO], NO), ([NO, YES, YES], YES)],
)
def test_more_than_half_have_to_say_yes(answers: list[Reached], found: Reached) -> None:
    assert verdict(answers) is found


@pytest.mark.parametrize("raw", [b"y", b"n", b"", b"x", b"\x00"])
def test_malformed_answers_are_unknown(raw: bytes) -> None:
    assert Reached.of(raw) is {b"y": YES, b"n": NO}.get(raw, UNKNOWN)
    assert Reached.of(Reached.of(raw).to_wire()) is Reached.of(raw)


def test_witnesses_are_asked_in_turn() -> None:
    others = {name: a_lease(name, reached=YES) for name in "bac"}
    assert [witness_of(others, asked) for asked in range(4)] == ["a", "b", "c", "a"]
    hidden = {"a": a_lease("a", reached=NO)}
    assert witness_of({**others, **hidden}, 0) == "b", "perhaps nobody has a line to it"
    assert witness_of(hidden, 1) == "a", "but it may have one to us"


def test_lines_lead_to_a_few_peers_that_can_be_dialled() -> None:
    three = {name: a_lease(name, reached=can) for name, can in zip("abc", Reached, strict=True)}
    assert [three[name].reached for name in "abc"] == [YES, NO, UNKNOWN]
    assert lines_to("me", three) == {"a", "c"}
    many = {f"peer {n}": a_lease(f"peer {n}", reached=YES) for n in range(200)}
    chosen = lines_to("me", many)
    assert len(chosen) == MAX_LINES
    assert chosen == lines_to("me", dict(reversed(many.items())))
    assert chosen != lines_to("you", many)


class ScriptedTransport:
    """Its threads are the caller's."""

    peer_id = "me"

    def __init__(self) -> None:
        self.answers: dict[str, Reached | Exception] = {}
        self.asked: list[str] = []
        self.contacts: dict[str, Contact] = {}
        self.kept: frozenset[str] = frozenset()
        self.threads, self.short_of_threads = self, False

    def set_contact(self, peer_id: str, contact: Contact) -> None:
        self.contacts[peer_id] = contact

    def start(self, name: str, work: Callable[[], None]) -> None:
        if self.short_of_threads:
            raise OSError("no thread")
        work()

    def probe(self, peer_id: str) -> Reached:
        self.asked.append(peer_id)
        answer = self.answers[peer_id]
        if isinstance(answer, Exception):
            raise answer
        return answer

    def keep_lines(self, peer_ids: Iterable[str]) -> None:
        self.kept = frozenset(peer_ids)


class Stage:
    def __init__(self, wish: Reached = UNKNOWN) -> None:
        self.transport, self.clock, self.events = ScriptedTransport(), ManualClock(), EventList()
        self.outreach = Outreach(self.transport, wish, self.clock, self.events)  # type: ignore[arg-type]
        self.leases = {
            name: a_lease(name, reached=YES, addresses=(f"{name}:1",)) for name in "abcd"
        }
        self.leases["me"] = a_lease("me")

    def read(self, seconds: float) -> None:
        for _ in range(int(seconds)):
            self.outreach.know(self.leases)
            self.clock.advance(1.0)


def test_questions_become_rare_and_the_verdict_follows_the_latest_answers() -> None:
    stage = Stage()
    stage.transport.answers = dict.fromkeys("abcd", YES)
    stage.read(WITNESSES * SETTLE_S)
    assert stage.transport.asked == ["a", "b", "c"]
    assert stage.outreach.reached is YES
    assert stage.transport.kept == frozenset()
    stage.transport.answers = dict.fromkeys("abcd", NO)
    stage.read(AGAIN_S - SETTLE_S)
    assert stage.transport.asked == ["a", "b", "c"]
    stage.read(2 * AGAIN_S)
    assert stage.transport.asked == ["a", "b", "c", "d", "a"]
    assert stage.outreach.reached is NO
    assert stage.transport.kept == set("abcd")
    told = [(e["reachable"], e["asked"]) for e in stage.events.events]
    assert told == [("yes", 1), ("no", 3)]


def test_who_cannot_be_asked_is_no_witness() -> None:
    stage = Stage()
    stage.transport.answers = {"a": OSError("gone"), "b": NO, "c": UNKNOWN, "d": NO}
    stage.read(2 * SETTLE_S)
    assert stage.outreach.reached is NO
    stage.read(4 * SETTLE_S)
    assert stage.transport.asked == ["a", "b", "c", "d", "a", "b"], "too few have answered yet"


def test_after_a_failure_it_asks_again() -> None:
    """A system that has no thread to give right now, or what nobody foresaw."""
    stage = Stage()
    stage.transport.short_of_threads = True
    stage.read(3)
    stage.transport.short_of_threads = False
    stage.transport.answers = dict.fromkeys("abcd", OverflowError())
    with pytest.raises(OverflowError):
        stage.read(1)
    stage.clock.advance(SETTLE_S)
    stage.transport.answers = dict.fromkeys("abcd", YES)
    stage.read(1)
    assert stage.transport.asked == ["a", "b"]
    assert stage.outreach.reached is YES


@pytest.mark.parametrize(("wish", "lines"), [(NO, frozenset("abcd")), (YES, frozenset())])
def test_a_wish_in_the_peer_file_is_not_asked_about(wish: Reached, lines: frozenset[str]) -> None:
    stage = Stage(wish)
    stage.read(3)
    assert stage.transport.asked == []
    assert stage.transport.kept == lines


def test_contacts_follow_the_leases() -> None:
    stage = Stage(NO)
    hidden = a_lease("e", reached=NO, addresses=())
    gone = a_lease("b", state=PeerState.LEFT)
    stage.leases |= {"b": gone, "e": hidden}
    stage.read(1)
    assert stage.transport.contacts.keys() == set("acde")
    incarnation = stage.leases["a"].incarnation
    assert stage.transport.contacts["a"] == Contact(("a:1",), False, incarnation)
    assert stage.transport.contacts["e"] == Contact((), True, hidden.incarnation)
