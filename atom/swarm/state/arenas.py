"""Arenas: named flat tensors on the host, and the digests that name their contents.

An arena is hashed in chunks of 4 MiB, so that a part of it can be checked on its own. Its digest
covers type, length and the digests of its chunks; the digest of a state covers its arenas by name.
A manifest is what a peer says of some arenas before it sends their chunks.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated

import torch
from blake3 import blake3
from torch import Tensor

from atom.base.errors import PeerRefused
from atom.base.reasons import Reason
from atom.swarm import schema
from atom.swarm.chain.commit import canonical_digest

CHUNK_BYTES = 4 * 1024 * 1024
DIGEST_BYTES = 32
_FLOATS = torch.float32, torch.bfloat16, torch.float16, torch.float64
_INTEGERS = torch.int64, torch.int32, torch.int16, torch.uint8
_NAMES = {dtype: str(dtype).removeprefix("torch.") for dtype in (*_FLOATS, *_INTEGERS)}
DTYPES: Mapping[str, torch.dtype] = {name: dtype for dtype, name in _NAMES.items()}
MAX_MANIFEST_BYTES = 16 * 1024 * 1024
"""Enough for 2 TiB of arenas."""
MAX_ARENAS = 4096
MAX_NAME_CHARACTERS = 256
_MAX_ELEMENTS = 2**45


@dataclass(frozen=True)
class ArenaManifest:
    """What one arena holds, chunk by chunk."""

    name: Annotated[str, lambda text: len(text) <= MAX_NAME_CHARACTERS]
    dtype: Annotated[str, DTYPES.__contains__]
    elements: Annotated[int, lambda number: number <= _MAX_ELEMENTS]
    chunk_digests: Annotated[bytes, lambda raw: len(raw) % DIGEST_BYTES == 0]
    """blake3 of each 4 MiB chunk in order (the last may be short), 32 bytes each."""

    @property
    def byte_count(self) -> int:
        return self.elements * DTYPES[self.dtype].itemsize

    @property
    def chunks(self) -> int:
        return -(-self.byte_count // CHUNK_BYTES)

    def chunk_bounds(self, chunk: int) -> tuple[int, int]:
        """First byte of the chunk, and the byte after its last."""
        return chunk * CHUNK_BYTES, min((chunk + 1) * CHUNK_BYTES, self.byte_count)

    def chunk_digest(self, chunk: int) -> bytes:
        return self.chunk_digests[chunk * DIGEST_BYTES : (chunk + 1) * DIGEST_BYTES]

    def digest(self) -> bytes:
        """The same as `arena_digest` of the tensor."""
        chunks = blake3(self.chunk_digests).digest()
        return canonical_digest("arena", [self.dtype, self.elements, chunks])


@dataclass(frozen=True)
class BlobManifest:
    """The arenas of a blob, in the order of their names."""

    arenas: Annotated[tuple[ArenaManifest, ...], MAX_ARENAS]

    @property
    def byte_count(self) -> int:
        return sum(arena.byte_count for arena in self.arenas)

    def digest(self) -> bytes:
        """The same as `state_digest` of the tensors."""
        return named_digest({arena.name: arena.digest() for arena in self.arenas})


def decode_manifest(raw: bytes, max_bytes: int) -> BlobManifest:
    """A stranger's manifest of at most `max_bytes` of contents.

    Raises: PeerRefused(MALFORMED, TOO_LARGE), and nothing else, whatever the bytes are.
    """
    manifest = schema.decode(BlobManifest, raw, MAX_MANIFEST_BYTES)
    names = [arena.name for arena in manifest.arenas]
    if names != sorted(set(names)):
        raise PeerRefused(Reason.MALFORMED, "arenas are not in the order of their names")
    if any(len(arena.chunk_digests) != DIGEST_BYTES * arena.chunks for arena in manifest.arenas):
        raise PeerRefused(Reason.MALFORMED, "chunk digests do not match the arena's length")
    if manifest.byte_count > max_bytes:
        raise PeerRefused(Reason.TOO_LARGE, f"{manifest.byte_count} bytes, at most {max_bytes}")
    return manifest


def bytes_of(tensor: Tensor) -> memoryview:
    """The tensor's own memory as bytes. It must be contiguous and on the host."""
    assert tensor.is_contiguous()
    view: memoryview = tensor.detach().view(-1).view(torch.uint8).numpy().data
    return view


def dtype_name(tensor: Tensor) -> str:
    """Raises: KeyError for a type that arenas do not have."""
    return _NAMES[tensor.dtype]


def chunk_digest(chunk: bytes | memoryview, threads: int = blake3.AUTO) -> bytes:
    """blake3 of one chunk; on several cores, unless told, and without holding the interpreter's
    lock."""
    return blake3(chunk, max_threads=threads).digest()


def describe(name: str, tensor: Tensor) -> ArenaManifest:
    """Hashes a whole arena, about 4 GB/s per core."""
    view = bytes_of(tensor)
    starts = range(0, len(view), CHUNK_BYTES)
    digests = b"".join(chunk_digest(view[start : start + CHUNK_BYTES]) for start in starts)
    return ArenaManifest(name, dtype_name(tensor), tensor.numel(), digests)


def arena_digest(tensor: Tensor) -> bytes:
    """32 bytes over type, length and contents."""
    return describe("", tensor).digest()


def state_digest(arenas: Mapping[str, Tensor]) -> bytes:
    """32 bytes over all arenas by name; their order does not matter."""
    return named_digest({name: arena_digest(tensor) for name, tensor in arenas.items()})


def named_digest(arena_digests: Mapping[str, bytes]) -> bytes:
    """The state digest, from the digests of its arenas."""
    return canonical_digest(
        "state", sorted([name, digest] for name, digest in arena_digests.items())
    )
