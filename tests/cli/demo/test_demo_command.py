"""Course of the demo, and its verdict on the event logs of its peers."""

import dataclasses

import pytest

from atom.cli.demo.command import due
from atom.cli.demo.peer import FINISHED, KILLED
from atom.cli.demo.verdict import PeerResult, judge, rounds_of, sum_up

FALLING = [5.0, 4.0, 2.4]
STATES = {number: (f"head {number}", f"digest {number}") for number in range(1, 101)}
GOOD = PeerResult("peer 1", "A", FINISHED, 100, STATES)
LOSS = "the loss fell below half of its first value"
IDENTICAL = "all surviving replicas are bit-identical"


def other(fate: str = FINISHED, **states: tuple[str, str]) -> PeerResult:
    """A second peer; `r7=("head", "digest")` is another state after round 7."""
    changed = {int(name[1:]): state for name, state in states.items()}
    return dataclasses.replace(GOOD, name="peer 2", fate=fate, states=STATES | changed)


def until(last: int, first: int = 1, fate: str = FINISHED) -> PeerResult:
    states = {number: STATES[number] for number in range(first, last + 1)}
    return dataclasses.replace(GOOD, name="peer 3", fate=fate, states=states)


def failed(results: list[PeerResult], losses: list[float] = FALLING) -> list[str]:
    return [check.claim for check in judge(results, losses) if not check.passed]


@pytest.mark.parametrize(
    "others",
    [
        [other()],
        [other(), until(25, fate="killed")],
        [other("killed", r25=("forked", "away")), other()],
        [until(100, first=74), other()],
    ],
)
def test_all_is_well(others: list[PeerResult]) -> None:
    assert failed([GOOD, *others]) == []


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
        [other(r100=("head 100", "another"))],
        [other(r100=("another", "digest 100"))],
        [other(r50=("head 50", "another"))],
        [until(99)],
        [until(98), other()],
        [until(0)],
    ],
)
def test_replicas_are_not_proven_identical(others: list[PeerResult]) -> None:
    assert failed([GOOD, *others]) == [IDENTICAL]


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


def test_the_replica_is_read_from_its_own_events() -> None:
    result = sum_up("peer 1", "A", FINISHED, FOUNDERS, FOUNDERS)
    assert result.states == {0: ("", "d0"), 1: ("", "d1"), 2: ("", "d2"), 3: ("h3", "d3")}
    assert (result.last_round, result.digest) == (3, "d3")


@pytest.mark.parametrize("kind", ["caught-up", "left"])
def test_a_fetched_state_counts(kind: str) -> None:
    own = [*FOUNDERS[:2], event(kind, 31.0, round=3, digest="d3")]
    result = sum_up("peer 4", "D", FINISHED, own, FOUNDERS)
    assert (result.last_round, result.digest, result.rounds) == (3, "d3", 0)
    nothing = sum_up("peer 4", "", "killed", [], [])
    assert (nothing.rounds, nothing.digest) == (0, "")


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
