"""Peers of a run with a list speak with each other, and with nobody else."""

import asyncio
import socket
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace

import pytest
from swarm_samples import TINY_RUN, a_lease, a_manifest

from atom.base.errors import PeerRefused
from atom.base.events import EventList
from atom.base.reasons import Reason
from atom.config.load import normalised_run_text, parse_run_text
from atom.swarm.identity import Identity
from atom.swarm.records.codec import encode_manifest
from atom.swarm.records.lease import LEASE_SECONDS
from atom.swarm.records.manifest import (
    OPEN,
    AllowList,
    Manifest,
    seen_from_outside,
)
from atom.swarm.stream import handshake
from atom.swarm.stream.frames import Channel, Patience, Purpose
from atom.swarm.stream.handshake import Local
from atom.swarm.stream.tls import make_credentials, wrap
from atom.swarm.transport.transport import Transport
from tests.manual_clock import ManualClock
from tests.swarm.directory_memory import MemoryDht, MemoryDirectory
from tests.swarm.local_transport import LocalNetwork, LocalTransport

OWNER, ANN, BOB, STRANGER = (Identity.create() for _ in range(4))
NAMES = (ANN.peer_id, BOB.peer_id)
LIST = AllowList.of(OWNER.peer_id, NAMES)
RUN = b"r" * 32
SOON = 10.0

Make = Callable[[Identity, AllowList], Transport]


def listed_manifest() -> Manifest:
    run = parse_run_text(TINY_RUN + f"[swarm]\nmembers = {list(NAMES)}\n")
    return a_manifest(OWNER, run_file=normalised_run_text(run))


@pytest.fixture(params=["tcp", "local"])
def make(request: pytest.FixtureRequest) -> Iterator[Make]:
    made: list[tuple[Transport, EventList]] = []
    network = LocalNetwork()

    def make(identity: Identity, allowed: AllowList) -> Transport:
        transport: Transport
        events = EventList()
        if request.param == "tcp":
            local = Local(identity, RUN, bytes(16), allowed=allowed)
            transport = Transport(local, ("127.0.0.1", 0), events)
        else:
            transport = LocalTransport(network, identity, bytes(16), events, allowed=allowed)
        transport.set_handlers(on_blobs=lambda channel: None)
        transport.start()
        for other, _ in made:
            introduce(other, transport)
        made.append((transport, events))
        return transport

    before = set(threading.enumerate())
    yield make
    for transport, _ in made:
        transport.close()
    assert set(threading.enumerate()) <= before
    for _, events in made:
        assert not any(event["event"] == "thread-failed" for event in events.events)


def introduce(one: Transport, two: Transport) -> None:
    for here, there in ((one, two), (two, one)):
        host, port = there.address
        here.set_addresses(there.peer_id, [f"{host}:{port}"])


def refusal(one: Transport, two: Transport, purpose: Purpose) -> PeerRefused:
    with pytest.raises(PeerRefused) as refused:
        one.connect(two.peer_id, purpose, b"t" * 8, SOON)
    assert refused.value.reason is Reason.NOT_ON_THE_LIST
    return refused.value


def test_the_owner_is_on_every_list_and_everybody_on_none() -> None:
    assert LIST.peer_ids == frozenset({OWNER.peer_id, *NAMES})
    assert not LIST.holds(STRANGER.peer_id)
    assert AllowList.of(OWNER.peer_id, None) == OPEN
    assert OPEN.holds(STRANGER.peer_id)
    assert seen_from_outside(listed_manifest()) == LIST
    newer = replace(listed_manifest(), run_file='{"of": "a newer version"}')
    assert seen_from_outside(newer) == OPEN


@pytest.mark.parametrize("purpose", [Purpose.MESSAGES, Purpose.RING, Purpose.BLOBS])
def test_the_door_refuses_who_is_not_on_the_list(make: Make, purpose: Purpose) -> None:
    member, stranger = make(ANN, LIST), make(STRANGER, OPEN)
    refusal(stranger, member, purpose)
    assert not member.quarantine.aside(0.0), "no offence: it may not know"
    owner = make(OWNER, LIST)
    owner.connect(ANN.peer_id, purpose, b"t" * 8, SOON).close()
    member.connect(OWNER.peer_id, purpose, b"t" * 8, SOON).close()


@pytest.mark.parametrize("purpose", [Purpose.MESSAGES, Purpose.RING, Purpose.BLOBS])
def test_the_dialler_refuses_who_is_not_on_the_list(make: Make, purpose: Purpose) -> None:
    member, stranger = make(ANN, LIST), make(STRANGER, OPEN)
    heard: list[object] = []
    stranger.set_handlers(on_message=lambda *words: heard.append(words))
    assert "by the other end" not in refusal(member, stranger, purpose).detail
    assert heard == []


def test_a_refused_client_has_proved_its_name_and_is_told_the_reason() -> None:
    """Nobody can be refused, and written down, in the name of another."""
    events = EventList()
    door = Transport(Local(ANN, RUN, bytes(16), allowed=LIST), ("127.0.0.1", 0), events)
    door.start()
    try:
        for identity, claimed, reason in (
            (STRANGER, STRANGER.peer_id, Reason.NOT_ON_THE_LIST),
            (STRANGER, BOB.peer_id, Reason.BAD_SIGNATURE),
        ):
            with pytest.raises(PeerRefused, match="by the other end") as refused:
                knock(door, identity, claimed)
            assert refused.value.reason is reason
    finally:
        door.close()
    told = [
        (e["reason"], e["peer_id"]) for e in events.events if e["event"] == "connection-refused"
    ]
    assert told == [("not-on-the-list", STRANGER.peer_id), ("bad-signature", "")]


def knock(door: Transport, identity: Identity, claimed: str) -> None:
    plain = socket.create_connection(door.address)
    stream = wrap(plain, make_credentials(identity), server_side=False)
    channel = Channel(stream)
    try:
        stream.handshake(Patience.within(SOON))
        certificate = stream.certificate()
        assert certificate is not None
        name = Identity(identity.private_key)
        name.peer_id = claimed
        local = Local(name, RUN, bytes(16))
        handshake.greet(channel, local, door.peer_id, certificate, Patience.within(SOON))
    finally:
        channel.close()


@pytest.mark.parametrize("founder", [True, False])
def test_leases_of_strangers_are_not_believed(founder: bool) -> None:
    """Neither by who has published the manifest nor by who has read it."""

    async def check() -> None:
        clock = ManualClock(1000.0)
        dht = MemoryDht(clock)
        record = encode_manifest(listed_manifest(), OWNER)
        voices = [
            MemoryDirectory(dht, "shakespeare", OWNER.peer_id, who)
            for who in (OWNER, ANN, STRANGER)
        ]
        await voices[0].publish_manifest(record)
        identity = OWNER if founder else ANN
        eyes = MemoryDirectory(dht, "shakespeare", OWNER.peer_id, identity)
        await (eyes.publish_manifest(record) if founder else eyes.read_manifest())
        for serial in range(1, 4):
            for who, voice in zip((OWNER, ANN, STRANGER), voices, strict=True):
                await voice.publish_lease(a_lease(who.peer_id, serial=serial))
            assert set(await eyes.read_leases()) == {OWNER.peer_id, ANN.peer_id}
            clock.advance(LEASE_SECONDS + 1.0)

    asyncio.run(check())
