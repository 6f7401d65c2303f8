"""How long a coordinator waits for promises: by what peers' passes and rounds lately took."""

import pytest
from shown_leases import A, B, C, D, head_of, lease, view

from atom.training.round import Terms
from atom.training.round.batch_policy import GlobalBatch
from atom.training.round.round_state import RoundContext, RoundState, usual_most

HEAD = head_of(A, B, C)


def patience(
    *passes: float, guest: float = 0.0, rounds: tuple[float, ...] = (), aside: str = ""
) -> float:
    """A's, of B's and C's passes and a guest's, after rounds that took so long. Seconds, all."""
    context = RoundContext(
        A, Terms(GlobalBatch(8)), lambda domain, payload: b"", RoundState(HEAD, b"s" * 32, 0.0)
    )
    for took_s in rounds:
        context.now += took_s
        context.enter_head(HEAD, b"s" * 32)
    of_each = zip((B, C, D), (*passes, guest), strict=True)
    context.view = view(*(lease(who, HEAD.digest, pass_seconds=took) for who, took in of_each))
    return context.promise_patience(frozenset({aside}))


@pytest.mark.parametrize(
    ("passes", "rounds", "seconds"),
    [
        ((0.1, 0.2), (), 1.0),
        ((1.0, 20.0), (), 40.5),
        ((1.0, 200.0), (), 60.0),
        ((1.0, 200.0), (900.0, 1000.0, 1100.0), 400.5),
        ((1.0, 1e9), (900.0, 1000.0, 1100.0), 1300.0),
        ((1.0, 1e9), (10.0, 10.0, 9000.0), 60.0),
        ((1.0, 1e9), (*[9000.0] * 9, *[10.0] * 5), 60.0),
    ],
    ids=[
        "at least", "the slowest, twice", "rounds nobody has seen", "rounds are long",
        "no longer than rounds", "one that stood still is no measure", "as they lately are",
    ],
)  # fmt: skip
def test_a_slow_peer_is_waited_for_as_long_as_rounds_take(
    passes: tuple[float, float], rounds: tuple[float, ...], seconds: float
) -> None:
    assert patience(*passes, rounds=rounds) == pytest.approx(seconds)


def test_who_is_aside_is_not_waited_for() -> None:
    assert patience(1.0, 20.0, aside=C.peer_id) == 2.5


def test_a_guest_is_waited_for_as_long_as_those_that_are_known() -> None:
    """It costs nothing to come as one."""
    assert patience(1.0, 1.0, guest=25.0) == 20.5
    assert patience(22.0, 23.0, guest=25.0) == pytest.approx(50.5)
    assert patience(12.0, 12.0, guest=1e9, rounds=(9000.0,) * 3) == 24.5


def test_the_usual_most_is_by_the_median() -> None:
    assert usual_most([]) == 0.0
    assert usual_most([5.0]) == 5.0
    assert usual_most([1.0, 2.0, 3.0, 4.0, 1e9]) == 3.0 + 3 * 1.0
