"""What a daemon says of the swarm while nobody types, and how often."""

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from atom.daemon.console import Silence
from atom.daemon.peer.herald import Herald
from atom.daemon.peer.news import (
    GATHER_S,
    LOST_S,
    SETTLE_S,
    WAITING_S,
    Company,
    Pace,
    Rounds,
    Standstill,
    Waiting,
)
from atom.swarm.chain.commit import Ballot, Contribution, Value
from atom.swarm.records.lease import PeerState
from atom.training.round.events import View
from tests.manual_clock import ManualClock

NOBODY: frozenset[str] = frozenset()
ANN, BOB = "12D3KooWAnnAnn", "12D3KooWBobBob"


def names(number: int, first: int = 0) -> list[str]:
    return [f"12D3Koo{index:06}" for index in range(first, first + number)]


def seconds(until: float, start: float = 0.0) -> Iterator[float]:
    """Looks, ten a second."""
    return (start + tenth / 10 for tenth in range(round((until - start) * 10)))


def settled(*present: str) -> tuple[Company, list[str]]:
    company = Company()
    return company, said(company, present, seconds(20.0))


def said(
    company: Company, present: Any, looks: Iterator[float], left: frozenset[str] = NOBODY
) -> list[str]:
    return [line for now in looks if (line := company.line(present, left, now))]


def test_who_was_there_before_is_told_together() -> None:
    _, lines = settled(ANN, BOB)
    assert len(lines) == 1
    assert lines[0].startswith("here already: …")
    assert lines[0].endswith("; 3 peers now")
    assert settled()[1] == []


def test_who_joins_leaves_or_falls_silent_is_named() -> None:
    company, _ = settled(ANN)
    assert said(company, [ANN, BOB], seconds(60.0, 40.0)) == ["joined: …BobBob; 3 peers now"]
    goodbye = said(company, [ANN], seconds(100.0, 80.0), frozenset([BOB]))
    assert goodbye == ["left: …BobBob; 2 peers now"]
    assert said(company, [], seconds(140.0, 120.0)) == ["no longer seen: …AnnAnn; alone now"]


def test_a_lease_that_lapses_for_a_moment_is_no_news() -> None:
    company, _ = settled(ANN)
    assert said(company, [], seconds(20.0 + LOST_S, 20.0)) == []
    assert said(company, [ANN], seconds(60.0, 20.0 + LOST_S)) == []


def test_those_that_come_within_a_moment_share_a_line() -> None:
    company, _ = settled()
    assert said(company, [ANN], seconds(20.0 + GATHER_S / 2, 20.0)) == []
    lines = said(company, [ANN, BOB], seconds(40.0, 20.0 + GATHER_S / 2))
    assert lines == ["joined: …AnnAnn, …BobBob; 3 peers now"]


def test_a_crowd_that_comes_and_goes_does_not_flood() -> None:
    """Of forty peers another one each second: lines come ever more seldom, and none is long."""
    company, hours = Company(), 4
    crowd = names(40 + hours * 3600)
    lines = [
        line
        for second in range(hours * 3600)
        if (line := company.line(crowd[second : second + 40], NOBODY, float(second)))
    ]
    assert lines[0].startswith("here already: …000000, …000001, …000002 and ")
    assert hours * 6 <= len(lines) <= hours * 6 + 8
    assert max(map(len, lines)) < 160
    assert lines[-1].endswith(" peers now")


def test_rare_lines_come_at_once_and_many_ever_more_seldom() -> None:
    pace = Pace(10.0, 60.0)
    told = [now for now in range(1000) if pace.is_due(now) and not pace.said(now)]
    assert told[:5] == [0, 10, 30, 70, 130]
    assert told[5:] == list(range(190, 1000, 60))
    assert pace.is_due(2000.0)
    pace.said(2000.0)
    assert pace.is_due(2010.0)


def value(number: int, *parts: tuple[str, int]) -> Value:
    made = tuple(Contribution(peer, b"i" * 16, count, 2.5 * count) for peer, count in parts)
    ballot = Ballot(1, ANN, b"i" * 16)
    return Value(b"h" * 32, number, ballot, b"r" * 32, 1.0, b"s" * 32, made, ())


@pytest.mark.parametrize(
    ("ours", "words"),
    [(0, "joins: the swarm is at round 1,059, its state"), (40, "from round 40: ")],
)
def test_who_arrives_says_where_the_swarm_is_and_when_it_is_there_too(
    ours: int, words: str
) -> None:
    console = Notes()
    herald = Herald(console, ManualClock(0.0))
    for ahead in ([1058, 1059], [1060], []):
        herald.arrive(ANN, ours + 1061 * (not ahead), ahead)
    behind, there = console.notes
    assert words in behind
    assert there == f"caught up: at round {ours + 1061:,}, as the swarm is"


def test_who_arrives_as_the_swarm_goes_has_not_caught_up() -> None:
    console = Notes()
    herald = Herald(console, ManualClock(0.0))
    for ahead in ([1059], [1060], []):
        herald.arrive(ANN, 0, ahead)
    assert console.notes[1:] == ["who was at round 1,060 is gone: nobody is ahead of round 0"]


