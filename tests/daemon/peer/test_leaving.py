"""What is known of a leave, by whatever thread it is looked at."""

from atom.daemon.peer.leaving import Life
from tests.manual_clock import ManualClock


def test_who_stays_for_the_others_sake_says_so_once() -> None:
    life = Life(ManualClock())
    life.leave(60.0, dropped=0)
    told = list[bool]()
    for settled_at in (None, 1.0, 1.0):
        life.update(others_stuck=True, settled_at=settled_at)
        told.append(bool(life.stays_for_others()))
    assert told == [False, True, False]


def test_a_leave_is_settled_once_and_what_a_round_dropped_is_known() -> None:
    life = Life(ManualClock())
    life.leave(60.0, dropped=8)
    assert not life.settles(counted=4, dropped=8)
    assert not life.facts.work_dropped
    assert life.settles(counted=0, dropped=12)
    assert life.facts.work_dropped
    assert not life.settles(counted=0, dropped=12)
