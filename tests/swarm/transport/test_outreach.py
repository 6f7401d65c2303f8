"""A peer finds out whether others can dial it, and keeps lines open if they cannot. Pure but for
the transport, which is scripted."""

from collections.abc import Iterable

import pytest
from hypothesis import given
from hypothesis import strategies as st
from swarm_samples import a_lease

from atom.base.events import EventList
from atom.swarm.records.lease import PeerState, Reached
from atom.swarm.records.reachability import (
    AGAIN_S,
    MAX_LINES,
    RETRY_S,
    SETTLE_S,
    WITNESSES,
    Answers,
    lines_to,
    next_witness,
)
from atom.swarm.transport.contacts import Contact
from atom.swarm.transport.outreach import Outreach, contact_of
from tests.manual_clock import ManualClock

YES, NO, UNKNOWN = Reached.YES, Reached.NO, Reached.UNKNOWN


@pytest.mark.parametrize(
    ("answers", "verdict"),
    [
        ([], UNKNOWN),
        ([UNKNOWN], UNKNOWN),
        ([YES], YES),
        ([NO], NO),
        ([YES, NO], NO),
        ([NO, YES, YES], YES),
        ([NO, NO, YES], NO),
        ([NO, NO, YES, YES], YES),
        ([YES, YES, YES, NO, UNKNOWN], YES),
    ],
)
def test_more_than_half_of_the_latest_have_to_say_yes(
    answers: list[Reached], verdict: Reached
) -> None:
    given_so_far = Answers()
    for number, answer in enumerate(answers):
        given_so_far = given_so_far.with_answer(f"witness {number}", answer)
    assert given_so_far.verdict() is verdict
    assert len(given_so_far.given) <= WITNESSES


def test_one_witness_has_one_voice() -> None:
    answers = Answers().with_answer("a", NO).with_answer("b", YES).with_answer("a", YES)
    assert answers.given == (("b", YES), ("a", YES))
    assert answers.with_answer("a", UNKNOWN).given == (("b", YES),)


def test_the_next_witness_was_not_asked_for_longest() -> None:
    assert next_witness([], {}) is None
    assert next_witness(["b", "a"], {}) == "a"
    assert next_witness(["a", "b", "c"], {"a": 1.0, "b": 0.5}) == "c"
    assert next_witness(["a", "b"], {"a": 1.0, "b": 0.5}) == "b"


def test_questions_become_rare() -> None:
    one = Answers().with_answer("a", YES)
    assert Answers().pause_s(["a"]) == RETRY_S
    assert one.pause_s(["a"]) == AGAIN_S, "there is nobody else to ask"
    assert one.pause_s(["a", "b"]) == SETTLE_S
    assert one.with_answer("b", YES).with_answer("c", NO).pause_s(list("abcd")) == AGAIN_S


@given(st.sampled_from([b"y", b"n", b"", b"x", b"\x00"]))
def test_malformed_answers_are_unknown(raw: bytes) -> None:
    assert Reached.of(raw) is {b"y": YES, b"n": NO}.get(raw, UNKNOWN)


@pytest.mark.parametrize("reached", Reached)
def test_an_answer_survives_the_wire(reached: Reached) -> None:
    assert Reached.of(reached.to_wire()) is reached


def test_lines_lead_to_a_few_peers_that_can_be_dialled() -> None:
    assert lines_to("me", {"a": YES, "b": NO, "c": UNKNOWN}) == {"a", "c"}
    many = {f"peer {n}": YES for n in range(200)}
    chosen = lines_to("me", many)
    assert len(chosen) == MAX_LINES
    assert chosen == lines_to("me", dict(reversed(many.items())))
    assert chosen != lines_to("you", many)


class ScriptedTransport:
    peer_id, relays = "me", True

    def __init__(self) -> None:
        self.answers: dict[str, Reached | OSError] = {}
        self.asked: list[str] = []
        self.contacts: dict[str, Contact] = {}
        self.kept: frozenset[str] = frozenset()

    def set_contact(self, peer_id: str, contact: Contact) -> None:
        self.contacts[peer_id] = contact

    def probe(self, peer_id: str) -> Reached:
        self.asked.append(peer_id)
        answer = self.answers[peer_id]
        if isinstance(answer, OSError):
            raise answer
        return answer

    def keep_lines(self, peer_ids: Iterable[str]) -> None:
        self.kept = frozenset(peer_ids)

    def lines(self) -> frozenset[str]:
        return self.kept


class Stage:
    def __init__(self, wish: Reached = UNKNOWN) -> None:
        self.transport, self.clock, self.events = ScriptedTransport(), ManualClock(), EventList()
        self.outreach = Outreach(self.transport, wish, self.clock, self.events)
        self.others = {
            name: a_lease(name, reached=YES, relays=name != "c", addresses=(f"{name}:1",))
            for name in "abc"
        }
        self.outreach.know({**self.others, "me": a_lease("me")})

    def turns(self, seconds: float) -> None:
        for _ in range(int(seconds)):
            self.outreach.turn(self.others)
            self.clock.advance(1.0)


