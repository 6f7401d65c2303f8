"""A system that has no thread to give right now, as under a limit of processes, gets them later."""

from collections import Counter
from collections.abc import Callable

import pytest
from transport_peers import SOON, Peer, until

from atom.swarm.transport import reverse_connections

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
