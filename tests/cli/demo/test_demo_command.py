"""Course of the demo, and its verdict on the event logs of its peers."""

import dataclasses

import pytest

from atom.cli.demo.command import PeerResult, due, judge, rounds_of, sum_up
from atom.cli.demo.peer import FINISHED, KILLED

FALLING = [5.0, 4.0, 2.4]
GOOD = PeerResult("peer 1", "A", FINISHED, 100, (100, "head", "digest"))
LOSS = "the loss fell below half of its first value"
IDENTICAL = "all surviving replicas are bit-identical"


def other(
    fate: str = FINISHED, round_: int = 100, head: str = "head", digest: str = "digest"
) -> PeerResult:
    """Return the result of a second peer."""
    return dataclasses.replace(GOOD, name="peer 2", fate=fate, last=(round_, head, digest))


def failed(results: list[PeerResult], losses: list[float] = FALLING) -> list[str]:
    return [check.claim for check in judge(results, losses) if not check.passed]


def test_peers_that_were_killed_need_no_equal_replica() -> None:
    assert failed([GOOD, other()]) == []
    assert failed([GOOD, other(KILLED, 25, "forked", "away"), other()]) == []


@pytest.mark.parametrize(
    "losses", [[], [5.0], [5.0, 2.5], [5.0, 2.4, 3.0], [5.0, float("nan")], [float("nan"), 1.0]]
)
def test_the_loss_did_not_fall(losses: list[float]) -> None:
    assert failed([GOOD, other()], losses) == [LOSS]


@pytest.mark.parametrize(
    "others",
    [
        [],
        [other("killed")],
        [other(digest="another")],
        [other(head="another")],
        [other(round_=99)],
        [other(round_=98), other()],
    ],
)
def test_replicas_are_not_proven_identical(others: list[PeerResult]) -> None:
    assert failed([GOOD, *others]) == [IDENTICAL]


def test_peers_without_any_replica_prove_nothing() -> None:
    nothing = dataclasses.replace(GOOD, last=(0, "", ""))
    assert failed([nothing, nothing]) == [IDENTICAL]


def event(kind: str, time: float, **fields: object) -> dict[str, object]:
    return {"event": kind, "time": time, **fields}


FOUNDERS = [
    event("started", 0.0, round=0, digest="d0"),
    event("round", 10.0, round=1, digest="d1", members=["A", "B"], contributed=[40, 24]),
    event("attempt-ended", 11.0, round=2, reason="early"),
    event("round", 20.0, round=2, digest="d2", members=["A"], contributed=[64]),
    event("round", 30.0, round=3, digest="d3", head="h3", members=["A", "B"], contributed=[32, 48]),
]


def test_shares_are_read_from_the_founders_rounds() -> None:
    assert sum_up("peer 2", "B", FINISHED, [], FOUNDERS).rounds == 2


@pytest.mark.parametrize("kind", ["round", "caught-up", "left"])
def test_the_last_replica_is_read_from_a_peers_own_events(kind: str) -> None:
    own = [*FOUNDERS[:2], event(kind, 31.0, round=3, digest="d3", head="h3")]
    if kind == "round":
        own = FOUNDERS
    result = sum_up("peer 4", "D", FINISHED, own, FOUNDERS)
    assert (result.last, result.rounds) == ((3, "h3", "d3"), 0)
    assert sum_up("peer 4", "", "killed", [], []).last == (0, "", "")


def test_a_round_told_twice_counts_once() -> None:
    events = [
        {"event": "round", "round": 2, "loss": 1.0},
        {"event": "other"},
        {"event": "round", "round": 1, "loss": 2.0},
        {"event": "round", "round": 2, "loss": 3.0},
    ]
    assert [event["loss"] for event in rounds_of(events)] == [2.0, 3.0]


@pytest.mark.parametrize(
    ("round_", "trained", "fates", "kill", "join"),
    [
        (0, 1, ["", "", ""], False, False),
        (25, 3, ["", "", ""], True, False),
        (30, 3, ["", KILLED, ""], False, False),
        (50, 3, ["", KILLED, ""], False, True),
        (60, 2, ["", "", ""], False, True),
        (60, 3, ["", "", ""], True, True),
    ],
)
def test_what_is_due(round_: int, trained: int, fates: list[str], kill: bool, join: bool) -> None:
    assert due(round_, 100, trained, fates) == (kill, join)
