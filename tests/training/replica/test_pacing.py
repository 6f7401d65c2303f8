"""How much to train before looking up."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from atom.training.replica.pacing import (
    READ_S,
    SELDOM_S,
    SwarmCount,
    next_pass,
    reading_pause,
    usual_pass_seconds,
)
from atom.training.replica.settings import MAX_MICRO_BATCHES_PER_PASS
from atom.training.round.batch_policy import GlobalBatch


def test_alone_a_peer_trains_exactly_the_global_batch() -> None:
    own = passes = 0
    while size := next_pass(own, 0.0, SwarmCount(seen_at=-1.0), GlobalBatch(64), 8):
        own += size * 8
        passes += 1
    assert own == 64
    assert passes == 1


def test_leases_are_read_often_only_when_something_depends_on_them() -> None:
    far = SwarmCount(others_sequences=100, peers=4, seen_at=0.0, sequences_per_s=30.0)
    assert reading_pause(100, 10.0, far, GlobalBatch(1000)) == SELDOM_S
    assert reading_pause(250, 10.0, far, GlobalBatch(1000)) == READ_S, (
        "beyond its share it waits for news"
    )
    assert reading_pause(100, 10.0, far, GlobalBatch(400)) == READ_S, "five seconds to go"
    assert reading_pause(100, 0.0, SwarmCount(peers=4), GlobalBatch(1000)) == READ_S, "nobody knows"


@given(
    st.integers(0, 2000), st.floats(0, 1e4), st.integers(0, 2000), st.integers(1, 100),
    st.floats(0, 1e4), st.integers(1, 2000),
)  # fmt: skip
def test_the_end_of_a_batch_is_never_overslept(
    own: int, own_per_s: float, others: int, peers: int, per_s: float, batch: int
) -> None:
    pause = reading_pause(own, own_per_s, SwarmCount(others, peers, 0.0, per_s), GlobalBatch(batch))
    if pause > READ_S:
        assert own + others + pause * (own_per_s + per_s) < batch


def test_a_fair_share_needs_no_news() -> None:
    stale = SwarmCount(others_sequences=0, peers=3, seen_at=0.0)
    assert next_pass(0, 5.0, stale, GlobalBatch(60), 10) == 2
    assert next_pass(20, 5.0, stale, GlobalBatch(60), 10) == 0, "beyond it, only on a newer look"


def test_helps_the_slow_ones_on_a_newer_look() -> None:
    seen = SwarmCount(others_sequences=10, peers=3, seen_at=6.0)
    assert next_pass(20, 5.0, seen, GlobalBatch(60), 10) == 1


def test_stops_when_the_swarm_has_enough() -> None:
    assert next_pass(0, 0.0, SwarmCount(60, 3, 1.0), GlobalBatch(60), 10) == 0


@given(
    own=st.integers(0, 500),
    others=st.integers(0, 500),
    peers=st.integers(1, 50),
    newer=st.booleans(),
    global_batch=st.integers(1, 400),
    micro=st.integers(1, 64),
)
def test_never_more_than_is_missing_rounded_up(
    own: int, others: int, peers: int, newer: bool, global_batch: int, micro: int
) -> None:
    swarm = SwarmCount(others, peers, 1.0 if newer else 0.0)
    size = next_pass(own, 0.5, swarm, GlobalBatch(global_batch), micro)
    missing = global_batch - own - others
    assert 0 <= size <= MAX_MICRO_BATCHES_PER_PASS
    assert size == 0 or (size - 1) * micro < missing


@given(st.lists(st.integers(0, 3), min_size=1, max_size=60), st.integers(1, 6))
def test_any_interleaving_of_peers_reaches_the_batch(order: list[int], micro: int) -> None:
    """Whoever gets to run, with true news at every turn: nobody waits while work is missing."""
    counts = [0, 0, 0, 0]
    for clock in range(400):
        turn = order[clock % len(order)]
        others = sum(counts) - counts[turn]
        size = next_pass(
            counts[turn], clock - 0.5, SwarmCount(others, 4, float(clock)), GlobalBatch(48), micro
        )
        counts[turn] += size * micro
        if sum(counts) >= 48:
            break
        assert size > 0
    assert 48 <= sum(counts) < 48 + micro * 4


def test_a_pass_takes_what_the_largest_takes_at_the_usual_pace() -> None:
    assert usual_pass_seconds([]) == 0.0
    assert usual_pass_seconds([(4, 1.0), (8, 2.0), (8, 2.2)]) == pytest.approx(2.0)


def test_a_suspended_machine_is_not_slow() -> None:
    passes = [(8, 0.5)] * 5 + [(8, 30.0)] + [(8, 0.5)] + [(4, 20.0)]
    assert usual_pass_seconds(passes) == pytest.approx(0.5)
