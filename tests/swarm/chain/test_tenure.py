"""Tenure: earned by contributing to rounds, lost by staying away, the same for every reader."""

from atom.swarm.chain import tenure
from atom.swarm.chain.tenure import (
    NEVER,
    ROUNDS_TO_EARN,
    ROUNDS_TO_LOSE,
    Tenure,
    Tenures,
    after_round,
    from_the_start,
)

ALWAYS = frozenset({"founder"})


def rounds(
    before: Tenures, count: int, contributors: frozenset[str] = ALWAYS, by_quorum: bool = True
) -> Tenures:
    for number in range(count):
        before = after_round(before, number + 1, contributors, by_quorum)
    return before


def since(records: Tenures) -> dict[str, int]:
    return {each.peer_id: each.since for each in records if each.since != NEVER}


def test_a_peer_earns_tenure_with_its_eighth_round_even_if_it_misses_some() -> None:
    records = rounds(from_the_start(ALWAYS), ROUNDS_TO_EARN - 1, ALWAYS | {"new"})
    records = rounds(records, ROUNDS_TO_LOSE - 1)
    assert since(records) == {"founder": 0}
    assert since(after_round(records, 30, ALWAYS | {"new"}, True)) == {"founder": 0, "new": 30}


def test_tenure_and_progress_are_lost_after_sixteen_missed_rounds() -> None:
    records = rounds(from_the_start(ALWAYS), ROUNDS_TO_EARN, ALWAYS | {"old"})
    records = after_round(records, 9, ALWAYS | {"newcomer"}, True)
    records = rounds(records, ROUNDS_TO_LOSE - 1)
    assert since(records) == {"founder": 0}
    assert [each.peer_id for each in records] == ["founder", "newcomer"]
    assert [each.peer_id for each in rounds(records, 1)] == ["founder"]


def test_rounds_before_the_first_contribution_and_rounds_of_a_branch_are_not_missed() -> None:
    records = rounds(from_the_start({"founder", "trusted"}), 2 * ROUNDS_TO_LOSE)
    assert since(records) == {"founder": 0, "trusted": 0}
    records = after_round(records, 40, ALWAYS | {"trusted"}, True)
    records = rounds(records, 2 * ROUNDS_TO_LOSE, by_quorum=False)
    assert since(records) == {"founder": 0, "trusted": 0}
    assert since(rounds(records, ROUNDS_TO_LOSE)) == {"founder": 0}


def test_a_contribution_ends_a_run_of_missed_rounds() -> None:
    records = rounds(from_the_start({"founder", "late"}), 1, ALWAYS | {"late"})
    for _ in range(4):
        records = rounds(rounds(records, ROUNDS_TO_LOSE - 1), 1, ALWAYS | {"late"})
    assert since(records) == {"founder": 0, "late": 0}


def test_a_crowd_displaces_no_peer_with_tenure_nor_the_most_advanced() -> None:
    crowd = frozenset(f"one {number}" for number in range(tenure.MAX_RECORDS))
    records = rounds(from_the_start({"zz founder"}), 2, frozenset({"zz founder", "zz advanced"}))
    records = after_round(records, 3, crowd, True)
    assert len(records) == tenure.MAX_RECORDS
    assert {"zz founder", "zz advanced"} <= {each.peer_id for each in records}


def test_a_record_that_does_not_change_is_not_copied() -> None:
    records = rounds(from_the_start(ALWAYS), ROUNDS_TO_EARN)
    assert rounds(records, 1)[0] is records[0] == Tenure("founder", ROUNDS_TO_EARN, 0, 0)
