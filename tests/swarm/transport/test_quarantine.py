"""Who is put aside, and for how long: bounded, doubling, forgotten."""

from collections.abc import Callable

import pytest
from transport_peers import Peer, make_tcp_peer

from atom.base.clock import BootClock
from atom.base.reasons import Reason
from atom.swarm.stream.frames import Purpose
from atom.swarm.transport.limits import (
    FORGOTTEN_S,
    LONGEST_HOLD_S,
    MOST_REMEMBERED,
    OFFENCES,
    Backoff,
    Quarantine,
)

__all__ = ["make_tcp_peer"]


def test_an_offence_holds_for_a_while() -> None:
    quarantine = Quarantine()
    assert quarantine.offend("a", Reason.MALFORMED, 100.0) == 5.0
    assert quarantine.aside(104.0) == {"a"}
    assert quarantine.aside(106.0) == frozenset()


def test_a_hold_doubles_up_to_ten_minutes() -> None:
    quarantine, now, held = Quarantine(), 0.0, []
    for _ in range(10):
        held.append(quarantine.offend("a", Reason.TIMEOUT, now))
        now += held[-1]
    assert held == [5.0, 10.0, 20.0, 40.0, 80.0, 160.0, 320.0, *[LONGEST_HOLD_S] * 3]


def test_whom_is_forgiven_fails_for_the_first_time_again() -> None:
    waits = Backoff(10.0, 40.0)
    for times in (1, 2, 3):
        waits.fail("a", 0.0)
        assert (waits.failures("a"), waits.left_s("a", 0.0)) == (times, 5.0 * 2**times)
    waits.forgive("a")
    waits.forgive("b")
    assert (waits.failures("a"), waits.held(0.0)) == (0, frozenset())


def test_old_offences_are_forgotten() -> None:
    quarantine = Quarantine()
    quarantine.offend("a", Reason.TIMEOUT, 0.0)
    assert quarantine.offend("a", Reason.TIMEOUT, 5.0 + FORGOTTEN_S - 1.0) == 10.0
    assert quarantine.offend("a", Reason.TIMEOUT, 3 * FORGOTTEN_S) == 5.0


def test_other_reasons_are_no_offences() -> None:
    quarantine = Quarantine()
    for reason in set(Reason) - OFFENCES:
        assert quarantine.offend("a", reason, 0.0) == 0.0


def test_it_remembers_few() -> None:
    quarantine = Quarantine()
    for number in range(MOST_REMEMBERED + 10):
        quarantine.offend(f"peer {number}", Reason.TIMEOUT, 0.0)
    assert len(quarantine.aside(0.0)) == MOST_REMEMBERED


# ---- connections


@pytest.mark.parametrize("purpose", [Purpose.MESSAGES, Purpose.BLOBS, Purpose.RING])
def test_a_peer_that_is_aside_may_connect(
    make_tcp_peer: Callable[..., Peer], purpose: Purpose
) -> None:
    """A quorum may need its vote, and of two the other one is the only donor."""
    one, two = make_tcp_peer(), make_tcp_peer()
    one.knows(two)
    two.transport.set_handlers(on_blobs=lambda channel: None)
    here, now = one.peer_id, BootClock().now()
    assert two.transport.quarantine.offend(here, Reason.STATE_MISMATCH, now) > 0
    one.transport.connect(two.peer_id, purpose).close()
