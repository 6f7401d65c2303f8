"""A blob of which a peer keeps some pieces, in sparse files that are mapped: a run's text.

A piece counts once its digest was seen to be right; those of an earlier start are looked at when
they are asked for first. Pieces are written by a call, not through the map: a full disk is an error
then, and does not kill the process. What a piece took of the disk goes with it, as a hole.
"""

import ctypes
import os
import threading
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

from atom.base.errors import MismatchError, PeerRefused, StorageError
from atom.base.files import why_not_written
from atom.base.reasons import Reason
from atom.swarm import schema
from atom.swarm.state.arenas import (
    CHUNK_BYTES,
    DTYPES,
    BlobManifest,
    Piece,
    bytes_of,
    chunk_digest,
    decode_manifest,
)

_PUNCH_HOLE = 0x02 | 0x01
"""Of fallocate(2): the size stays."""


class ArenaShape(NamedTuple):
    """What an arena is before its digests are known."""

    name: str
    dtype: str
    elements: int

    @property
    def byte_count(self) -> int:
        return self.elements * DTYPES[self.dtype].itemsize


def text_blob(digest: bytes) -> str:
    """What the text with that state digest is called among peers."""
    return f"text/{digest.hex()}"


class PieceStore:
    """Thread-safe. Nobody else may write into `folder`."""

    def __init__(self, digest: bytes, shapes: Sequence[ArenaShape], folder: Path) -> None:
        """`digest`: the state digest of the whole. `shapes`: in the order of their names. Raises:
        StorageError."""
        self.digest, self.shapes, self._folder = digest, tuple(shapes), folder
        self.total_bytes = sum(shape.byte_count for shape in shapes)
        self._lock = threading.Lock()
        self._here: set[Piece] = set()
        """Checked."""
        try:
            folder.mkdir(parents=True, exist_ok=True)
            self._paths = [_sized(folder / f"arena-{i}", shape) for i, shape in enumerate(shapes)]
            mapped = [_mapped(*each) for each in zip(self._paths, shapes, strict=True)]
            self._found = set(self._on_disk())
        except OSError as problem:
            raise self._unwritten(problem) from problem
        self._views = list(map(bytes_of, mapped))
        self.arenas = {shape.name: each for shape, each in zip(shapes, mapped, strict=True)}
        """By name; zeros where a piece is not here."""
        self.manifest: BlobManifest | None = None
        """Once it is known, with the digests of all pieces."""
        with suppress(OSError, PeerRefused, MismatchError):
            raw = self._manifest_path.read_bytes()
            self.settle(decode_manifest(raw, self.total_bytes))

    def settle(self, manifest: BlobManifest) -> None:
        """The whole's manifest, as a donor or an earlier start had it. Raises:
        PeerRefused(HASH_MISMATCH); MismatchError; StorageError."""
        if manifest.digest() != self.digest:
            raise PeerRefused(Reason.HASH_MISMATCH, "manifest")
        shapes = tuple(ArenaShape(a.name, a.dtype, a.elements) for a in manifest.arenas)
        if shapes != self.shapes:
            raise MismatchError(
                "the run's manifest names a text of another size than its digest does",
                "its owner has to found it anew",
            )
        aside = self._manifest_path.with_suffix(".partial")
        try:
            aside.write_bytes(schema.encode(manifest))
            os.replace(aside, self._manifest_path)
        except OSError as problem:
            raise self._unwritten(problem) from problem
        self.manifest = manifest

    @property
    def kept_bytes(self) -> int:
        return sum(stop - start for start, stop in map(self.bounds, self.kept))

    @property
    def kept(self) -> list[Piece]:
        """What takes room on the disk."""
        with self._lock:
            return [*self._here, *self._found]

    def bounds(self, piece: Piece) -> tuple[int, int]:
        """First byte of its arena, and the byte after its last."""
        start = piece[1] * CHUNK_BYTES
        return start, min(start + CHUNK_BYTES, self.shapes[piece[0]].byte_count)

    def has(self, piece: Piece) -> bool:
        """Whether it is here, and right."""
        with self._lock:
            if piece in self._here:
                return True
            if self.manifest is None or piece not in self._found:
                return False
            is_right = chunk_digest(self._view(piece)) == self.piece_digest(piece)
            self._found.discard(piece)
            if is_right:
                self._here.add(piece)
            return is_right

    def piece_digest(self, piece: Piece) -> bytes:
        """Once the manifest is known."""
        assert self.manifest is not None
        return self.manifest.arenas[piece[0]].chunk_digest(piece[1])

    def chunk(self, piece: Piece) -> memoryview:
        """A copy, for somebody else. Raises: PeerRefused(NOT_FOUND, PIECE_MISSING)."""
        arena, number = piece
        if arena >= len(self.shapes) or number * CHUNK_BYTES >= self.shapes[arena].byte_count:
            raise PeerRefused(Reason.NOT_FOUND, f"no chunk {number} of arena {arena}")
        if self.has(piece):
            raw = memoryview(bytes(self._view(piece)))
            if chunk_digest(raw) == self.piece_digest(piece):  # nor did it go, nor the disk fail
                return raw
        raise PeerRefused(Reason.PIECE_MISSING, f"chunk {number} of arena {arena}")

    def write(self, piece: Piece, chunk: memoryview) -> None:
        """A checked one. Raises: StorageError."""
        start, _ = self.bounds(piece)
        with self._lock:
            if piece in self._here:
                return
            try:
                with self._paths[piece[0]].open("r+b", buffering=0) as file:
                    file.seek(start)
                    while chunk:
                        chunk = chunk[file.write(chunk) :]
            except OSError as problem:
                raise self._unwritten(problem) from problem
            self._found.discard(piece)
            self._here.add(piece)

    def drop(self, piece: Piece) -> None:
        """Its room on the disk is free afterwards. Raises: StorageError."""
        start, stop = self.bounds(piece)
        with self._lock:
            self._here.discard(piece)
            self._found.discard(piece)
            try:
                with self._paths[piece[0]].open("r+b", buffering=0) as file:
                    _punch(file.fileno(), start, stop - start)
            except OSError as problem:
                raise self._unwritten(problem) from problem

    @property
    def _manifest_path(self) -> Path:
        return self._folder / "manifest"

    def _view(self, piece: Piece) -> memoryview:
        start, stop = self.bounds(piece)
        return self._views[piece[0]][start:stop]

    def _on_disk(self) -> Iterator[Piece]:
        """Pieces with anything but a hole."""
        for number, path in enumerate(self._paths):
            with path.open("rb") as file:
                end = 0
                while (start := _seek(file.fileno(), end, os.SEEK_DATA)) is not None:
                    end = os.lseek(file.fileno(), start, os.SEEK_HOLE)
                    for chunk in range(start // CHUNK_BYTES, -(-end // CHUNK_BYTES)):
                        yield number, chunk

    def _unwritten(self, problem: OSError) -> StorageError:
        return StorageError(
            f"cannot write the run's text into {self._folder}: {why_not_written(problem)}",
            "free some disk space, or let it take less: [data] keep in the peer file",
        )


def _sized(path: Path, shape: ArenaShape) -> Path:
    """A sparse file of the arena's size. Raises: OSError."""
    with open(os.open(path, os.O_RDWR | os.O_CREAT, 0o600), "rb+") as file:
        os.ftruncate(file.fileno(), shape.byte_count)
    return path


def _mapped(path: Path, shape: ArenaShape) -> Tensor:
    dtype = DTYPES[shape.dtype]
    if not shape.elements:
        return torch.empty(0, dtype=dtype)
    mapped: Tensor = torch.from_file(str(path), shared=True, size=shape.elements, dtype=dtype)
    return mapped


def _seek(file: int, offset: int, whence: int) -> int | None:
    """None: nothing of that kind comes after `offset`."""
    with suppress(OSError):
        return os.lseek(file, offset, whence)
    return None


def _punch(file: int, start: int, length: int) -> None:
    """Raises: OSError."""
    library = ctypes.CDLL(None, use_errno=True)
    arguments = ctypes.c_int64(start), ctypes.c_int64(length)
    if library.fallocate(file, _PUNCH_HOLE, *arguments):
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
