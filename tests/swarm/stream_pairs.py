"""Connected streams without a network, and frames that are not whole."""

import socket
import struct
from collections.abc import Iterator

import pytest

from atom.swarm.stream.tls import SocketStream

HEADER = struct.Struct(">IB")
"""Header of a frame: the number of bytes that follow, and their kind."""
_made: list[SocketStream] = []


def stream_pair() -> tuple[SocketStream, SocketStream]:
    """Two connected ends, open for as long as the test."""
    here, there = map(SocketStream, socket.socketpair())
    _made.extend((here, there))
    return here, there


@pytest.fixture(autouse=True)
def streams_end() -> Iterator[None]:
    yield
    while _made:
        _made.pop().close()
