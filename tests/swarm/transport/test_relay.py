"""A relayed connection ends when both of its directions are silent, and not before; what is relayed
keeps to the caps of the box."""

import threading
import time
from typing import cast

from atom.base.events import EventList
from atom.swarm.identity import Identity
from atom.swarm.stream.bandwidth import Bandwidth
from atom.swarm.stream.frames import Patience
from atom.swarm.stream.handshake import Local
from atom.swarm.stream.socket_stream import SocketStream
from atom.swarm.transport.limits import Endpoint, ThreadGroup, TransportLimits
from atom.swarm.transport.reverse_connections import Pair, Relay, ReverseConnections
from tests.manual_clock import ManualClock


def test_a_relayed_ring_may_be_silent_in_one_direction() -> None:
    clock, events = ManualClock(), EventList()
    local = Local(Identity.create(), bytes(32), bytes(16))
    endpoint = Endpoint(
        local, TransportLimits(), events, clock, ThreadGroup(events), threading.Event()
    )
    relay = Relay(endpoint, ReverseConnections(endpoint), lambda peer_id: True)
    pair = Pair(clock.now())
    waits: list[float] = []

    class Silent:
        """While it is waited for, the other direction carries something, for a while."""

        def recv_some(self, view: memoryview, patience: Patience) -> int:
            waits.append(patience.silence_s)
            clock.advance(patience.silence_s / 2)
            if len(waits) < 4:
                pair.carried_at = clock.now()
            clock.advance(patience.silence_s / 2)
            raise TimeoutError

        def close(self) -> None:
            pass

    silent = cast(SocketStream, Silent())
    relay._copy(silent, silent, pair)
    assert waits == [120.0, 60.0, 90.0, 75.0]


def test_a_machine_that_slept_relays_within_its_caps() -> None:
    """The endpoint's clock went on meanwhile, that of the box's other streams did not."""
    clock, events = ManualClock(time.monotonic() + 8 * 3600), EventList()
    local = Local(Identity.create(), bytes(32), bytes(16))
    bandwidth = Bandwidth.of(8 * 1024, None)
    endpoint = Endpoint(
        local, TransportLimits(), events, clock, ThreadGroup(events), threading.Event(), bandwidth
    )
    relay = Relay(endpoint, ReverseConnections(endpoint), lambda peer_id: True)
    own_s = bandwidth.upload.take(1024 * 3600, time.monotonic())
    assert own_s > 3000
    assert relay._wait_s(1024) > 3000
