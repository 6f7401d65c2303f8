"""A peer that asks whether it can be dialled learns nothing about other hosts."""

import contextlib
import socket
import time

import pytest

from atom.swarm.records.lease import Reached
from atom.swarm.transport import transport
from tests.swarm.transport_peers import Make, Peer

PROBE_S = 0.4


@pytest.fixture(autouse=True)
def short_probes(monkeypatch: pytest.MonkeyPatch) -> None:
    assert transport._DIAL_BACK_S < transport._PROBE_S
    monkeypatch.setattr(transport, "_PROBE_S", PROBE_S)
    monkeypatch.setattr(transport, "_DIAL_BACK_S", PROBE_S / 2)


@pytest.fixture
def two(make_peer: Make) -> tuple[Peer, Peer]:
    """A witness, and an attacker that may ask it."""
    witness, attacker = make_peer(), make_peer()
    attacker.knows(witness)
    return witness, attacker


def test_a_probe_dials_no_host_but_the_one_that_sent_it(two: tuple[Peer, Peer]) -> None:
    witness, attacker = two
    with socket.create_server(("127.0.0.2", 0)) as elsewhere:
        elsewhere.setblocking(False)
        port = elsewhere.getsockname()[1]
        witness.transport.set_addresses(attacker.peer_id, [f"127.0.0.2:{port}", "127.0.0.3:1"])
        assert attacker.transport.probe(witness.peer_id) is Reached.NO
        with pytest.raises(BlockingIOError):
            elsewhere.accept()


def test_a_peer_is_reached_at_the_host_that_it_asks_from(two: tuple[Peer, Peer]) -> None:
    """The lease may name another host: a name, or an address that the witness cannot know."""
    witness, attacker = two
    port = attacker.transport.address[1]
    witness.transport.set_addresses(attacker.peer_id, [f"elsewhere.invalid:{port}"])
    assert attacker.transport.probe(witness.peer_id) is Reached.YES


def test_a_witness_does_not_dial_an_asker_inside_its_own_network(make_peer: Make) -> None:
    """The asker is not reached by others then: it shall keep lines."""
    witness, asker = make_peer(announced=["203.0.113.7"]), make_peer()
    asker.knows(witness)
    witness.knows(asker)
    assert asker.transport.probe(witness.peer_id) is Reached.NO


@pytest.mark.parametrize("target", ["closed", "silent", "talking", "unknown"])
def test_the_time_of_the_answer_does_not_depend_on_the_port(
    two: tuple[Peer, Peer], target: str
) -> None:
    """No answer comes before the constant time, and dialling takes less than that."""
    witness, attacker = two
    with contextlib.ExitStack() as stack:
        service = stack.enter_context(socket.create_server(("127.0.0.1", 0)))
        port = service.getsockname()[1]
        if target == "closed":
            service.close()
        if target == "talking":
            port = attacker.transport.address[1]
        addresses = [] if target == "unknown" else [f"127.0.0.1:{port}"]
        witness.transport.set_addresses(attacker.peer_id, addresses)
        began = time.monotonic()
        attacker.transport.probe(witness.peer_id)
        assert time.monotonic() - began >= PROBE_S
