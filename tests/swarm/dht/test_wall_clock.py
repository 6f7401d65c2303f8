from atom.swarm.dht.wall_clock import STEP_SECONDS, WallClock
from tests.manual_clock import ManualClock


def test_only_a_step_back_is_one() -> None:
    steady, set_to = ManualClock(), [1000.0]
    clock = WallClock(steady, lambda: set_to[0] + steady.now())
    told = []
    for step in (
        0.0,
        3600.0,
        -3600.0,
        0.0,
        -STEP_SECONDS / 2,
        -STEP_SECONDS / 2,
        -2 * STEP_SECONDS,
    ):
        steady.advance(1.0)
        set_to[0] += step
        told.append(clock.was_set_back())
    assert told == [False, False, True, False, False, False, True]
