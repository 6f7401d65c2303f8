"""Rounds that a process contributed to: rounds that it saw, and rounds that other peers brought."""

from atom.swap.voided import Cause, PassVoided
from atom.swarm.chain.commit import Ballot, Commit, MemberCount, Value, Voter
from atom.swarm.identity import Identity
from atom.swarm.records.lease import RoundUse
from atom.training.round_stats import RoundStats

ME = Voter(Identity.create().peer_id, b"i" * 16)
BEFORE_A_RESTART = Voter(ME.peer_id, b"j" * 16)
OTHER = Voter(Identity.create().peer_id, b"o" * 16)
BALLOT = Ballot(1, OTHER.peer_id, OTHER.incarnation)


def a_round(number: int, parts: dict[Voter, int]) -> Commit:
    contributions = tuple(
        MemberCount(who.peer_id, who.incarnation, sequences, 2.0 * number * sequences)
        for who, sequences in parts.items()
    )
    digests = (b"r" * 32, 1.0, b"s" * 32)
    value = Value(bytes([number]) * 32, number, BALLOT, *digests, contributions, (OTHER,))
    return Commit(value, BALLOT, ())


def sums(stats: RoundStats) -> tuple[int, int, int]:
    return stats.rounds_joined, stats.sequences_committed, stats.sequences_dropped


def test_only_what_this_incarnation_gave_is_ours() -> None:
    stats = RoundStats(ME)
    stats.committed(a_round(1, {ME: 0, OTHER: 8}), 0, 10.0)
    assert sums(stats) == (0, 0, 0)
    stats.committed(a_round(2, {BEFORE_A_RESTART: 100, OTHER: 8}), 50, 11.0)
    assert sums(stats) == (0, 0, 50), "it makes up for nothing"


def test_what_was_counted_is_in_a_round_that_was_found_or_dropped() -> None:
    """Rounds that others brought, another branch, and a first try that fell short: sequences are
    dropped only if the chain as it is now does not have them."""
    stats, ours = RoundStats(ME), [a_round(1, {ME: 5}), a_round(2, {ME: 6})]
    for commit in ours:
        stats.committed(commit, commit.value.sequences, 10.0)
    assert sums(stats) == (2, 11, 0)
    stats.caught_up([], 3)
    assert (*sums(stats), stats.last) == (0, 0, 14, None)
    stats.caught_up(ours, 0)
    assert sums(stats) == (2, 11, 3)
    stats.caught_up([*ours, a_round(3, {ME: 2, OTHER: 2})], 4)
    assert sums(stats) == (3, 13, 5)
    stats.voided(PassVoided(Cause.MEMORY, "no room", sequences_lost=4))
    stats.caught_up([ours[0], a_round(2, {OTHER: 8})], 0)
    assert sums(stats) == (1, 5, 17)
    assert stats.last is not None
    assert stats.last.loss == 4.0


def test_void_passes_are_counted_by_cause_and_in_a_row() -> None:
    stats = RoundStats(ME)
    told = [stats.voided(PassVoided(Cause.LOSS, "nan")) for _ in range(9)]
    assert [number for number, each in enumerate(told, 1) if each] == [1, 2, 4, 8]
    assert (stats.void_in_a_row, stats.void_cause) == (9, "loss-not-finite")
    stats.pass_counted()
    assert (stats.void_in_a_row, stats.void_cause) == (0, "")
    assert stats.voided(PassVoided(Cause.MEMORY, "no room")), "the first of this cause"
    counts = {
        "loss-not-finite": 9,
        "gradients-not-finite": 0,
        "out-of-memory": 1,
        "device-failed": 0,
    }
    assert (stats.void_passes, stats.void_in_a_row) == (counts, 1)


def test_what_a_round_took_is_what_was_spent_between_two_commits() -> None:
    """7.5 s of 10 in passes; a pass that began before the first commit counts where it ended."""
    spent = [(100.0, 1000, 2000), (107.5, 1600, 2700), (112.0, 1600, 2700), (112.0, 0, 0)]
    stats = RoundStats(ME, lambda: spent.pop(0))
    for number, now in ((1, 50.0), (2, 60.0)):
        assert stats.use is None, "nobody saw it begin"
        stats.committed(a_round(number, {ME: 8}), 8, now)
    assert stats.use == RoundUse(10.0, 0.75, 600, 700, 10.0)
    stats.committed(a_round(3, {ME: 8}), 8, 64.0)
    assert stats.use == RoundUse(4.0, 1.0, 0, 0, 7.0)
    assert stats.sequences_per_s == 8 / 4.0
    stats.caught_up([], 0)
    assert (stats.use, stats.sequences_per_s, stats.last_commit_at) == (None, 0.0, None)
    stats.committed(a_round(4, {ME: 8}), 8, 1000.0)
    assert (stats.use, stats.sequences_per_s) == (None, 0.0), "it began before we came back"
