"""Who is put aside, and for how long: bounded, doubling, forgotten; and what the door does then."""

import socket
from collections.abc import Callable

import pytest
from transport_peers import SOON, Peer, make_tcp_peer

from atom.base.clock import BootClock
from atom.base.errors import PeerRefused
from atom.base.reasons import Reason
from atom.swarm.chain.messages import MAX_MESSAGE_BYTES
from atom.swarm.stream.frames import Kind, Patience, Purpose
from atom.swarm.transport.doorkeeper import Doorkeeper
from atom.swarm.transport.endpoint import TransportLimits
from atom.swarm.transport.quarantine import (
    FIRST_HOLD_S,
    FOR_GOOD_S,
    FORGOTTEN_S,
    LONGEST_HOLD_S,
    MOST_REMEMBERED,
    Quarantine,
)

__all__ = ["make_tcp_peer"]


def test_an_offence_holds_for_a_while() -> None:
    quarantine = Quarantine()
    assert quarantine.offend("a", Reason.MALFORMED, 100.0) == 30.0
    assert quarantine.holds("a", 129.0)
    assert quarantine.aside(129.0) == {"a"}
    assert not quarantine.holds("a", 131.0)
    assert not quarantine.holds("b", 100.0)


def test_one_accident_is_short_and_habits_double_up_to_ten_minutes() -> None:
    quarantine, now, held = Quarantine(), 0.0, []
    for _ in range(10):
        held.append(quarantine.offend("a", Reason.TIMEOUT, now))
        now += held[-1]
    assert held == [5.0, 10.0, 20.0, 40.0, 80.0, 160.0, 320.0, *[LONGEST_HOLD_S] * 3]


def test_what_was_long_ago_is_forgotten() -> None:
    quarantine = Quarantine()
    quarantine.offend("a", Reason.TIMEOUT, 0.0)
    assert quarantine.offend("a", Reason.TIMEOUT, 5.0 + FORGOTTEN_S - 1.0) == 10.0
    assert quarantine.offend("a", Reason.TIMEOUT, 3 * FORGOTTEN_S) == 5.0


def test_a_smaller_offence_does_not_shorten_a_hold() -> None:
    quarantine = Quarantine()
    quarantine.offend("a", Reason.MALFORMED, 0.0)
    assert quarantine.offend("a", Reason.TIMEOUT, 1.0) == 29.0


def test_equivocation_is_for_good_and_does_not_make_room() -> None:
    quarantine = Quarantine()
    quarantine.offend("a", Reason.EQUIVOCATION, 0.0)
    for number in range(MOST_REMEMBERED + 10):
        quarantine.offend(f"peer {number}", Reason.TIMEOUT, float(number))
    assert quarantine.is_for_good("a")
    assert quarantine.holds("a", 1e9)
    assert not quarantine.is_for_good("peer 4000")
    assert len(quarantine.aside(0.0)) == MOST_REMEMBERED
    assert quarantine.offend("a", Reason.MALFORMED, 1.0) >= FOR_GOOD_S - 1.0


def test_whose_state_is_odd_is_aside_and_finds_the_door_open() -> None:
    quarantine = Quarantine()
    quarantine.offend("a", Reason.STATE_MISMATCH, 0.0)
    assert quarantine.aside(1.0) == {"a"}
    assert not quarantine.keeps_out("a", 1.0)
    quarantine.offend("a", Reason.TIMEOUT, 1.0)
    assert quarantine.keeps_out("a", 10.9)
    quarantine.offend("a", Reason.STATE_MISMATCH, 10.0)
    assert quarantine.holds("a", 20.0)
    assert not quarantine.keeps_out("a", 11.0), "no longer than for the other offence"


def test_what_is_no_offence_holds_nobody() -> None:
    quarantine = Quarantine()
    for reason in set(Reason) - set(FIRST_HOLD_S):
        assert quarantine.offend("a", reason, 0.0) == 0.0
    quarantine.offend("a", Reason.TIMEOUT, 0.0)
    quarantine.forgive("a")
    quarantine.forgive("b")
    assert quarantine.aside(0.0) == frozenset()


# ---- the door


def refusal(one: Peer, other: Peer, purpose: Purpose) -> Reason:
    with pytest.raises(PeerRefused) as refused:
        one.transport.connect(other.transport.peer_id, purpose)
    return refused.value.reason


def test_who_is_aside_may_send_messages_and_nothing_else(
    make_tcp_peer: Callable[..., Peer],
) -> None:
    one, two = make_tcp_peer(), make_tcp_peer()
    one.knows(two)
    here = one.transport.peer_id
    channel = one.transport.connect(two.transport.peer_id, Purpose.MESSAGES)
    length = MAX_MESSAGE_BYTES + 1
    channel.send_header(Kind.MESSAGE, length, Patience(SOON))
    two.events.wait("connection-dropped", reason="too-large", peer_id=here)
    assert refusal(one, two, Purpose.RING) is Reason.QUARANTINED
    assert refusal(one, two, Purpose.BLOBS) is Reason.QUARANTINED
    one.transport.send(two.transport.peer_id, b"my vote")
    assert two.heard.get(timeout=SOON)[2] == b"my vote"
    channel.close()


@pytest.mark.parametrize("purpose", [Purpose.BLOBS, Purpose.RING])
def test_whose_state_was_odd_is_let_in(
    make_tcp_peer: Callable[..., Peer], purpose: Purpose
) -> None:
    """Of two, the other one is the only donor. And once it has fetched its state, rings that others
    compose may have them as neighbours."""
    one, two = make_tcp_peer(), make_tcp_peer()
    one.knows(two)
    two.transport.set_handlers(on_blobs=lambda channel: None)
    here, now = one.transport.peer_id, BootClock().now()
    assert two.transport.quarantine.offend(here, Reason.STATE_MISMATCH, now) > 0
    one.transport.connect(two.transport.peer_id, purpose).close()


def test_who_is_aside_for_good_stays_outside(make_tcp_peer: Callable[..., Peer]) -> None:
    one, two = make_tcp_peer(), make_tcp_peer()
    one.knows(two)
    two.transport.quarantine.offend(one.transport.peer_id, Reason.EQUIVOCATION, 0.0)
    assert refusal(one, two, Purpose.MESSAGES) is Reason.QUARANTINED


def test_garbage_from_a_host_leaves_its_neighbours_a_way_in(
    make_tcp_peer: Callable[..., Peer],
) -> None:
    one, two = make_tcp_peer(), make_tcp_peer()
    one.knows(two)
    with socket.create_connection(two.transport.address) as stranger:
        stranger.sendall(b"GET / HTTP/1.1\r\n\r\n")
        two.events.wait("connection-refused", reason="bad-handshake")
    one.transport.send(two.transport.peer_id, b"hello")
    assert two.heard.get(timeout=SOON)[2] == b"hello"


def test_a_distrusted_host_has_fewer_handshakes_at_a_time() -> None:
    door = Doorkeeper(TransportLimits(handshakes_per_host=4, handshakes_distrusted=1), ())
    assert door.enter("host", distrusted=True)
    assert not door.enter("host", distrusted=True)
    assert door.enter("host")
