"""A peer finds out whether others can dial it, and keeps lines open if they cannot. Pure but for
the transport, which is scripted."""

from collections.abc import Callable, Iterable

import pytest

from atom.swarm.records.lease import PeerState, Reached
from atom.swarm.transport.limits import KnownPeers
from atom.swarm.transport.outreach import (
    AGAIN_S,
    MAX_LINES,
    SETTLE_S,
    WITNESSES,
    Outreach,
    lines_to,
    witness_of,
)
from tests.event_list import EventList
from tests.manual_clock import ManualClock
from tests.swarm.swarm_samples import a_lease

YES, NO, UNKNOWN = Reached.YES, Reached.NO, Reached.UNKNOWN


def test_malformed_answers_are_unknown() -> None:
    answers = (b"yes", b"no", b"", b"x", b"\xff")
    assert [*map(Reached.of, answers)] == [YES, NO, UNKNOWN, UNKNOWN, UNKNOWN]


def test_witnesses_and_those_to_whom_lines_lead_can_be_dialled() -> None:
    three = {name: a_lease(name, reached=can) for name, can in zip("bca", Reached, strict=True)}
    assert [three[name].reached for name in "bca"] == [YES, NO, UNKNOWN]
    assert [witness_of(three, asked, ()) for asked in range(3)] == ["a", "b", "a"]
    assert witness_of({"c": three["c"]}, 1, ()) == "c", "it may have a line to us"
    assert lines_to("me", three, KnownPeers()) == {"a", "b"}
    many = {f"peer {n}": a_lease(f"peer {n}", reached=YES) for n in range(200)}
    chosen = lines_to("me", many, KnownPeers())
    assert len(chosen) == MAX_LINES
    assert chosen == lines_to("me", dict(reversed(many.items())), KnownPeers())
    assert chosen != lines_to("you", many, KnownPeers())


def test_lines_lead_to_peers_that_the_run_knows_and_to_voters_first() -> None:
    """The run knows more peers than there are lines, and only voters call for rounds."""
    many = {f"peer {n}": a_lease(f"peer {n}", reached=YES) for n in range(512)}
    known = KnownPeers()
    known.at_head(("peer 7", "peer 300", "gone"))
    assert lines_to("me", many, known) > {"peer 7", "peer 300"}
    assert {witness_of(many, asked, known) for asked in range(9)} == {"peer 7", "peer 300"}
    voters = [f"peer {n}" for n in range(300, 309)]
    known.at_head(many)
    assert not lines_to("me", many, known).issuperset(voters)
    known.at_head(many, voters)
    assert lines_to("me", many, known).issuperset(voters)
    stage = Stage(NO)
    stage.leases |= {name: a_lease(name, addresses=("x:1",)) for name in many}
    stage.known.at_head(many, voters)
    stage.read(1)
    assert stage.kept.issuperset(voters)


class Stage:
    """Four others, and a transport whose threads are the caller's."""

    peer_id = "me"
    is_steady = True

    def __init__(self, wish: Reached = UNKNOWN, answer: Reached | Exception = YES) -> None:
        self.clock, self.events, self.threads = ManualClock(), EventList(), self
        self.outreach = Outreach(self, wish, self.clock, self.events)  # type: ignore[arg-type]
        self.leases = {
            name: a_lease(name, reached=YES, addresses=(f"{name}:1",)) for name in "abcd"
        }
        self.leases["me"] = a_lease("me")
        self.answers: dict[str, Reached | Exception] = dict.fromkeys("abcd", answer)
        self.asked = self.punched = ""
        self.contacts = dict[str, tuple[tuple[str, ...], bool]]()
        self.kept: frozenset[str] = frozenset()
        self.known = KnownPeers()

    def set_addresses(self, peer_id: str, addresses: tuple[str, ...], dials_out: bool) -> None:
        self.contacts[peer_id] = addresses, dials_out

    def start(self, name: str, work: Callable[[], None]) -> None:
        work()

    def probe(self, peer_id: str, from_outside: bool) -> Reached:
        self.asked += peer_id
        self.from_outside = from_outside
        answer = self.answers[peer_id]
        if isinstance(answer, Exception):
            raise answer
        return answer

    def try_to_punch(self, peer_id: str) -> None:
        self.punched += peer_id

    def keep_lines(self, peer_ids: Iterable[str]) -> None:
        self.kept = frozenset(peer_ids)

    def read(self, seconds: float) -> tuple[str, Reached, str]:
        """Return the peers that were asked, the verdict, and the peers to which lines are kept."""
        for _ in range(int(seconds)):
            self.outreach.know(self.leases)
            self.clock.advance(1.0)
        return self.asked, self.outreach.reached, "".join(sorted(self.kept))


