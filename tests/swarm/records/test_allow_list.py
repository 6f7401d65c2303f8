"""Peers of a run with a list speak with each other, and with nobody else."""

from collections.abc import Callable
from dataclasses import replace

import pytest
from swarm_samples import TINY_RUN, a_manifest
from transport_peers import RUN, SOON, Peer, shake

from atom.base.reasons import Reason
from atom.config.load import normalised_run_text, parse_run_text
from atom.swarm.identity import Identity
from atom.swarm.records.manifest import (
    OPEN,
    AllowList,
    Manifest,
    seen_from_outside,
)
from atom.swarm.stream.frames import Purpose
from atom.swarm.stream.handshake import Local
from atom.swarm.transport.limits import TransportLimits
from atom.swarm.transport.transport import Transport
from tests.swarm.refusals import refusal

OWNER, ANN, BOB, STRANGER = (Identity.create() for _ in range(4))
NAMES = (ANN.peer_id, BOB.peer_id)
LIST = AllowList.of(OWNER.peer_id, NAMES)

Make = Callable[[Identity, AllowList], Transport]


def listed_manifest() -> Manifest:
    run = parse_run_text(TINY_RUN + f"[swarm]\nmembers = {list(NAMES)}\n")
    return a_manifest(OWNER, run_file=normalised_run_text(run))


@pytest.fixture
def make(make_peer: Callable[..., Peer]) -> Make:
    made: list[Peer] = []

    def make(identity: Identity, allowed: AllowList) -> Transport:
        peer = make_peer(identity=identity, allowed=allowed, limits=TransportLimits())
        peer.transport.set_handlers(on_blobs=lambda channel: None)
        for other in made:
            other.knows(peer)
            peer.knows(other)
        made.append(peer)
        return peer.transport

    return make


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
    call = stranger.connect, member.peer_id, purpose, b"t" * 8, SOON
    assert refusal(*call) is Reason.NOT_ON_THE_LIST
    assert not member.quarantine.aside(0.0), "no offence: it may not know"
    owner = make(OWNER, LIST)
    owner.connect(ANN.peer_id, purpose, b"t" * 8, SOON).close()
    member.connect(OWNER.peer_id, purpose, b"t" * 8, SOON).close()


@pytest.mark.parametrize("purpose", [Purpose.MESSAGES, Purpose.RING, Purpose.BLOBS])
def test_the_dialler_refuses_who_is_not_on_the_list(make: Make, purpose: Purpose) -> None:
    member, stranger = make(ANN, LIST), make(STRANGER, OPEN)
    heard: list[object] = []
    stranger.set_handlers(on_message=lambda *words: heard.append(words))
    call = member.connect, stranger.peer_id, purpose, b"t" * 8, SOON
    assert refusal(*call, match="^(?!.*by the other end)") is Reason.NOT_ON_THE_LIST
    assert heard == []


def test_a_refused_client_has_proved_its_name_and_is_told_the_reason(
    make_peer: Callable[..., Peer],
) -> None:
    """Nobody can be refused, and written down, in the name of another."""
    door = make_peer(identity=ANN, allowed=LIST, limits=TransportLimits())
    for claimed, reason in (
        (STRANGER.peer_id, Reason.NOT_ON_THE_LIST),
        (BOB.peer_id, Reason.BAD_SIGNATURE),
    ):
        name = Identity(STRANGER.private_key)
        name.peer_id = claimed
        local = Local(name, RUN, bytes(16))
        assert refusal(shake, door, local, match="by the other end") is reason
    told = [door.events.wait("connection-refused") for _ in range(2)]
    assert [(each["reason"], each["peer_id"]) for each in told] == [
        ("not-on-the-list", STRANGER.peer_id),
        ("bad-signature", ""),
    ]
