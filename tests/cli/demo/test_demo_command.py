"""Verdict of the demo on the event logs of its peers."""

import pytest

from atom.cli.demo.command import judge, last_state, rounds_of, sequences_of
from atom.cli.demo.peer import Event

FALLING = [5.0, 4.0, 2.4]
GOOD = (100, "head", "digest")
LOSS = "the loss fell below half of its first value"
IDENTICAL = "all surviving replicas are bit-identical"


def failed(survivors: list[tuple[int, str, str]], losses: list[float] = FALLING) -> list[str]:
    return [check.claim for check in judge(survivors, losses) if not check.passed]


@pytest.mark.parametrize(
    "losses", [[], [5.0], [5.0, 2.5], [5.0, 2.4, 3.0], [5.0, float("nan")], [float("nan"), 1.0]]
)
def test_the_loss_did_not_fall(losses: list[float]) -> None:
    assert failed([GOOD, GOOD]) == []
    assert failed([GOOD, GOOD], losses) == [LOSS]


@pytest.mark.parametrize(
    "survivors",
    [
        [],
        [GOOD],
        [GOOD, (100, "head", "another")],
        [GOOD, (100, "another", "digest")],
        [GOOD, (99, "head", "digest")],
        [GOOD, (98, "head", "digest"), GOOD],
        [(0, "", ""), (0, "", "")],
    ],
)
def test_replicas_are_not_proven_identical(survivors: list[tuple[int, str, str]]) -> None:
    assert failed(survivors) == [IDENTICAL]


def event(kind: str, time: float, **fields: object) -> Event:
    return {"event": kind, "time": time, **fields}


FOUNDERS = [
    event("started", 0.0, round=0, digest="d0"),
    event("round", 10.0, round=1, digest="d1", members=["A", "B"], contributed=[40, 24]),
    event("attempt-ended", 11.0, round=2, reason="early"),
    event("round", 20.0, round=2, digest="d2", members=["A"], contributed=[64]),
    event("round", 30.0, round=3, digest="d3", head="h3", members=["A", "B"], contributed=[32, 48]),
]


def test_shares_are_read_from_the_founders_rounds() -> None:
    assert [sequences_of(each, "B") for each in rounds_of(FOUNDERS)] == [24, 0, 48]


@pytest.mark.parametrize("kind", ["round", "caught-up", "left"])
def test_the_last_replica_is_read_from_a_peers_own_events(kind: str) -> None:
    last = event(kind, 31.0, round=3, digest="d3", head="h3")
    assert last_state([*FOUNDERS[:2], last, event("paused", 32.0)]) == (3, "h3", "d3")
    assert last_state([]) == (0, "", "")


def test_a_round_told_twice_counts_once() -> None:
    events: list[Event] = [
        {"event": "round", "round": 2, "loss": 1.0},
        {"event": "other"},
        {"event": "round", "round": 1, "loss": 2.0},
        {"event": "round", "round": 2, "loss": 3.0},
    ]
    assert [event["loss"] for event in rounds_of(events)] == [2.0, 3.0]