def test_questions_become_rare_and_the_verdict_follows_the_latest_answers() -> None:
    stage = Stage()
    assert stage.read(WITNESSES * SETTLE_S) == ("abc", YES, "")
    stage.answers = dict.fromkeys("abcd", NO)
    assert stage.read(AGAIN_S - SETTLE_S) == ("abc", YES, "")
    assert stage.read(2 * AGAIN_S) == ("abcdab", NO, "abcd")
    told = [(e["reachable"], e["asked"]) for e in stage.events.events]
    assert told == [("yes", 1), ("no", 3)]


def test_a_peer_behind_a_router_asks_others_there_until_it_is_steady() -> None:
    stage = Stage(answer=NO)
    stage.is_steady = False
    for hidden in "cd":
        stage.leases[hidden] = a_lease(hidden, reached=NO)
    asked, verdict, _ = stage.read(4 * SETTLE_S)
    assert (asked, verdict, stage.punched) == ("abab", NO, "cdcd")
    assert stage.contacts["me"] == ((), True)
    stage.is_steady, stage.punched = True, ""
    stage.answers = dict.fromkeys("ab", YES)
    assert stage.read(3 * AGAIN_S)[1] == YES, "only the two that can be dialled are witnesses"
    assert not stage.punched


def test_a_peer_that_never_listens_tries_to_punch_too() -> None:
    stage = Stage(NO)
    stage.is_steady = False
    stage.leases["d"] = a_lease("d", reached=NO)
    assert stage.read(AGAIN_S + 1)[:2] == ("", NO)
    assert stage.punched == "dd"


def test_a_first_no_is_doubted_for_a_while() -> None:
    """Others may know the address of an earlier life alone."""
    stage = Stage(answer=NO)
    del stage.leases["c"], stage.leases["d"]
    assert stage.read(2 * SETTLE_S) == ("ab", NO, "ab")
    stage.answers = dict.fromkeys("ab", YES)
    assert stage.read(2 * SETTLE_S) == ("abab", YES, "")
    assert stage.read(AGAIN_S - SETTLE_S)[0] == "abab"


def test_who_cannot_be_asked_is_no_witness() -> None:
    stage = Stage(answer=NO)
    stage.answers |= {"a": OSError("gone"), "c": UNKNOWN}
    assert stage.read(2 * SETTLE_S) == ("ab", NO, "abcd")
    assert stage.read(4 * SETTLE_S)[0] == "abcdab", "too few have answered yet"
    stage = Stage()
    stage.leases = {"a": stage.leases["a"]}
    assert stage.read(1) == ("a", YES, "")
    stage.answers["a"] = OSError("gone")
    assert stage.read(AGAIN_S) == ("aa", UNKNOWN, ""), "its earlier report is old"


def test_witnesses_in_our_network_prove_nothing_to_peers_elsewhere() -> None:
    stage = Stage()
    stage.leases = {"a": a_lease("a", reached=YES, addresses=("192.168.1.3:1",))}
    stage.read(1)
    assert not stage.from_outside
    stage.leases["b"] = a_lease("b", addresses=("192.168.7.3:1", "[2001:db8::1]:1"))
    stage.read(AGAIN_S)
    assert stage.from_outside


def test_silence_counts_while_there_are_peers_that_nobody_can_ask() -> None:
    stage = Stage(answer=OSError("gone"))
    stage.read(10)
    assert stage.outreach.silent_s == 10
    stage.answers["b"] = UNKNOWN
    stage.read(2 * AGAIN_S)
    assert stage.outreach.silent_s <= 4 * SETTLE_S
    stage.leases, stage.answers = {}, {}
    stage.read(AGAIN_S)
    assert stage.outreach.silent_s == 1


@pytest.mark.parametrize(("wish", "lines"), [(NO, "abcd"), (YES, "")])
def test_a_wish_in_the_peer_file_is_not_asked_about(wish: Reached, lines: str) -> None:
    assert Stage(wish).read(3) == ("", wish, lines)


def test_a_reading_that_found_nobody_closes_no_line() -> None:
    stage = Stage(NO)
    assert stage.read(1)[2] == "abcd"
    stage.leases = {}
    assert stage.read(1)[2] == "abcd"


def test_contacts_follow_the_leases() -> None:
    stage = Stage(NO)
    hidden, gone = a_lease("e", reached=NO, addresses=()), a_lease("b", state=PeerState.LEFT)
    stage.leases |= {"b": gone, "e": hidden}
    stage.read(1)
    assert stage.contacts.keys() == {*"acde", "me"}
    assert stage.contacts["a"] == (("a:1",), False)
    assert stage.contacts["e"] == ((), True)
