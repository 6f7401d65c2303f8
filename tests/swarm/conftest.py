"""Fixtures of all tests of the package; this file also makes pytest add its folder to the path."""

import threading
from collections import Counter

import pytest
from threaded_ring import swarm_of
from transport_peers import make_peer

from tests.swarm.stream_pairs import streams_end

__all__ = ["make_peer", "streams_end", "swarm_of"]


@pytest.fixture
def refused(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """How many threads of a name are yet to be refused."""
    left, start = Counter[str](), threading.Thread.start

    def start_if_allowed(thread: threading.Thread) -> None:
        if left[thread.name] > 0:
            left[thread.name] -= 1
            raise RuntimeError("can't start new thread")
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", start_if_allowed)
    return left
