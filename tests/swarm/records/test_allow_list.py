"""Peers of a run with a list speak with each other, and with nobody else."""

from collections.abc import Callable

import pytest
from swarm_samples import TINY_RUN, a_manifest
from transport_peers import SOON, Peer

from atom.base.reasons import Reason
from atom.config.load import normalised_run_text, parse_run_text
from atom.swarm.identity import Identity
from atom.swarm.records.manifest import (
    listed_peers,
    seen_from_outside,
)
from atom.swarm.stream.frames import Purpose
from atom.swarm.transport.limits import TransportLimits
from tests.swarm.refusals import refusal

OWNER, ANN, BOB, STRANGER = (Identity.create() for _ in range(4))
NAMES = (ANN.peer_id, BOB.peer_id)
LIST = listed_peers(OWNER.peer_id, NAMES)


def test_the_owner_is_on_every_list_and_everybody_on_none() -> None:
    assert {OWNER.peer_id, *NAMES} == LIST
    assert listed_peers(OWNER.peer_id, None) is None
    run = parse_run_text(TINY_RUN + f"[swarm]\nmembers = {list(NAMES)}\n")
    for run_file, seen in ((normalised_run_text(run), LIST), ('{"of": "a newer version"}', None)):
        assert seen_from_outside(a_manifest(OWNER, run_file=run_file)) == seen


@pytest.mark.parametrize("purpose", [Purpose.MESSAGES, Purpose.RING, Purpose.BLOBS])
def test_door_and_dialler_refuse_who_is_not_on_the_list(
    make_peer: Callable[..., Peer], purpose: Purpose
) -> None:
    limits = TransportLimits()
    peers = [
        make_peer(identity=identity, listed=listed, limits=limits, serve=lambda channel: None)
        for identity, listed in ((ANN, LIST), (OWNER, LIST), (STRANGER, None))
    ]
    for peer in peers:
        peer.knows(*peers)
    member, owner, stranger = (peer.transport for peer in peers)
    for caller, called in ((member, owner), (owner, member)):
        caller.connect(called.peer_id, purpose, b"t" * 8, SOON).close()
    call = stranger.connect, member.peer_id, purpose, b"t" * 8, SOON
    assert refusal(*call) is Reason.NOT_ON_THE_LIST
    assert not member.offenders.held(0.0), "no offence: it may not know"
    call = member.connect, stranger.peer_id, purpose, b"t" * 8, SOON
    assert refusal(*call, match="^(?!.*by the other end)") is Reason.NOT_ON_THE_LIST
    assert all(peer.heard.empty() for peer in peers)
