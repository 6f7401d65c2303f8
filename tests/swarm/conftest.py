"""Its place is what counts: pytest puts the folder on the path, and the rooms share its samples."""

from transport_peers import make_peer

from tests.swarm.stream_pairs import streams_end

__all__ = ["make_peer", "streams_end"]
