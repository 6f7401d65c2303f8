"""What a process had a part in: rounds that it saw, and rounds that others brought it."""

from atom.swarm.chain.commit import Ballot, Contribution, Value, Voter
from atom.swarm.identity import Identity
from atom.training.round_stats import RoundStats

ME = Voter(Identity.create().peer_id, b"i" * 16)
BEFORE_A_RESTART = Voter(ME.peer_id, b"j" * 16)
OTHER = Voter(Identity.create().peer_id, b"o" * 16)


def a_round(number: int, parts: dict[Voter, int]) -> Value:
    return Value(
        parent=bytes([number]) * 32,
        round=number,
        origin=Ballot(1, OTHER.peer_id, OTHER.incarnation),
        result_digest=b"r" * 32,
        gradient_norm=1.0,
        parent_state_digest=b"s" * 32,
        contributions=tuple(
            Contribution(who.peer_id, who.incarnation, sequences, 2.0 * number * sequences)
            for who, sequences in parts.items()
        ),
        voters_next=(OTHER,),
    )


def sums(stats: RoundStats) -> tuple[int, int, int]:
    return stats.rounds_joined, stats.sequences_committed, stats.sequences_dropped


def test_only_what_this_incarnation_gave_is_ours() -> None:
    stats = RoundStats(ME)
    stats.committed(a_round(1, {ME: 0, OTHER: 8}), 0, 16, 10.0)
    assert sums(stats) == (0, 0, 0)
    stats.committed(a_round(2, {BEFORE_A_RESTART: 100, OTHER: 8}), 50, 16, 11.0)
    assert sums(stats) == (0, 0, 50), "it makes up for nothing"


def test_what_was_counted_is_in_a_round_that_was_missed_or_dropped() -> None:
    stats = RoundStats(ME)
    missed = [a_round(1, {ME: 6, OTHER: 2}), a_round(2, {OTHER: 8})]
    stats.caught_up(missed, 8)
    assert sums(stats) == (1, 6, 2)
    assert stats.loss == 4.0
    assert stats.last_here is None
    stats.caught_up([*missed, a_round(3, {OTHER: 8})], 5)
    assert sums(stats) == (1, 6, 7)


def test_another_branch_takes_back_what_it_does_not_have() -> None:
    stats = RoundStats(ME)
    stats.committed(a_round(1, {ME: 5}), 5, 16, 10.0)
    stats.caught_up([a_round(1, {ME: 5, OTHER: 8})], 0)
    assert sums(stats) == (1, 5, 0)
    stats.caught_up([a_round(1, {OTHER: 8})], 3)
    assert sums(stats) == (0, 0, 8)


def test_a_first_try_that_fell_short_costs_nothing_once_the_rounds_are_back() -> None:
    stats = RoundStats(ME)
    ours = [a_round(1, {ME: 5}), a_round(2, {ME: 6})]
    for value in ours:
        stats.committed(value, value.sequences, 16, 10.0)
    stats.caught_up([], 3)
    assert sums(stats) == (0, 0, 14)
    stats.caught_up(ours, 0)
    assert sums(stats) == (2, 11, 3)


def test_no_rate_is_told_over_an_absence() -> None:
    stats, values = RoundStats(ME), [a_round(number, {ME: 8}) for number in range(1, 6)]
    stats.committed(values[0], 8, 16, 10.0)
    stats.committed(values[1], 8, 16, 12.0)
    assert stats.tokens_per_s == 8 * 16 / 2.0
    stats.caught_up(values[:3], 0)
    assert stats.tokens_per_s == 0.0
    stats.committed(values[3], 8, 16, 1000.0)
    assert stats.tokens_per_s == 0.0, "that round began before we came back"
    stats.committed(values[4], 8, 16, 1004.0)
    assert stats.tokens_per_s == 8 * 16 / 4.0
