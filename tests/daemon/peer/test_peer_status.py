"""What a peer says of itself."""

from atom.base.events import EventFan
from atom.base.reasons import Reason
from atom.daemon.peer.status import EndedAttempts
from tests.event_list import EventList


def test_the_last_four_attempts_in_vain_are_kept_beside_the_log() -> None:
    log, ended = EventList(), EndedAttempts()
    events = EventFan(log, ended)
    for number in range(1, 7):
        events.emit("attempt-ended", round=number, reason="ring-broken", stage="ring")
    events.emit("attempt-ended", round=7, reason="superseded", stage="ring")
    events.emit("round", round=7)
    assert ended.last == tuple((number, Reason.RING_BROKEN) for number in (3, 4, 5, 6))
    assert len(log.events) == 8
