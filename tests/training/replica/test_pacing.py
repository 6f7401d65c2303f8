"""How much to train before looking up."""

import itertools
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from atom.swarm.chain.commit import ChainRules, Voter, genesis
from atom.swarm.records.lease import PeerState
from atom.training.replica.device_engines import MAX_MICRO_BATCHES_PER_PASS
from atom.training.replica.pacing import (
    RARELY_S,
    READ_S,
    SELDOM_S,
    Pass,
    SwarmCount,
    count_swarm,
    next_pass,
    reading_pause,
    sequences_per_s,
    usual_pass_seconds,
    with_news,
)
from atom.training.round.events import View

NEWS, STALE = 6.0, 0.0
"""Looks at the others, after and before our last pass."""
MOST = MAX_MICRO_BATCHES_PER_PASS


def wanted(own: int, swarm: SwarmCount, batch: int = 60, micro: int = 10) -> int:
    """Micro-batches of the next pass."""
    return next_pass(own, 5.0, swarm, batch, micro, MOST)


@pytest.mark.parametrize(
    ("own", "swarm", "size"),
    [
        (0, SwarmCount(seen_at=-1.0), 6),  # alone: the whole batch
        (60, SwarmCount(seen_at=-1.0), 0),  # and no more
        (0, SwarmCount(0, 3, STALE), 2),  # a fair share needs no news
        (20, SwarmCount(0, 3, STALE), 0),  # beyond it, only on a newer look
        (20, SwarmCount(10, 3, NEWS), 1),  # then it helps the slow ones
        (20, SwarmCount(0, 2, NEWS), 1),  # up to its share first
        (0, SwarmCount(60, 3, NEWS), 0),  # the swarm has enough
    ],
)
def test_a_pass_is_as_large_as_what_is_missing(own: int, swarm: SwarmCount, size: int) -> None:
    assert wanted(own, swarm) == size


@given(st.lists(st.integers(0, 3), min_size=1, max_size=60), st.integers(1, 6))
def test_any_interleaving_of_peers_reaches_the_batch(order: list[int], micro: int) -> None:
    """Any peer may run next, with current figures at every turn: no peer waits while work is
    missing, and none takes more than the missing work, rounded up."""
    counts = [0, 0, 0, 0]
    for turn in itertools.cycle(order):
        missing = 48 - sum(counts)
        if missing <= 0:
            break
        size = wanted(counts[turn], SwarmCount(sum(counts) - counts[turn], 4, NEWS), 48, micro)
        assert 0 < size <= MOST
        assert (size - 1) * micro < missing
        counts[turn] += size * micro


@pytest.mark.parametrize(
    ("own", "own_per_s", "swarm", "batch", "pause"),
    [
        (100, 10.0, SwarmCount(100, 4, 0.0, 30.0), 1000, SELDOM_S),  # its share is far
        (250, 10.0, SwarmCount(100, 4, 0.0, 30.0), 1000, READ_S),  # beyond it, it waits for news
        (100, 10.0, SwarmCount(100, 4, 0.0, 30.0), 400, READ_S),  # five seconds to go
        (100, 0.0, SwarmCount(peers=4), 1000, READ_S),  # no peer knows
    ],
)
def test_leases_are_read_often_only_when_something_depends_on_them(
    own: int, own_per_s: float, swarm: SwarmCount, batch: int, pause: float
) -> None:
    assert reading_pause(own, own_per_s, swarm, batch) == pause
    assert with_news(pause, hears_all=False) == pause
    assert with_news(pause, hears_all=True) == (READ_S if pause == READ_S else RARELY_S)


@pytest.mark.parametrize(
    ("passes", "usual_s"),
    [
        ([(4, 1.0), (8, 2.0), (8, 2.2)], 2.0),  # the largest at the usual pace
        # a suspended machine is not slow
        ([(8, 0.5)] * 5 + [(8, 30.0)] + [(8, 0.5)] + [(4, 20.0)], 0.5),
    ],
)
def test_a_pass_takes_what_it_usually_takes(
    passes: list[tuple[int, float]], usual_s: float
) -> None:
    recent = [Pass(100.0, 100.0 + seconds, count) for count, seconds in passes]
    assert usual_pass_seconds(recent) == pytest.approx(usual_s)


def test_the_rate_is_of_the_last_half_minute_with_its_idle_time() -> None:
    passes = [Pass(0.0, 10.0, 8), Pass(10.0, 15.0, 8), Pass(20.0, 25.0, 4)]
    assert sequences_per_s(passes, 25.0) == 20 / 25.0
    assert sequences_per_s(passes, 42.0) == 12 / 32.0
    assert sequences_per_s(passes, 60.0) == sequences_per_s([], 60.0) == 0.0
    assert sequences_per_s([Pass(0.0, 60.0, 12)], 100.0) == 0.12, "the next long pass is under way"


HEAD, BEFORE = b"h" * 32, b"b" * 32
LEAVING, PAUSED = PeerState.LEAVING, PeerState.PAUSED
FIRST = genesis(
    bytes(32),
    bytes(32),
    Voter("us", bytes(16)),
    ChainRules(trusted=frozenset({"member", "excluded"})),
)
TENURED = replace(FIRST, digest=HEAD, round=2, members=("member", "us", "excluded"))
"""Head at which every peer but the guest and the stranger has tenure."""


@pytest.mark.parametrize(
    ("peer", "lease", "sequences", "shares"),
    [
        ("member", {}, 7, True),  # at our head
        ("member", {"head": b"x" * 32, "round": 9, "sequences": 100}, 0, False),  # elsewhere
        ("member", {"head": BEFORE, "round": 1}, 0, True),  # its new lease is on its way
        ("guest", {"head": BEFORE, "round": 1}, 0, False),
        ("member", {"state": LEAVING}, 7, True),  # counted work comes first
        ("member", {"state": LEAVING, "sequences": 0}, 0, False),
        ("member", {"state": LEAVING, "head": BEFORE, "round": 1}, 0, False),  # begins nothing
        ("member", {"state": PAUSED}, 7, False),  # its counted work counts
        ("member", {"state": PAUSED, "head": BEFORE, "round": 1}, 0, False),
        ("excluded", {}, 0, False),
        ("stranger", {}, 0, False),  # it answered no attempt
        ("guest", {}, 4, True),  # no tenure, and claims more than its share
        ("guest", {"sequences": 3}, 3, True),  # no tenure, and claims less
        ("member", {"state": PeerState.SYNCING, "head": BEFORE, "round": 1}, 0, False),
    ],
)
def test_who_shares_the_work(
    peer: str, lease: dict[str, Any], sequences: int, shares: bool
) -> None:
    plain = {
        "peer_id": peer, "head": HEAD, "round": 2, "sequences": 7, "sequences_per_s": 1.0,
        "state": PeerState.ACCUMULATING,
    }  # fmt: skip
    fresh: Any = {peer: SimpleNamespace(**plain | lease)}
    machine: Any = SimpleNamespace(
        head=TENURED,
        me=SimpleNamespace(peer_id="us"),
        global_batch=8,
        counted_peers=55,
        answered={"guest"},
        excluded={"excluded"},
    )
    found = count_swarm(machine, View(fresh, seen_at=50.0))
    assert (found.others_sequences, found.peers, found.seen_at) == (sequences, 1 + shares, 50.0)
