"""Arenas: named flat tensors on the host, the digests of their contents, and targets of a fetch.

An arena is hashed in chunks of 4 MiB, so that each part can be checked separately. Its digest
covers type, length and the digests of its chunks; the digest of a state covers its arenas by name.
A manifest describes arenas: a peer sends it before their chunks.
"""

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated

import torch
from blake3 import blake3
from torch import Tensor

from atom.base.errors import PeerRefused, Reason
from atom.swarm import schema
from atom.swarm.chain.commit import canonical_digest

CHUNK_BYTES = 4 * 1024 * 1024
DIGEST_BYTES = 32
_FLOATS = torch.float32, torch.bfloat16, torch.float16, torch.float64
_INTEGERS = torch.int64, torch.int32, torch.int16, torch.uint16, torch.uint8
_NAMES = {dtype: str(dtype).removeprefix("torch.") for dtype in (*_FLOATS, *_INTEGERS)}
DTYPES: Mapping[str, torch.dtype] = {name: dtype for dtype, name in _NAMES.items()}
MAX_ARENAS = 4096
MAX_NAME_CHARACTERS = 256
_MAX_ELEMENTS = 2**45
Piece = tuple[int, int]
"""Index of an arena in its manifest, and index of a chunk in the arena."""


def dtype_name(dtype: torch.dtype) -> str:
    """Return the name of a dtype in manifests.

    Raises:
        KeyError: Arenas cannot have the dtype.
    """
    return _NAMES[dtype]


