"""Fixtures of attacks; attacks may be coroutines."""

from tests.swarm.conftest import pytest_pyfunc_call
from tests.swarm.stream_pairs import streams_end
from tests.swarm.transport_peers import make_peer
from tests.training.catching_peer import peer_of

__all__ = ["make_peer", "peer_of", "pytest_pyfunc_call", "streams_end"]