def test_a_peer_that_is_dialled_keeps_no_lines_and_relays() -> None:
    stage = Stage()
    stage.transport.answers = dict.fromkeys("abc", YES)
    assert not stage.outreach.relays, "not before it knows"
    stage.turns(60)
    assert stage.transport.asked == ["a", "b", "c"]
    assert stage.outreach.reached is YES
    assert stage.outreach.relays
    assert stage.transport.kept == frozenset()
    (told,) = [e for e in stage.events.events if e["event"] == "reachability"]
    assert (told["reachable"], told["asked"]) == ("yes", 1)


def test_a_peer_that_cannot_be_dialled_keeps_lines_and_names_them() -> None:
    stage = Stage()
    stage.transport.answers = {"a": OSError("gone"), "b": NO, "c": NO}
    stage.turns(20)
    assert stage.outreach.reached is NO
    assert not stage.outreach.relays
    assert stage.transport.kept == {"a", "b", "c"}
    assert stage.outreach.lines() == ("a", "b"), "the third relays nothing"


def test_a_peer_alone_at_its_head_asks_soon() -> None:
    stage = Stage()
    stage.transport.answers = dict.fromkeys("abc", YES)
    stage.turns(30)
    stage.transport.answers = dict.fromkeys("abc", NO)
    everybody = {**stage.others, "me": a_lease("me", head=b"n" * 32)}
    stage.outreach.know(everybody)
    stage.turns(SETTLE_S)
    assert stage.transport.asked == ["a", "b", "c"], "others may be on their way"
    stage.turns(12)
    assert stage.outreach.reached is NO
    assert stage.transport.kept == {"a", "b", "c"}
    stage.outreach.know({**everybody, "a": a_lease("a", head=b"n" * 32)})
    asked = len(stage.transport.asked)
    stage.turns(AGAIN_S - 5)
    assert len(stage.transport.asked) == asked, "it has company: no hurry"


def test_a_peer_in_doubt_asks_at_once_and_then_at_intervals() -> None:
    stage = Stage()
    stage.transport.answers = dict.fromkeys("abc", YES)
    stage.turns(30)
    everybody = {**stage.others, "me": a_lease("me")}
    stage.outreach.know(everybody, in_doubt=True)
    stage.turns(1)
    assert stage.transport.asked == ["a", "b", "c", "a"]
    stage.turns(SETTLE_S - 1)
    assert stage.transport.asked == ["a", "b", "c", "a"]
    stage.turns(1)
    assert stage.transport.asked == ["a", "b", "c", "a", "b"]
    stage.outreach.know(everybody)
    stage.turns(30)
    assert stage.transport.asked == ["a", "b", "c", "a", "b"], "no hurry any more"


def test_two_that_a_third_reaches_and_that_do_not_reach_each_other_keep_lines() -> None:
    stage = Stage()
    stage.transport.answers = {"a": YES, "b": OSError("no way"), "c": YES}
    stage.turns(30)
    assert stage.outreach.reached is YES
    assert stage.transport.kept == {"a", "b", "c"}
    assert stage.outreach.lines() == ("a", "b")
    stage.transport.answers["b"] = NO  # through the relay it can be asked
    stage.turns(60)
    assert stage.outreach.reached is YES, "two of three"
    assert stage.transport.kept == {"a", "b", "c"}, "else it would be cut off again"
    stage.transport.answers["b"] = YES
    stage.turns(200)
    assert stage.transport.kept == frozenset()


def test_a_question_cut_short_by_close_brings_no_news() -> None:
    """Closing cuts the question short, and there is no directory left to be told."""
    stage, told = Stage(), list[str]()
    stage.transport.answers = {"a": OSError("closed")}
    stage.outreach.start(lambda: told.append("news"))
    stage.outreach.close()
    stage.outreach.turn(stage.others)
    assert stage.transport.asked == ["a"]
    assert told == []


def test_a_peer_that_is_gone_needs_no_lines() -> None:
    stage = Stage()
    stage.transport.answers = {"a": YES, "b": OSError("killed"), "c": YES}
    stage.turns(30)
    del stage.others["b"]
    stage.turns(1)
    assert stage.transport.kept == frozenset()


def test_a_wish_in_the_peer_file_is_not_asked_about() -> None:
    closed, opened = Stage(NO), Stage(YES)
    for stage in (closed, opened):
        stage.turns(3)
        assert stage.transport.asked == []
    assert closed.transport.kept == {"a", "b", "c"}
    assert opened.transport.kept == frozenset()


def test_contacts_follow_the_leases_and_lines_outlive_a_blind_moment() -> None:
    stage = Stage(NO)
    gone = a_lease("b", state=PeerState.LEFT)
    hidden = a_lease("d", reached=NO, addresses=(), lines=("a", "b"))
    stage.outreach.know({"b": gone, "d": hidden})
    assert stage.transport.contacts["a"] == contact_of(stage.others["a"])
    assert stage.transport.contacts["d"] == contact_of(hidden)
    assert contact_of(hidden) == Contact((), True, ("a", "b"), hidden.incarnation)
    assert "me" not in stage.transport.contacts
    assert set(stage.outreach._others) == {"a", "c", "d"}
    stage.clock.advance(59.0)
    stage.outreach.know({})
    assert set(stage.outreach._others) == {"a", "c", "d"}
    stage.clock.advance(2.0)
    stage.outreach.know({})
    assert stage.outreach._others == {}
