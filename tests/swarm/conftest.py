"""Its place is what counts: pytest puts the folder on the path, and the rooms share its samples."""

from transport_peers import make_peer

__all__ = ["make_peer"]