def test_who_arrives_where_nobody_is_ahead_says_its_round() -> None:
    console = Notes()
    Herald(console, ManualClock(0.0)).arrive(ANN, 7, [])
    assert console.notes == [f"peer {ANN} at round 7; atom watch shows how it goes"]


def test_a_round_is_a_line_and_many_short_ones_are_one() -> None:
    rounds = Rounds(ANN)
    assert rounds.line(None, 0.0) == ""
    first = rounds.line(value(7, (ANN, 32), (BOB, 64), ("idle", 0)), 1.0)
    assert first == "round 7: loss 2.5000, 96 mini-batches of 2 peers, 32 of them ours"
    lines = [rounds.line(value(now, (BOB, 96)), float(now)) for now in range(8, 608)]
    told = [line for line in lines if line]
    assert told[0] == (
        "rounds 8 to 11, the last: loss 2.5000, 96 mini-batches of 1 peer, 0 of them ours"
    )
    assert 10 <= len(told) <= 14
    assert rounds.line(value(900, (ANN, 96)), 9000.0).endswith("96 mini-batches, all of them ours")
    assert rounds.line(value(900, (BOB, 96)), 9999.0) == ""


def test_a_pause_is_told_with_its_reason_and_its_end() -> None:
    standstill = Standstill()
    assert standstill.line("", 0.0) == ""
    assert standstill.line("on battery", 1.0) == "paused: on battery"
    assert standstill.line("on battery", 5.0) == ""
    assert standstill.line("outside its hours", 6.0) == "paused: outside its hours"
    assert standstill.line("", 60.0) == "resumed"


def test_who_is_waited_for_is_told_once_and_only_where_nobody_goes_on_without() -> None:
    waiting = Waiting()
    assert waiting.line([ANN], 0.0) == ""
    assert waiting.line([ANN], WAITING_S - 1) == ""
    assert waiting.line([], WAITING_S) == ""
    told = [waiting.line([ANN, BOB], 100.0 + now) for now in range(600)]
    (line,) = filter(None, told)
    assert line.startswith("no round can be decided without …AnnAnn, …BobBob, not in sight: ")
    assert told.index(line) == WAITING_S


def test_who_flickers_is_told_of_now_and_then_and_rightly_in_the_end() -> None:
    standstill = Standstill()
    looks = [("on battery" if now % 2 else "", float(now)) for now in range(600)]
    told = [line for line in (standstill.line(*look) for look in looks) if line]
    assert len(told) < 20
    assert standstill.line("", 1000.0) in ("resumed", "")
    assert standstill.line("on battery", 2000.0) == "paused: on battery"


class Notes(Silence):
    def __init__(self) -> None:
        self.notes: list[str] = []

    def note(self, text: str) -> None:
        self.notes.append(text)


@pytest.mark.parametrize("goodbye", [PeerState.LEFT, PeerState.ACCUMULATING])
def test_a_herald_says_it_on_the_console(goodbye: PeerState) -> None:
    console, clock = Notes(), ManualClock(0.0)
    herald = Herald(console, clock)

    def live(seconds: float, fresh: Any, state: PeerState) -> None:
        for _ in range(round(seconds)):
            clock.advance(1.0)
            herald.hear({ANN: SimpleNamespace(state=state)})  # type: ignore[dict-item]
            herald.tell(BOB, View(fresh=fresh), "", None)

    live(SETTLE_S + 20, {ANN: None}, PeerState.ACCUMULATING)
    live(20, {}, goodbye)
    what = "left" if goodbye is PeerState.LEFT else "no longer seen"
    assert console.notes == ["here already: …AnnAnn; 2 peers now", f"{what}: …AnnAnn; alone now"]


def test_a_herald_says_for_whom_it_waits_if_it_hears_at_all() -> None:
    console, clock = Notes(), ManualClock(0.0)
    herald = Herald(console, clock)

    def live(hears: bool) -> None:
        for _ in range(100):
            clock.advance(5.0)
            if hears:
                herald.hear({})
            herald.tell(BOB, View(), "", None, frozenset([ANN]))

    live(False)
    assert console.notes == []
    live(True)
    assert len(console.notes) == 1
    assert "…AnnAnn, not in sight" in console.notes[0]


def test_who_sees_nobody_because_it_was_asleep_says_nothing_of_the_others() -> None:
    console, clock = Notes(), ManualClock(0.0)
    herald = Herald(console, clock)
    lease: Any = SimpleNamespace(state=PeerState.ACCUMULATING)
    for _ in range(10):
        clock.advance(1.0)
        herald.hear({ANN: lease})
        herald.tell(BOB, View(fresh={ANN: lease}), "", None)
    for _ in range(100):
        clock.advance(5.0)
        herald.tell(BOB, View(), "on battery", None)
    assert console.notes == ["here already: …AnnAnn; 2 peers now", "paused: on battery"]
