"""A blob's manifest: which arenas it has and what each of their chunks hashes to."""

from dataclasses import dataclass

from google.protobuf.message import DecodeError

from atom.base.errors import PeerRefused
from atom.base.reasons import Reason
from atom.swarm.state.arenas import DIGEST_BYTES, DTYPES, ArenaManifest, digest_of_manifests
from atom.wire import transport_pb2 as wire

MAX_MANIFEST_BYTES = 16 * 1024 * 1024
"""Enough for 2 TiB of state."""
MAX_ARENAS = 4096
MAX_NAME_CHARACTERS = 256
_MAX_ELEMENTS = 2**45
_MAX_ROUND = 2**40


@dataclass(frozen=True)
class Manifest:
    """What a blob consists of. States say which certified head they belong to."""

    name: str
    arenas: tuple[ArenaManifest, ...]
    head: bytes = b""
    round: int = 0

    @property
    def byte_count(self) -> int:
        return sum(arena.byte_count for arena in self.arenas)

    def digest(self) -> bytes:
        """The state digest of the arenas."""
        return digest_of_manifests(self.arenas)

    def encode(self) -> bytes:
        message = wire.BlobManifest(name=self.name, head=self.head, round=self.round)
        for arena in self.arenas:
            message.arenas.add(
                name=arena.name,
                dtype=arena.dtype,
                elements=arena.elements,
                chunk_digests=arena.chunk_digests,
            )
        return message.SerializeToString()


def decode_manifest(raw: bytes, max_bytes: int) -> Manifest:
    """A manifest of at most `max_bytes` of contents.

    Raises: PeerRefused(MALFORMED, TOO_LARGE), and nothing else, whatever the bytes are.
    """
    message = wire.BlobManifest()
    try:
        message.ParseFromString(raw)
    except DecodeError as error:
        raise PeerRefused(Reason.MALFORMED, "unreadable manifest") from error
    if len(message.arenas) > MAX_ARENAS:
        raise PeerRefused(Reason.TOO_LARGE, f"{len(message.arenas)} arenas")
    arenas = tuple(_arena(part) for part in message.arenas)
    well_formed = (
        len(message.name) <= MAX_NAME_CHARACTERS
        and len(message.head) in (0, DIGEST_BYTES)
        and message.round <= _MAX_ROUND
        and len({arena.name for arena in arenas}) == len(arenas)
    )
    if not well_formed:
        raise PeerRefused(Reason.MALFORMED, "a field of the manifest is out of bounds")
    manifest = Manifest(message.name, arenas, message.head, message.round)
    if manifest.byte_count > max_bytes:
        raise PeerRefused(Reason.TOO_LARGE, f"{manifest.byte_count} bytes, at most {max_bytes}")
    return manifest


def _arena(part: wire.ArenaManifest) -> ArenaManifest:
    if len(part.name) > MAX_NAME_CHARACTERS or part.dtype not in DTYPES:
        raise PeerRefused(Reason.MALFORMED, "an arena's name or type")
    if part.elements > _MAX_ELEMENTS:
        raise PeerRefused(Reason.TOO_LARGE, f"arena of {part.elements} elements")
    arena = ArenaManifest(part.name, part.dtype, part.elements, part.chunk_digests)
    if len(arena.chunk_digests) != DIGEST_BYTES * arena.chunks:
        raise PeerRefused(Reason.MALFORMED, "chunk digests do not match the arena's length")
    return arena
