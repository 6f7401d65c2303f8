"""A peer that names addresses inside the network of another peer reaches no service there."""

import contextlib
import queue
import socket
from collections.abc import Iterator
from typing import Any

import pytest

from atom.swarm.stream.frames import Channel, Kind, Patience, Purpose
from atom.swarm.transport import dialer, reverse_connections
from atom.swarm.transport.dialer import AddressInfo
from atom.swarm.transport.limits import Unreachable
from atom.swarm.transport.reverse_connections import TOKEN_BYTES
from tests.swarm.transport_peers import SOON, Make, until

COMMAND = b"\r\nFLUSHALL\r\n\r\n\r\n"


@pytest.fixture
def service() -> Iterator[socket.socket]:
    """A service without password in the victim's network, with no connection yet."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        listening.setblocking(False)
        yield listening


def visits(service: socket.socket) -> int:
    """Count the connections that wait at the service."""
    for count in range(100):
        try:
            service.accept()[0].close()
        except BlockingIOError:
            return count
    return 100


def test_a_reverse_call_makes_the_peer_send_no_chosen_bytes_and_dial_nothing_else(
    make_peer: Make, service: socket.socket, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The attacker's lease names the service only after the line stands."""
    monkeypatch.setattr(reverse_connections, "PAUSE_S", 0.05)
    victim, attacker = make_peer(listens=False), make_peer()
    lines, answers = queue.Queue[Channel](), queue.Queue[bytes]()

    def serve_line(channel: Channel) -> None:
        lines.put(channel)
        channel.closed.wait()

    def arrived(answer: bytes, stream: object) -> bool:
        answers.put(answer)
        return False

    attacker.transport._listener._served[Purpose.LINE] = serve_line  # type: ignore[index]
    monkeypatch.setattr(attacker.transport._reverse, "arrived", arrived)
    victim.knows(attacker)
    victim.transport.keep_lines([attacker.peer_id])
    line = lines.get(timeout=SOON)
    victim.transport.set_addresses(attacker.peer_id, [f"127.0.0.1:{service.getsockname()[1]}"])
    assert len(COMMAND) == TOKEN_BYTES
    line.send_frame(Kind.CALL, COMMAND, patience=Patience.within(SOON))
    answer = answers.get(timeout=SOON)
    assert len(answer) == TOKEN_BYTES
    assert not {COMMAND[at : at + 4] for at in range(13)} & {
        answer[at : at + 4] for at in range(13)
    }
    victim.transport.keep_lines([])
    assert visits(service) == 0


@pytest.mark.parametrize(
    "host",
    ["127.0.0.1", "127.0.0.2", "localhost", "127.1", "2130706433", "0x7f.1", "0.0.0.0", "0",
     "[::ffff:127.0.0.1]", "[::ffff:0.0.0.0]"],
)  # fmt: skip
def test_a_peer_with_a_public_address_does_not_dial_itself(make_peer: Make, host: str) -> None:
    """However the address is written."""
    victim, attacker = make_peer(announced=["203.0.113.7"]), make_peer()
    with socket.create_server(("0.0.0.0", 0)) as service:
        service.setblocking(False)
        port = service.getsockname()[1]
        victim.transport.set_addresses(attacker.peer_id, [f"{host}:{port}"])
        with pytest.raises(Unreachable, match="address-not-dialled"):
            victim.transport.connect(attacker.peer_id, Purpose.MESSAGES)
        assert victim.transport.send(attacker.peer_id, b"hello")
        assert victim.lost.get(timeout=SOON) == attacker.peer_id
        told = until(lambda: [e for e in victim.events.events if e["event"] == "peer-unreachable"])
        assert "address-not-dialled" in told[0]["detail"]
        assert visits(service) == 0


# ---- host names


def test_a_name_is_looked_up_once_and_the_checked_address_is_dialled(
    make_peer: Make, service: socket.socket, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The attacker's name server answers with another address each time (DNS rebinding)."""
    victim, attacker = make_peer(announced=["203.0.113.7"]), make_peer()
    port = service.getsockname()[1]
    answers = ["192.168.77.7", "127.0.0.1", "127.0.0.1"]
    asked = list[str]()
    real = socket.getaddrinfo

    def lookup(host: str, *given: Any, flags: int = 0, **named: Any) -> Any:
        if host == "rebinding.example" and flags == socket.AI_NUMERICHOST:
            raise socket.gaierror("not a number")
        if host == "rebinding.example":
            asked.append(host)
            host = answers[len(asked) - 1]
        return real(host, *given, flags=flags, **named)

    monkeypatch.setattr(socket, "getaddrinfo", lookup)
    victim.transport.set_addresses(attacker.peer_id, [f"rebinding.example:{port}"])
    with pytest.raises(Unreachable, match="address-not-dialled"):
        victim.transport.connect(attacker.peer_id, Purpose.MESSAGES)
    assert len(asked) == 1
    assert visits(service) == 0


@pytest.mark.parametrize("first", ["closed", "mute", "forbidden"])
def test_every_address_of_a_name_is_tried(
    make_peer: Make, monkeypatch: pytest.MonkeyPatch, first: str
) -> None:
    """One address that does not work must not hide the others."""
    one, two = make_peer(HANDSHAKE_S=4.0), make_peer(HANDSHAKE_S=4.0)
    port = two.transport.address[1]
    before = "169.254.7.7" if first == "forbidden" else "127.0.0.2"

    def look_up(host: str, port: int, flags: int = 0) -> list[AddressInfo]:
        if flags == socket.AI_NUMERICHOST:
            raise socket.gaierror("not a number")
        return [
            (socket.AF_INET, socket.SOCK_STREAM, 6, "", (found, port))
            for found in (before, "127.0.0.1")
        ]

    monkeypatch.setattr(dialer, "_lookup", look_up)
    with contextlib.ExitStack() as stack:
        if first == "mute":
            stack.enter_context(socket.create_server((before, port)))
        one.transport.set_addresses(two.peer_id, [f"peer.example:{port}"])
        channel = one.transport.connect(two.peer_id, Purpose.MESSAGES)
        assert channel.remote == ("127.0.0.1", port)
        channel.close()
