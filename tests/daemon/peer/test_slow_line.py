"""A line that costs the swarm more than its peer gives: tried, judged, tried again."""

from itertools import pairwise

import pytest

from atom.daemon.peer.slow_line import (
    RESTS_S,
    ROUNDS,
    SETTLING,
    Caps,
    Seen,
    SlowLine,
    seen_after,
)
from atom.swarm.chain.commit import Value
from atom.swarm.records.lease import Lease, Link, RoundUse, short_name
from tests.daemon.peer.test_news import value
from tests.swarm.swarm_samples import a_lease

TRY = SETTLING + ROUNDS
FAST, SLOW = 100e6, 2.5e6


class Swarm:
    """Rounds of 64 sequences: so many seconds with this peer in them, and without it."""

    def __init__(self, with_s: float, without_s: float) -> None:
        self.with_s, self.without_s = with_s, without_s
        self.line, self.now, self.round = SlowLine(), 0.0, 0
        self.suspect, self.others = True, 2
        self.caps: Caps = (2e6, None)

    def rounds(self, count: int) -> list[bool]:
        """Whether it stands aside after each."""
        return [self.one() for _ in range(count)]

    def one(self) -> bool:
        seconds = self.without_s if self.line.aside else self.with_s
        self.now, self.round = self.now + seconds, self.round + 1
        seen = Seen(self.round, seconds, 64 / seconds, not self.line.aside, self.suspect)
        self.line.look(seen, self.others, self.now, self.caps)
        return bool(self.line.aside)

    def wait(self, seconds: float) -> bool:
        """Without a round."""
        self.now += seconds
        self.line.look(None, self.others, self.now, self.caps)
        return bool(self.line.aside)


def test_it_stands_aside_where_the_swarm_is_faster_without_it() -> None:
    swarm = Swarm(1.6, 0.4)
    assert swarm.rounds(TRY) == [False] * (TRY - 1) + [True]
    assert swarm.line.aside.startswith("to see whether")
    assert swarm.rounds(TRY) == [True] * TRY
    assert swarm.line.aside == (
        "its line costs the swarm more than it gives: 4.0 times as fast without it; "
        "it tries again after 30 min"
    )


def test_a_try_that_gains_nothing_is_not_repeated_soon() -> None:
    swarm = Swarm(1.6, 1.6)
    assert swarm.rounds(2 * TRY)[-1] is False
    assert not any(swarm.rounds(1000)), "1,600 of 1,800 s"
    swarm.now += RESTS_S
    assert any(swarm.rounds(TRY))


def test_nobody_is_locked_out_and_nobody_flaps() -> None:
    swarm = Swarm(1.6, 0.4)
    swarm.rounds(2 * TRY)
    states = swarm.rounds(20_000)
    changes = sum(a != b for a, b in pairwise(states))
    assert changes == 2 * int(swarm.now // (RESTS_S + 3 * TRY)), (
        "back and away once in half an hour"
    )
    swarm.suspect = False
    assert not any(swarm.rounds(10_000)[-1000:]), "the line is as fast as the others by now"


def test_long_rounds_are_tried_seldom() -> None:
    swarm = Swarm(600.0, 60.0)
    assert not any(swarm.rounds(TRY)[:-1])
    assert all(swarm.rounds(TRY + 190)), "20 of the 600 s each"
    assert not all(swarm.rounds(20))


def test_who_is_left_alone_with_one_goes_on_at_once() -> None:
    swarm = Swarm(1.6, 0.4)
    assert swarm.rounds(TRY)[-1]
    swarm.others = 1
    assert not swarm.wait(0.1)
    swarm.others = 2
    assert not any(swarm.rounds(100)), "and does not try again soon"


@pytest.mark.parametrize("rounds", [TRY, 2 * TRY], ids=["tried", "judged"])
def test_with_other_caps_it_comes_back_at_once_and_is_tried_anew(rounds: int) -> None:
    swarm = Swarm(1.6, 0.4)
    assert swarm.rounds(rounds)[-1]
    swarm.caps = (20e6, None)
    assert not swarm.wait(0.1)
    assert swarm.rounds(TRY) == [False] * (TRY - 1) + [True]


def test_a_trial_without_rounds_ends() -> None:
    swarm = Swarm(1.6, 0.4)
    assert swarm.rounds(TRY)[-1]
    assert swarm.wait(30.0)
    assert not swarm.wait(5.0)


def test_two_peers_or_no_suspicion_are_no_reason() -> None:
    swarm = Swarm(1.6, 0.4)
    swarm.others = 1
    assert not any(swarm.rounds(50))
    swarm.others, swarm.suspect = 2, False
    assert not any(swarm.rounds(50))


# ---- when a line is suspected

NAMES = [f"12D3KooW{letter * 44}" for letter in "ABC"]
A, B, C = NAMES


def leases(rates: dict[tuple[str, str], float]) -> dict[str, Lease]:
    def links(peer: str) -> tuple[Link, ...]:
        ways = [(other, rate) for (sender, other), rate in rates.items() if sender == peer]
        return tuple(Link(short_name(other), 0.01, rate) for other, rate in ways)

    return {peer: a_lease(peer, links=links(peer)) for peer in NAMES}


def round_of(counts: tuple[int, int, int]) -> Value:
    return value(7, *zip(NAMES, counts, strict=True))


ALL_FAST = {(a, b): FAST for a in NAMES for b in NAMES if a != b}
OURS_SLOW = ALL_FAST | {(A, B): SLOW, (A, C): SLOW}


@pytest.mark.parametrize(
    ("rates", "counts", "utilisation", "average_bytes", "suspect"),
    [
        (OURS_SLOW, (20, 20, 24), 0.1, 4e6, True),
        (OURS_SLOW, (20, 20, 24), 0.9, 4e6, False),  # passes take most of the time
        (OURS_SLOW, (60, 2, 2), 0.3, 4e6, False),  # it gives most
        (OURS_SLOW, (0, 40, 24), 0.1, 4e6, False),  # it gave nothing: it was not waited for
        (OURS_SLOW, (64, 0, 0), 0.1, 4e6, False),
        (OURS_SLOW, (20, 20, 24), 0.1, 4e5, False),  # something else takes that time
        (ALL_FAST, (20, 20, 24), 0.1, 4e6, False),
        ({}, (20, 20, 24), 0.1, 4e6, False),
        (OURS_SLOW | {(B, A): SLOW, (B, C): SLOW}, (20, 20, 24), 0.1, 4e6, False),  # as slow
    ],
)
def test_a_line_is_suspected_if_it_alone_is_what_all_wait_for(
    rates: dict[tuple[str, str], float],
    counts: tuple[int, int, int],
    utilisation: float,
    average_bytes: float,
    suspect: bool,
) -> None:
    use = RoundUse(2.0, utilisation, 0, 0)
    seen = seen_after(round_of(counts), use, A, leases(rates), average_bytes)
    assert seen.suspect is suspect
    assert (seen.seconds, seen.sequences_per_s) == (2.0, 32.0)
