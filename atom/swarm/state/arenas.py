"""Arenas: the flat tensors of a replica, and the digests that name their contents.

An arena is hashed in chunks of 4 MiB, so that a part of it can be checked on its own; its digest
covers type, length and the chunks' digests, and a state's digest covers its arenas by name.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import torch
from blake3 import blake3
from torch import Tensor

from atom.swarm.chain.commit import canonical_digest

CHUNK_BYTES = 4 * 1024 * 1024
DIGEST_BYTES = 32
DTYPES: Mapping[str, torch.dtype] = {
    "float32": torch.float32,
    "bfloat16": torch.bfloat16,
    "float16": torch.float16,
    "float64": torch.float64,
    "int64": torch.int64,
    "int32": torch.int32,
    "int16": torch.int16,
    "uint8": torch.uint8,
}
_NAMES = {dtype: name for name, dtype in DTYPES.items()}


@dataclass(frozen=True)
class ArenaManifest:
    """What one arena holds, chunk by chunk."""

    name: str
    dtype: str
    """A key of `DTYPES`."""
    elements: int
    chunk_digests: bytes
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
    """32 bytes over type, length and contents; the name an average is accepted under."""
    return describe("", tensor).digest()


def state_digest(arenas: Mapping[str, Tensor]) -> bytes:
    """32 bytes over all arenas by name; their order does not matter."""
    return digest_of_manifests(describe(name, tensor) for name, tensor in arenas.items())


def digest_of_manifests(arenas: Iterable[ArenaManifest]) -> bytes:
    """The state digest, from the arenas' descriptions alone."""
    return canonical_digest("state", sorted([arena.name, arena.digest()] for arena in arenas))
