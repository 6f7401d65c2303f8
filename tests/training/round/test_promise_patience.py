"""How long a coordinator waits for promises: by what the passes of peers usually take."""

from dataclasses import replace

import pytest
from shown_leases import A, B, C, D, head_of, lease, view

from atom.training.round import Terms
from atom.training.round.batch_policy import GlobalBatch
from atom.training.round.round_state import RoundContext, RoundState

HEAD = head_of(A, B, C)


def patience(own: float, *passes: float, guest: float = 0.0, aside: str = "") -> float:
    """A's, of its own pass, of B's and C's and a guest's. Seconds, all."""
    context = RoundContext(
        A, Terms(GlobalBatch(8)), lambda domain, payload: b"", RoundState(HEAD, b"s" * 32, 0.0)
    )
    of_each = zip((B, C, D), (*passes, guest), strict=True)
    context.view = view(*(lease(who, HEAD.digest, pass_seconds=took) for who, took in of_each))
    context.view = replace(context.view, pass_seconds=own)
    return context.promise_patience(frozenset({aside}))


@pytest.mark.parametrize(
    ("passes", "seconds"),
    [
        ((0.1, 0.1, 0.2), 1.0),
        ((1.0, 1.0, 20.0), 40.5),
        ((1.0, 1.0, 200.0), 60.0),
        ((50.0, 50.0, 100.0), 200.5),
        ((50.0, 50.0, 200.0), 250.0),
        ((50.0, 1e9, 50.0), 250.0),
        ((50.0, 1e9, 0.0), 250.0),
    ],
    ids=[
        "at least", "the slowest, twice", "at most", "passes are long",
        "five usual ones", "a liar", "one that has measured none",
    ],
)  # fmt: skip
def test_a_slow_peer_is_waited_for_as_long_as_passes_allow(
    passes: tuple[float, float, float], seconds: float
) -> None:
    assert patience(*passes) == pytest.approx(seconds)


def test_who_is_aside_is_not_waited_for() -> None:
    assert patience(1.0, 1.0, 20.0, aside=C.peer_id) == 2.5


def test_a_guest_is_waited_for_as_long_as_those_that_are_known() -> None:
    """It costs nothing to come as one."""
    assert patience(1.0, 1.0, 1.0, guest=25.0) == 20.5
    assert patience(22.0, 23.0, 23.0, guest=25.0) == 46.5
    assert patience(12.0, 12.0, 12.0, guest=1e9) == 24.5
    assert patience(30.0, 30.0, 30.0, guest=28.0) == 60.5