@dataclass(frozen=True)
class ArenaManifest:
    """Description of one arena, with the digest of each chunk."""

    name: Annotated[str, lambda text: len(text) <= MAX_NAME_CHARACTERS]
    dtype: Annotated[str, DTYPES.__contains__]
    elements: Annotated[int, lambda number: number <= _MAX_ELEMENTS]
    chunk_digests: Annotated[bytes, lambda raw: len(raw) % DIGEST_BYTES == 0]
    """blake3 of each 4 MiB chunk in order (the last may be short), 32 bytes each."""

    @property
    def byte_count(self) -> int:
        """Bytes of the arena."""
        return self.elements * DTYPES[self.dtype].itemsize

    @property
    def chunks(self) -> int:
        """Number of chunks of the arena."""
        return -(-self.byte_count // CHUNK_BYTES)

    def chunk_bounds(self, chunk: int) -> tuple[int, int]:
        """Return the first byte of a chunk, and the byte after its last."""
        return chunk * CHUNK_BYTES, min((chunk + 1) * CHUNK_BYTES, self.byte_count)

    def chunk_digest(self, chunk: int) -> bytes:
        """Return the digest of a chunk, by its number."""
        return self.chunk_digests[chunk * DIGEST_BYTES : (chunk + 1) * DIGEST_BYTES]

    def digest(self) -> bytes:
        """Return the digest (32 bytes) of type, length and contents."""
        chunks = blake3(self.chunk_digests).digest()
        return canonical_digest("arena", [self.dtype, self.elements, chunks])


@dataclass(frozen=True)
class BlobManifest:
    """Descriptions of the arenas of a blob, in the order of their names."""

    arenas: Annotated[tuple[ArenaManifest, ...], MAX_ARENAS]

    @property
    def byte_count(self) -> int:
        """Bytes of all arenas."""
        return sum(arena.byte_count for arena in self.arenas)

    @property
    def pieces(self) -> list[Piece]:
        """All pieces of the blob."""
        return [(n, chunk) for n, arena in enumerate(self.arenas) for chunk in range(arena.chunks)]

    def piece_digest(self, piece: Piece) -> bytes:
        """Return the digest of a piece."""
        return self.arenas[piece[0]].chunk_digest(piece[1])

    def digest(self) -> bytes:
        """Return the state digest: equal to `state_digest` of the tensors."""
        return named_digest({arena.name: arena.digest() for arena in self.arenas})


def max_manifest_bytes(max_bytes: int) -> int:
    """Return the bound of a manifest's size: 1 MiB for names, and a digest for each chunk.

    The bound is tight because parsing takes up to 40 bytes of memory for each byte of a false one.

    Args:
        max_bytes: Bound of the bytes of all arenas together.
    """
    return 1024 * 1024 + DIGEST_BYTES * (max_bytes // CHUNK_BYTES)


def decode_manifest(raw: bytes, max_bytes: int) -> BlobManifest:
    """Decode and check a manifest from another peer.

    Args:
        raw: Any bytes.
        max_bytes: Bound of the bytes of all arenas together.

    Raises:
        PeerRefused: MALFORMED or TOO_LARGE. No other error is raised.
    """
    manifest = schema.decode(BlobManifest, raw, max_manifest_bytes(max_bytes))
    names = [arena.name for arena in manifest.arenas]
    if names != sorted(set(names)):
        raise PeerRefused(Reason.MALFORMED, "arenas are not in the order of their names")
    if any(len(arena.chunk_digests) != DIGEST_BYTES * arena.chunks for arena in manifest.arenas):
        raise PeerRefused(Reason.MALFORMED, "chunk digests do not match the arena's length")
    if manifest.byte_count > max_bytes:
        raise PeerRefused(Reason.TOO_LARGE, f"{manifest.byte_count} bytes, at most {max_bytes}")
    return manifest


def bytes_of(tensor: Tensor) -> memoryview:
    """Return a view of a tensor's memory. The tensor must be contiguous and on the host."""
    assert tensor.is_contiguous()
    view: memoryview = tensor.detach().view(-1).view(torch.uint8).numpy().data
    return view


def chunk_digest(chunk: bytes | memoryview, threads: int = blake3.AUTO) -> bytes:
    """Return the blake3 digest of one chunk.

    Uses several cores unless `threads` limits them, and releases the interpreter's lock.
    """
    return blake3(chunk, max_threads=threads).digest()


def describe(name: str, tensor: Tensor) -> ArenaManifest:
    """Hash a whole arena (about 4 GB/s per core) and return its manifest.

    Raises:
        KeyError: Arenas cannot have the tensor's dtype.
    """
    view = bytes_of(tensor)
    starts = range(0, len(view), CHUNK_BYTES)
    digests = b"".join(chunk_digest(view[start : start + CHUNK_BYTES]) for start in starts)
    return ArenaManifest(name, dtype_name(tensor.dtype), tensor.numel(), digests)


def state_digest(arenas: Mapping[str, Tensor]) -> bytes:
    """Return the digest (32 bytes) of all arenas by name; their order does not matter."""
    return named_digest({name: describe(name, tensor).digest() for name, tensor in arenas.items()})


def named_digest(arena_digests: Mapping[str, bytes]) -> bytes:
    """Return the state digest, computed from the digests of the arenas by name."""
    return canonical_digest(
        "state", sorted([name, digest] for name, digest in arena_digests.items())
    )


_MOST_OWED = 4
"""Most pieces that one donor may owe at a time."""
_OVERDUE_S = 1.0


@dataclass
class PieceQueue:
    """Decides which donor is asked for which piece. Pure, not thread-safe.

    If no piece is pending, an idle donor is asked for a piece that another donor has owed for too
    long; the first copy counts. A piece is asked of two donors at most, and of no donor that lacks
    it.
    """

    pending: deque[Piece]
    asked: dict[Piece, dict[str, float]] = field(default_factory=dict)
    """Missing pieces that are not pending: by piece, the donors asked for it, and when."""
    lacked: dict[str, set[Piece]] = field(default_factory=dict)
    """Pieces that each donor said it lacks, by donor."""

    @property
    def missing(self) -> int:
        """Number of pieces that have not arrived."""
        return len(self.pending) + len(self.asked)

    def take(self, donor: str, in_flight: int, now: float) -> Piece | None:
        """Return a piece to ask a donor for; None if it owes enough, or no piece is left for it.

        Args:
            donor: Peer id of the donor.
            in_flight: Number of pieces that the donor owes.
            now: Monotonic time.
        """
        lacked = self.lacked.get(donor, ())
        piece = next((each for each in self.pending if each not in lacked), None)
        if in_flight < _MOST_OWED and piece is not None:
            self.pending.remove(piece)
        elif in_flight or (piece := self._overdue(donor, now)) is None:
            return None
        self.asked.setdefault(piece, {})[donor] = now
        return piece

    def record_lacking(self, donor: str, piece: Piece) -> None:
        """Record that a donor said that it lacks a piece for which it was asked."""
        self.lacked.setdefault(donor, set()).add(piece)
        self.drop(donor, [piece])

    def is_useless(self, donor: str) -> bool:
        """Return True if the donor lacks all missing pieces."""
        lacked = self.lacked.get(donor, set())
        return bool(lacked) and lacked.issuperset((*self.pending, *self.asked))

    def arrived(self, piece: Piece) -> bool:
        """Record that a piece has arrived; return True if it was still missing."""
        return self.asked.pop(piece, None) is not None

    def drop(self, donor: str, owed: Sequence[Piece]) -> None:
        """Release the pieces that a donor owes.

        Pieces that were asked of no other donor are pending again, at the front.
        """
        for piece in reversed(owed):
            askers = self.asked.get(piece, {})
            if askers.pop(donor, None) is not None and not askers:
                del self.asked[piece]
                self.pending.appendleft(piece)

    def _overdue(self, donor: str, now: float) -> Piece | None:
        """Return the overdue piece that was asked for last: a donor delivers in order, so this
        piece would also arrive last."""
        late = [
            (since, piece)
            for piece, askers in self.asked.items()
            if len(askers) == 1 and donor not in askers
            if piece not in self.lacked.get(donor, ())
            for since in askers.values()
            if now - since >= _OVERDUE_S
        ]
        return max(late)[1] if late else None


@dataclass
class Target:
    """Destination of fetched pieces."""

    queue: PieceQueue
    """Missing pieces."""
    length: Callable[[Piece], int]
    """Returns the bytes of a piece."""
    digest: Callable[[Piece], bytes]
    """Returns the digest that a piece must have."""
    write: Callable[[Piece, memoryview], None]
    """Stores a verified chunk. Called from any thread, and also for a second copy of a piece.

    Raises:
        StorageError: The chunk cannot be written.
    """
    total_bytes: int
    done_bytes: int = 0
    reused_bytes: int = 0
    """Bytes that were already in place and were not fetched."""


def memory_target(manifest: BlobManifest) -> tuple[Target, Mapping[str, Tensor]]:
    """Return a target in new memory, and its arenas by name."""
    arenas = {
        arena.name: torch.empty(arena.elements, dtype=DTYPES[arena.dtype])
        for arena in manifest.arenas
    }
    views = list(map(bytes_of, arenas.values()))

    def view(piece: Piece) -> memoryview:
        start, stop = manifest.arenas[piece[0]].chunk_bounds(piece[1])
        return views[piece[0]][start:stop]

    def write(piece: Piece, chunk: memoryview) -> None:
        view(piece)[:] = chunk

    queue = PieceQueue(deque(manifest.pieces))
    digest, total_bytes = manifest.piece_digest, manifest.byte_count
    return Target(queue, lambda piece: len(view(piece)), digest, write, total_bytes), arenas


def map_file(path: Path, arena: ArenaManifest) -> Tensor:
    """Map a file of the arena's size as a tensor. An arena without elements needs no file."""
    dtype = DTYPES[arena.dtype]
    if arena.elements == 0:
        return torch.empty(0, dtype=dtype)
    mapped: Tensor = torch.from_file(str(path), shared=True, size=arena.elements, dtype=dtype)
    return mapped
