import dataclasses

import pytest

from atom.cli.demo.verdict import FINISHED, PeerResult, judge, sum_up

FALLING = [5.0, 4.0, 2.4]
GOOD = PeerResult("peer 1", "A", FINISHED, True, 100, 900, 50.0, 100, "head", "digest")
KILLED = dataclasses.replace(
    GOOD, name="peer 2", fate="killed", survived=False, last_round=25, digest="old"
)


def failed(results: list[PeerResult], losses: list[float], rounds: int = 100) -> list[str]:
    return [check.claim for check in judge(results, losses, rounds) if not check.passed]


def other(**changes: object) -> PeerResult:
    return dataclasses.replace(GOOD, name="peer 3", **changes)  # type: ignore[arg-type]


def test_all_is_well() -> None:
    assert failed([GOOD, KILLED, other()], FALLING) == []


@pytest.mark.parametrize(
    "losses", [[], [5.0], [5.0, 2.5], [5.0, 2.4, 3.0], [5.0, float("nan")], [float("nan"), 1.0]]
)
def test_the_loss_did_not_fall(losses: list[float]) -> None:
    assert failed([GOOD, other()], losses) == ["the loss fell below half of its first value"]


@pytest.mark.parametrize("change", [{"digest": "other"}, {"head": "other"}])
def test_replicas_differ(change: dict[str, str]) -> None:
    assert failed([GOOD, other(**change)], FALLING) == ["all surviving replicas are bit-identical"]


def test_no_digest_proves_nothing() -> None:
    blank = [dataclasses.replace(peer, digest="") for peer in (GOOD, other())]
    assert failed(blank, FALLING) == ["all surviving replicas are bit-identical"]


def test_one_survivor_proves_nothing() -> None:
    assert len(failed([GOOD, KILLED], FALLING)) == 2


def test_a_survivor_stayed_behind() -> None:
    assert len(failed([GOOD, other(last_round=99, digest="older")], FALLING)) == 2


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
    result = sum_up("peer 2", "B", FINISHED, [], FOUNDERS, sequence_tokens=10)
    assert (result.rounds, result.mini_batches) == (2, 72)
    assert result.tokens_per_s == pytest.approx(72 * 10 / 20.0)


def test_the_replica_is_read_from_its_own_events() -> None:
    result = sum_up("peer 1", "A", FINISHED, FOUNDERS, FOUNDERS, sequence_tokens=10)
    assert (result.last_round, result.head, result.digest) == (3, "h3", "d3")
    assert result.survived


@pytest.mark.parametrize("kind", ["caught-up", "left"])
def test_a_fetched_state_counts(kind: str) -> None:
    own = [*FOUNDERS[:2], event(kind, 31.0, round=3, digest="d3")]
    result = sum_up("peer 4", "D", FINISHED, own, FOUNDERS, sequence_tokens=10)
    assert (result.last_round, result.digest, result.rounds) == (3, "d3", 0)


def test_a_peer_that_wrote_nothing() -> None:
    result = sum_up("peer 4", "", "killed", [], [], sequence_tokens=10)
    assert (result.rounds, result.tokens_per_s, result.digest) == (0, 0.0, "")
    assert not result.survived
