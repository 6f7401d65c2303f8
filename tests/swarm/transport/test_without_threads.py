"""A system that has no thread to give right now, as under a limit of processes, gets them later."""

from collections import Counter
from collections.abc import Callable

import pytest
from transport_peers import RUN, SOON, Peer, until

from atom.base.errors import AddressError
from atom.swarm.identity import Identity
from atom.swarm.stream.handshake import Local
from atom.swarm.transport import reverse_connections
from atom.swarm.transport.transport import Transport
from tests.event_list import EventList

Make = Callable[..., Peer]


@pytest.mark.parametrize("name", ["atom-inbound", "atom-lane", "atom-line", "atom-answer"])
def test_messages_get_through_later(
    make_peer: Make, monkeypatch: pytest.MonkeyPatch, refused: Counter[str], name: str
) -> None:
    """Over a line, too: the guest cannot be dialled."""
    monkeypatch.setattr(reverse_connections, "PAUSE_S", 0.05)
    host, guest = make_peer(), make_peer(listens=False)
    host.knows(guest)
    guest.knows(host)
    refused[name] = 1

    def arrives() -> bool:
        guest.transport.keep_lines([host.peer_id])
        return host.transport.send(guest.peer_id, b"hello") and not guest.heard.empty()

    until(arrives)
    assert refused[name] == 0
    assert guest.heard.get(timeout=SOON)[2] == b"hello"


def test_a_port_is_not_held_without_anybody_behind_it(
    make_peer: Make, refused: Counter[str]
) -> None:
    before = make_peer().transport
    before.close()
    here = Transport(Local(Identity.create(), RUN, bytes(16)), before.address, EventList())
    refused["atom-accept"] = 1
    with pytest.raises(AddressError, match="no thread"):
        here.start()
    here.start()
    here.close()
