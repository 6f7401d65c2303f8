"""Lines that a daemon prints about the swarm while it runs, and how often it prints them."""

from typing import Any

import pytest

from atom.daemon.peer.news import EVERY_S, UNREACHED, UNREACHED_S, WAITING_S, News
from atom.swarm.chain.commit import Ballot, MemberCount, Value

ANN, BOB, CY = "12D3KooWAnnAnn", "12D3KooWBobBob", "12D3KooWCyCyCy"


def value(number: int, *parts: tuple[str, int]) -> Value:
    made = tuple(MemberCount(peer, b"i" * 16, count, 2.5 * count) for peer, count in parts)
    ballot = Ballot(1, ANN, b"i" * 16)
    return Value(b"h" * 32, number, ballot, b"r" * 32, 1.0, b"s" * 32, made, ())


class Told:
    """Looks at the same for some seconds, ten times in each, and keeps what is said."""

    def __init__(self) -> None:
        self.now, self.news = 0.0, News(CY, 0.0)

    def after(self, seconds: float, **given: Any) -> list[str]:
        """`hears`: whether the directory is read."""
        hears = given.pop("hears", True)
        usual = {"reason": "", "last": None, "others": (), "missing": ()}
        said = list[str]()
        for _ in range(round(10 * seconds)):
            if hears:
                self.news.hear(self.now)
            said += self.news.lines(**(usual | given), now=self.now)
            self.now += 0.1
        return said


@pytest.mark.parametrize("ours", [0, 40])
def test_a_peer_that_arrives_says_where_the_swarm_is_and_when_it_is_there(ours: int) -> None:
    news, told = News(ANN, 0.0), list[str]()
    for ahead in ([1058, 1059], [1060], []):
        told += [news.arrival(ours + 1061 * (not ahead), ahead) for _ in range(2 if ahead else 1)]
    behind, *others, there = told
    assert "1,059" in behind
    assert ("from round 40" in behind) is (ours == 40)
    assert others == [""] * 3
    assert there == f"caught up: at round {ours + 1061:,}, like the swarm"


def test_a_peer_whose_swarm_leaves_has_not_caught_up() -> None:
    news = News(ANN, 0.0)
    *_, last = [news.arrival(0, ahead) for ahead in ([1059], [1060], [])]
    assert "1,060 are gone" in last
    assert "round 7" in News(ANN, 0.0).arrival(7, [])


def test_a_round_is_a_line_and_many_short_ones_are_one() -> None:
    told = Told()
    assert told.after(30) == []
    first = value(7, (CY, 32), (BOB, 64), ("idle", 0))
    assert told.after(1, last=first) == [
        "round 7: loss 2.5000, 96 sequences of 2 peers, 32 of them ours"
    ]
    lines = [line for n in range(8, 308) for line in told.after(1, last=value(n, (BOB, 96)))]
    assert lines[0].startswith("rounds 8 to 3")
    assert lines[0].endswith(": loss 2.5000, 96 sequences of 1 other peer")
    assert "; round 3" in lines[0]
    assert len(lines) == 300 / EVERY_S
    (only,) = told.after(60, last=value(900, (CY, 96)))
    assert only.endswith("96 sequences, all ours")


def test_a_pause_that_flickers_does_not_flood_and_is_told_rightly_in_the_end() -> None:
    told = Told()
    lines = [line for n in range(600) for line in told.after(0.1, reason="busy" * (n % 2))]
    assert len(lines) <= 31
    told.after(5)
    assert told.after(5, reason="busy") == ["paused: busy"]
    assert told.after(5, reason="on battery") == ["paused: on battery"]
    assert told.after(5) == ["resumed"]


def test_who_is_waited_for_is_told_once_and_only_where_nobody_goes_on_without() -> None:
    told = Told()
    assert told.after(WAITING_S - 1, missing=[ANN]) == []
    assert told.after(1) == []
    assert told.after(WAITING_S - 1, missing=[ANN, BOB]) == []
    (line,) = told.after(600, missing=[ANN, BOB])
    assert line.startswith("waiting for …AnnAnn, …BobBob: no round can be decided without them")


def test_who_was_asleep_says_nothing_of_the_others() -> None:
    told = Told()
    assert told.after(10, others=[ANN]) == []
    told.now += 60.0
    assert told.after(60, hears=False, reason="on battery", missing=[ANN]) == ["paused: on battery"]


def test_who_lacks_something_alone_is_told_once_what_to_do() -> None:
    told = Told()
    assert told.after(20, lacks="what the run keeps frozen", others=[ANN]) == []
    told = Told()
    (line,) = told.after(60, lacks="what the run keeps frozen")
    assert line.startswith("what the run keeps frozen is missing or damaged, and no other peer")
    assert "--from FOLDER" in line


def test_a_standstill_without_a_way_to_any_peer_is_told_once() -> None:
    told = Told()
    assert told.after(1, silent_s=UNREACHED_S - 1) == []
    assert told.after(60, silent_s=UNREACHED_S) == [UNREACHED]
    assert told.after(1) == []
    assert told.after(1, silent_s=UNREACHED_S) == [UNREACHED]
