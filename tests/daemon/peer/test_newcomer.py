"""A round with one peer more, by hand."""

from dataclasses import replace

import pytest

from atom.daemon.peer.slow_joining import RoundNow, seconds_with

NOW = RoundNow(peers=3, seconds=20.0, passes_s=12.0, sequences=120, overlapped=False)
"""10 sequences a second, and an exchange of 8 s: 4 / 3 averages through lines of 6 s each."""


def test_a_peer_like_the_others_takes_its_share_and_adds_to_the_exchange() -> None:
    """120 by 40 / 3 a second are 9 s; 3 / 2 averages through a line of 6 s are 9 s."""
    assert seconds_with(NOW, 6.0, 10 / 3) == pytest.approx(18)


def test_a_thin_line_is_waited_for() -> None:
    """However fast it computes: 12 and 5 a second take 8 s, its average takes 60."""
    assert seconds_with(NOW, 60.0, 5.0) == pytest.approx(68)
    assert seconds_with(NOW, 60.0) == 60


def test_who_computes_next_to_nothing_on_such_a_line_slows_a_round_down() -> None:
    assert seconds_with(NOW, 6.0, 1e-9) == pytest.approx(21)


def test_a_fast_line_carries_what_others_would_have() -> None:
    """In all 6 averages, by lines of 3 / 6 and 1 / 2 a second: 6 s."""
    assert seconds_with(NOW, 2.0, 5.0) == pytest.approx(8 + 6)


def test_under_passes_a_line_counts_only_where_it_takes_longer() -> None:
    under = replace(NOW, seconds=12.0, overlapped=True)
    assert seconds_with(under, 6.0, 5.0) == pytest.approx(8)
    assert seconds_with(under, 60.0, 5.0) == 60


def test_one_peer_alone_had_no_exchange() -> None:
    alone = RoundNow(peers=1, seconds=12.0, passes_s=12.0, sequences=120, overlapped=False)
    assert seconds_with(alone, 6.0, 10.0) == pytest.approx(6 + 6)
    idle = replace(alone, passes_s=0.0)
    assert seconds_with(idle, 6.0, 10.0) == 12
