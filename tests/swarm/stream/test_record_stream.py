"""Records: whatever is altered, repeated, left out, moved or turned round is refused."""

import socket
import struct
from collections.abc import Iterator

import pytest

from atom.swarm.stream.frames import Patience
from atom.swarm.stream.record_stream import RECORD_BYTES, RecordKeys, RecordStream
from atom.swarm.stream.socket_stream import SocketStream

SOON = Patience(5.0)
SECRETS = bytes(32), bytes(range(32))
OVERHEAD = 4 + 16


class Wire:
    """A sender, the bytes that it put on the wire, and a receiver that gets what a test says."""

    def __init__(self) -> None:
        self._ends = [socket.socketpair() for _ in range(2)]
        (near, self._tapped), (self._feeding, far) = self._ends
        keys = [RecordKeys.derive(*SECRETS, client=client) for client in (True, False)]
        self.sender = RecordStream(SocketStream(near), keys[0])
        self.receiver = RecordStream(SocketStream(far), keys[1])
        self.sender_keys = keys[0]

    def record(self, data: bytes) -> bytes:
        self.sender.send_all(memoryview(data), SOON)
        size, tapped = len(data) + OVERHEAD, b""
        while len(tapped) < size:
            tapped += self._tapped.recv(size - len(tapped))
        return tapped

    def feed(self, raw: bytes) -> None:
        self._feeding.sendall(raw)

    def hear(self, size: int) -> bytes:
        heard = bytearray(size)
        self.receiver.recv_into(memoryview(heard), SOON)
        return bytes(heard)

    def close(self) -> None:
        self.sender.close()
        self.receiver.close()
        self._tapped.close()
        self._feeding.close()


@pytest.fixture
def wire() -> Iterator[Wire]:
    wire = Wire()
    yield wire
    wire.close()


def test_pieces_of_any_size(wire: Wire) -> None:
    wire.feed(wire.record(b"abcdef") + wire.record(b"gh"))
    assert [wire.hear(1), wire.hear(6), wire.hear(1)] == [b"a", b"bcdefg", b"h"]
    assert wire.receiver.idle()


def test_no_plain_text_on_the_wire(wire: Wire) -> None:
    one, other = wire.record(bytes(1000)), wire.record(bytes(1000))
    assert bytes(16) not in one
    assert one[4:] != other[4:], "no nonce twice"


@pytest.mark.parametrize("at", [0, 3, 4, 9, 20, -1])
def test_altered(wire: Wire, at: int) -> None:
    raw = bytearray(wire.record(bytes(100)))
    raw[at] ^= 1
    wire.feed(bytes(raw) + bytes(RECORD_BYTES // 1024))
    with pytest.raises(ConnectionError):
        wire.hear(100)


def test_repeated_left_out_or_swapped(wire: Wire) -> None:
    first, second = wire.record(b"first"), wire.record(b"other")
    wire.feed(second)
    with pytest.raises(ConnectionError, match="altered, repeated or lost"):
        wire.hear(5)
    again = Wire()
    first = again.record(b"first")
    again.feed(first + first)
    assert again.hear(5) == b"first"
    with pytest.raises(ConnectionError, match="altered, repeated or lost"):
        again.hear(5)
    again.close()


def test_sent_back_to_its_sender() -> None:
    near, far = socket.socketpair()
    stream = RecordStream(SocketStream(near), RecordKeys.derive(*SECRETS, client=True))
    stream.send_all(memoryview(b"hello"), SOON)
    far.sendall(far.recv(100))
    with pytest.raises(ConnectionError):
        stream.recv_into(memoryview(bytearray(5)), SOON)
    stream.close()
    far.close()


@pytest.mark.parametrize("length", [0, 16, RECORD_BYTES + 17, 2**32 - 1])
def test_lengths_out_of_bounds_are_refused_before_anything_is_read(wire: Wire, length: int) -> None:
    wire.feed(struct.pack(">I", length))
    with pytest.raises(ConnectionError, match=f"a record of {length} bytes"):
        wire.hear(1)


def test_each_direction_and_each_connection_has_its_own_key() -> None:
    client = RecordKeys.derive(*SECRETS, client=True)
    server = RecordKeys.derive(*SECRETS, client=False)
    assert (client.sending, client.receiving) == (server.receiving, server.sending)
    assert client.sending != client.receiving
    other = RecordKeys.derive(SECRETS[1], SECRETS[0], client=True)
    assert len({client.sending, client.receiving, other.sending, other.receiving}) == 4
