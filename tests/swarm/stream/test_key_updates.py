"""A stranger that asks for new keys again and again is not answered in memory without end."""

import ssl
from types import SimpleNamespace
from typing import Any

import pytest

from atom.swarm.stream.tls import TlsStream


def test_a_stream_ends_when_key_updates_pile_up() -> None:
    outgoing = SimpleNamespace(pending=0)

    def read(*_: object) -> int:
        """As OpenSSL: no content, and an answer that waits to be sent."""
        outgoing.pending += 27
        raise ssl.SSLWantReadError

    stream: Any = TlsStream.__new__(TlsStream)
    stream._outgoing, stream._received = outgoing, memoryview(bytearray(1))
    stream._tls, stream._fill = SimpleNamespace(read=read), lambda patience, wanted: None
    with pytest.raises(ConnectionError, match="new keys"):
        stream.recv_into(memoryview(bytearray(4)), None)
    assert outgoing.pending < 64 * 1024
