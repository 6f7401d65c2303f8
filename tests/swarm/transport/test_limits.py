"""Places for strangers and known peers, duration of quarantines, and bounds of the log."""

import threading
from collections.abc import Iterator
from dataclasses import replace

import pytest

from atom.base.errors import Reason
from atom.swarm.identity import Identity
from atom.swarm.stream.frames import Channel
from atom.swarm.stream.handshake import Local
from atom.swarm.transport import limits
from atom.swarm.transport.dialer import Lanes
from atom.swarm.transport.limits import (
    EVENTS_AT_ONCE,
    FORGOTTEN_S,
    MOST_REMEMBERED,
    OFFENCES,
    Backoff,
    Endpoint,
    Handlers,
    KnownPeers,
    ThreadGroup,
    Unreachable,
    offend,
)
from tests.event_list import EventList
from tests.manual_clock import ManualClock
from tests.swarm.stream_pairs import stream_pair
from tests.swarm.transport_peers import SOON, until

# ---- exclusion


def test_a_hold_doubles_up_to_the_longest_and_is_forgotten_or_forgiven() -> None:
    waits, now, held = Backoff(10.0, 40.0), 0.0, []
    for _ in range(4):
        held.append(waits.fail("a", now))
        assert waits.held(now + held[-1] - 1.0) == {"a"}
        now += held[-1]
        assert waits.held(now) == frozenset()
    assert held == [10.0, 20.0, 40.0, 40.0]
    assert waits.failures("a") == 4
    assert waits.fail("a", now + FORGOTTEN_S - 1.0) == 40.0
    assert waits.fail("a", now + 3 * FORGOTTEN_S) == 10.0
    waits.forgive("a")
    assert (waits.failures("a"), waits.held(now)) == (0, frozenset())
    for number in range(MOST_REMEMBERED + 10):
        waits.fail(f"peer {number}", 0.0)
    assert len(waits.held(0.0)) == MOST_REMEMBERED


def test_only_an_offence_puts_a_peer_aside() -> None:
    offenders = Backoff(10.0, 40.0)
    for reason in Reason:
        assert offend(offenders, reason.value, reason, 0.0) == 10.0 * (reason in OFFENCES)


# ---- destinations and events

CROWD = [f"stranger {number:02}" for number in range(100)]


@pytest.fixture
def endpoint(monkeypatch: pytest.MonkeyPatch) -> Iterator[Endpoint]:
    monkeypatch.setattr(limits, "MAX_DESTINATIONS", 2 * len(CROWD))
    monkeypatch.setattr(limits, "MAX_QUEUED_MESSAGES", 1)
    events = EventList()
    local = Local(Identity.create(), bytes(32), bytes(16))
    made = Endpoint(local, events, ThreadGroup(events), ManualClock())
    yield made
    made.closing.set()


def test_a_place_is_kept_for_each_voter() -> None:
    """A swarm may know more peers than there are places, and no round is decided without voters."""
    known = KnownPeers()
    known.at_head([*CROWD, "voter", "other voter"], ["voter", "other voter"])
    assert known.has_room("one more", CROWD[:7], 10)
    assert not known.has_room("one more", CROWD[:8], 10)
    assert known.has_room("voter", CROWD[:8], 10)
    assert known.has_room("voter", [*CROWD[:8], "other voter"], 10)
    assert not known.has_room("one more", [*CROWD[:8], "voter"], 10), "the other voter may come"
    assert not known.has_room("voter", CROWD[:10], 10)


def test_lanes_keep_places_for_known_peers_and_floods_do_not_fill_the_log(
    endpoint: Endpoint,
) -> None:
    """A peer that asks for promises sends to all peers at its head, in the order of their ids."""
    dialled, over = list[str](), threading.Event()

    def nobody_answers(peer_id: str) -> Channel:
        dialled.append(peer_id)
        assert over.wait(SOON)
        raise Unreachable(peer_id)

    lost = list[str]()
    heard = replace(endpoint, handlers=Handlers(on_unreachable=lost.append))
    lanes = Lanes(heard, nobody_answers)
    endpoint.known.at_head(["voter"])
    told = [peer_id for peer_id in (*CROWD, "one more", "voter") if lanes.send(peer_id, b"call")]
    assert told == [*CROWD, "voter"]
    until(lambda: len(dialled) == len(told))
    assert lanes.send("voter", b"next")
    assert not lanes.send("voter", b"too many")
    over.set()
    until(lambda: len(lost) == len(told))
    assert endpoint.threads.join(SOON)
    assert isinstance(endpoint.events, EventList)
    kinds = [event["event"] for event in endpoint.events.events]
    assert kinds.count("peer-unreachable") == EVENTS_AT_ONCE
    assert kinds.count("message-dropped") == 1
    assert lanes.send(CROWD[0], b"a new lane")
    endpoint.closing.set()
    lanes.wake()
    assert endpoint.threads.join(SOON)


def test_what_is_opened_while_all_is_closed_ends_at_once(endpoint: Endpoint) -> None:
    one, late = (Channel(stream) for stream in stream_pair())
    endpoint.keep(one)
    endpoint.closing.set()
    endpoint.keep(late)
    assert (one.closed.is_set(), late.closed.is_set()) == (False, True)
