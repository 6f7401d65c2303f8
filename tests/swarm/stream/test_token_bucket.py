"""The bucket's arithmetic, without waiting."""

import math

import pytest

from atom.swarm.stream.bandwidth import TokenBucket


def test_a_burst_is_free_and_the_rest_waits() -> None:
    bucket = TokenBucket(rate_per_s=10, burst=20)
    assert bucket.take(20, now=0.0) == 0.0
    assert bucket.take(10, now=0.0) == 1.0
    assert bucket.take(10, now=0.0) == 2.0
    assert bucket.take(10, now=3.0) == 0.0


def test_unused_tokens_stop_at_the_burst() -> None:
    bucket = TokenBucket(rate_per_s=10, burst=20)
    assert bucket.take(40, now=1000.0) == 2.0


def test_over_a_long_time_the_rate_holds() -> None:
    bucket, now, sent = TokenBucket(rate_per_s=100, burst=50), 0.0, 0
    while now < 60:
        now += bucket.take(30, now)
        sent += 30
    assert 60 * 100 <= sent <= 60 * 100 + 50 + 60


def test_allow_drops_instead_of_waiting() -> None:
    bucket = TokenBucket(rate_per_s=1, burst=2)
    assert [bucket.allow(0.0) for _ in range(3)] == [True, True, False]
    assert bucket.allow(1.0)
    assert not bucket.allow(0.5)  # time that runs backwards earns nothing


def test_no_limit_and_nonsense() -> None:
    assert TokenBucket(math.inf, 1).take(1e12, 0.0) == 0.0
    for rate, burst in ((0, 1), (1, 0), (-1, 1)):
        with pytest.raises(ValueError, match="positive"):
            TokenBucket(rate, burst)
