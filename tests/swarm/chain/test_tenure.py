"""Tenure: earned by contributing to rounds, lost by staying away, the same for every reader."""

import random
from dataclasses import dataclass, replace

import pytest

from atom.swarm.chain.tenure import (
    MAX_NEWCOMERS,
    NEVER,
    ROUNDS_TO_EARN,
    ROUNDS_TO_LOSE,
    Tenures,
    after_round,
    from_the_start,
)

ALWAYS = frozenset({"founder"})


@dataclass
class Chain:
    """Records along a chain, with the counts that the chain gives them."""

    records: Tenures
    number: int = 0
    decided: int = 0

    def rounds(
        self, count: int, contributors: frozenset[str] = ALWAYS, by_quorum: bool = True
    ) -> None:
        for _ in range(count):
            self.number += 1
            self.decided += by_quorum
            self.records = after_round(self.records, self.number, contributors, self.decided)

    @property
    def since(self) -> dict[str, int]:
        return {each.peer_id: each.since for each in self.records if each.since != NEVER}

    @property
    def remembered(self) -> list[str]:
        return [each.peer_id for each in self.records]


def chain(*peer_ids: str) -> Chain:
    return Chain(from_the_start(peer_ids))


def test_a_peer_earns_tenure_with_its_eighth_round_even_if_it_misses_some() -> None:
    run = chain("founder")
    run.rounds(ROUNDS_TO_EARN - 1, ALWAYS | {"new"})
    run.rounds(ROUNDS_TO_LOSE - 1)
    assert run.since == {"founder": 0}
    run.rounds(1, ALWAYS | {"new"})
    assert run.since == {"founder": 0, "new": 23}
    run.rounds(ROUNDS_TO_LOSE - 1)
    assert run.remembered == ["founder", "new"]
    run.rounds(1)
    assert run.remembered == ["founder"]


def test_a_crowd_displaces_no_peer_with_tenure_nor_the_most_advanced() -> None:
    crowd = frozenset(f"one {number}" for number in range(MAX_NEWCOMERS))
    run = chain("zz founder")
    run.rounds(2, frozenset({"zz founder", "zz advanced"}))
    run.rounds(1, frozenset(list(crowd)[:-1]))
    assert {"zz founder", "zz advanced"} <= set(run.remembered)
    assert len(run.records) == MAX_NEWCOMERS + 1


def test_a_crowd_of_the_past_displaces_no_contributor_of_this_round() -> None:
    run = chain("founder")
    run.rounds(2, frozenset(f"one {number}" for number in range(MAX_NEWCOMERS)))
    run.rounds(1, frozenset({"zz newcomer"}))
    assert "zz newcomer" in run.remembered
    assert len(run.records) == MAX_NEWCOMERS + 1


def test_a_peer_with_tenure_is_remembered_however_many_there_are() -> None:
    listed = [f"listed {number:04}" for number in range(2 * MAX_NEWCOMERS)]
    run = chain(*listed)
    run.rounds(1, frozenset(listed[-1:]) | {"newcomer"})
    assert run.remembered == [*listed, "newcomer"]


# ---- the same rule with a count of missed rounds, which changed every record in every round


@dataclass(frozen=True)
class Counting:
    """A record that counts the rounds without a contribution one by one."""

    rounds: int = 0
    missed: int = 0
    since: int = NEVER

    def after(self, number: int, contributed: bool, by_quorum: bool) -> "Counting | None":
        if contributed:
            rounds = min(self.rounds + 1, ROUNDS_TO_EARN)
            earned = number if rounds == ROUNDS_TO_EARN else NEVER
            return Counting(rounds, 0, min(self.since, earned))
        if self.rounds == 0 or not by_quorum:
            return self
        missed = self.missed + 1
        return replace(self, missed=missed) if missed < ROUNDS_TO_LOSE else None


@pytest.mark.parametrize("seed", range(20))
def test_absences_are_those_that_a_count_of_missed_rounds_gives(seed: int) -> None:
    lot = random.Random(seed)
    peers = [f"peer {number}" for number in range(12)]
    zeal = {peer: lot.choice([0.02, 0.06, 0.1, 0.5, 0.9]) for peer in peers}
    run = chain(*peers[:3])
    counting = dict.fromkeys(peers[:3], Counting(since=0))
    for number in range(1, 400):
        there = frozenset(peer for peer in peers if lot.random() < zeal[peer])
        by_quorum = lot.random() < 0.8
        run.rounds(1, there, by_quorum)
        after = {
            peer: counting.get(peer, Counting()).after(number, peer in there, by_quorum)
            for peer in counting.keys() | there
        }
        counting = {peer: record for peer, record in after.items() if record is not None}
        found = {each.peer_id: (each.rounds, each.since) for each in run.records}
        assert found == {peer: (each.rounds, each.since) for peer, each in counting.items()}
    assert run.decided < run.number
    assert {each.rounds for each in run.records} - {ROUNDS_TO_EARN}, "some are on their way"
