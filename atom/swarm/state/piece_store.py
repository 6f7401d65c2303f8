"""Store of a blob's pieces in sparse, mapped files: a run's text, or a state that is being fetched.

A peer may have all or some of the pieces. A piece counts as present once its digest was verified;
pieces of an earlier start are verified when they are first asked for. Pieces are written by a call,
not through the map: a full disk then is an error, and does not kill the process.
"""

import os
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from atom.base.errors import PeerRefused, Reason, StorageError
from atom.base.files import why_not_written
from atom.swarm import schema
from atom.swarm.state.arenas import (
    CHUNK_BYTES,
    ArenaManifest,
    BlobManifest,
    Piece,
    PieceQueue,
    Target,
    bytes_of,
    chunk_digest,
    decode_manifest,
    map_file,
)
from atom.swarm.stream.frames import Interrupted


def text_blob(digest: bytes) -> str:
    """Return the blob name by which peers ask for the text with this state digest."""
    return f"text/{digest.hex()}"


class PieceStore:
    """Pieces of one blob on disk. Thread-safe. No other process may write into its folder."""

    def __init__(self, digest: bytes, shapes: Sequence[ArenaManifest], folder: Path) -> None:
        """Open a store, or create it.

        Args:
            digest: State digest of the whole blob.
            shapes: Its arenas in the order of their names, without chunk digests.
            folder: Folder of the store.

        Raises:
            StorageError: The files cannot be written.
        """
        self.digest, self.shapes, self._folder = digest, tuple(shapes), folder
        self.total_bytes = sum(shape.byte_count for shape in shapes)
        self._lock = threading.Lock()
        self._paths = [folder / f"arena-{number}" for number in range(len(shapes))]
        try:
            folder.mkdir(parents=True, exist_ok=True)
            for path, shape in zip(self._paths, shapes, strict=True):
                with open(os.open(path, os.O_RDWR | os.O_CREAT, 0o600), "rb+") as file:
                    os.ftruncate(file.fileno(), shape.byte_count)
            self._pieces = dict.fromkeys(self._on_disk(), False)
            """Pieces on disk; True if the digest was verified."""
            mapped = list(map(map_file, self._paths, shapes))
        except OSError as problem:
            raise self._unwritten(problem) from problem
        self._views = list(map(bytes_of, mapped))
        self.arenas = {shape.name: each for shape, each in zip(shapes, mapped, strict=True)}
        """Arenas by name, mapped; zeros in place of pieces that are not here."""
        self.manifest: BlobManifest | None = None
        """Manifest with the digests of all pieces; None until it is known."""
        with suppress(OSError, PeerRefused):
            raw = self._manifest_path.read_bytes()
            self.settle(decode_manifest(raw, self.total_bytes))

    def settle(self, manifest: BlobManifest) -> None:
        """Verify the manifest of the blob and save it.

        Raises:
            PeerRefused: HASH_MISMATCH: the manifest does not belong to this blob.
            StorageError: The manifest cannot be written.
        """
        shapes = tuple(replace(arena, chunk_digests=b"") for arena in manifest.arenas)
        if manifest.digest() != self.digest or shapes != self.shapes:
            raise PeerRefused(Reason.HASH_MISMATCH, "manifest")
        partial = self._manifest_path.with_suffix(".partial")
        try:
            partial.write_bytes(schema.encode(manifest))
            os.replace(partial, self._manifest_path)
        except OSError as problem:
            raise self._unwritten(problem) from problem
        self.manifest = manifest

    @property
    def kept_bytes(self) -> int:
        """Bytes of the pieces that are on the disk."""
        return sum(map(self.length, self.kept))

    @property
    def kept(self) -> list[Piece]:
        """Pieces that take space on the disk."""
        with self._lock:
            return list(self._pieces)

    def bounds(self, piece: Piece) -> tuple[int, int]:
        """Return the piece's first byte in its arena, and the byte after its last."""
        return self.shapes[piece[0]].chunk_bounds(piece[1])

    def length(self, piece: Piece) -> int:
        """Return the bytes of a piece."""
        start, stop = self.bounds(piece)
        return stop - start

    def has(self, piece: Piece) -> bool:
        """Return True if the piece is here and its digest is right; verify it if necessary."""
        with self._lock:
            if self._pieces.get(piece) is False and self.manifest is not None:
                if chunk_digest(self._view(piece)) == self.piece_digest(piece):
                    self._pieces[piece] = True
                else:
                    del self._pieces[piece]
            return self._pieces.get(piece, False)

    def piece_digest(self, piece: Piece) -> bytes:
        """Return the digest of a piece; the manifest must be known."""
        assert self.manifest is not None
        return self.manifest.piece_digest(piece)

    def chunk(self, piece: Piece) -> memoryview:
        """Return a verified copy of a piece, to be sent to another peer.

        Raises:
            PeerRefused: NOT_FOUND: the blob has no such piece. PIECE_MISSING: it is not here.
        """
        arena, number = piece
        if arena >= len(self.shapes) or number >= self.shapes[arena].chunks:
            raise PeerRefused(Reason.NOT_FOUND, f"no chunk {number} of arena {arena}")
        if self.has(piece):
            raw = memoryview(bytes(self._view(piece)))
            if chunk_digest(raw) == self.piece_digest(piece):  # the disk may have failed since
                return raw
        raise PeerRefused(Reason.PIECE_MISSING, f"chunk {number} of arena {arena}")

    def write(self, piece: Piece, chunk: memoryview) -> None:
        """Write one verified piece to disk.

        Raises:
            StorageError: The piece cannot be written.
        """
        with self._lock:
            if self._pieces.get(piece):
                return
            try:
                with self._paths[piece[0]].open("r+b") as file:
                    file.seek(self.bounds(piece)[0])
                    file.write(chunk)
            except OSError as problem:
                raise self._unwritten(problem) from problem
            self._pieces[piece] = True

    @property
    def _manifest_path(self) -> Path:
        return self._folder / "manifest"

    def _view(self, piece: Piece) -> memoryview:
        start, stop = self.bounds(piece)
        return self._views[piece[0]][start:stop]

    def _on_disk(self) -> Iterator[Piece]:
        """Yield pieces that are not entirely a hole of their sparse file, some repeatedly."""
        for number, path in enumerate(self._paths):
            with path.open("rb") as file, suppress(OSError):  # raised after the last data
                end = 0
                while True:
                    start = os.lseek(file.fileno(), end, os.SEEK_DATA)
                    end = os.lseek(file.fileno(), start, os.SEEK_HOLE)
                    for chunk in range(start // CHUNK_BYTES, -(-end // CHUNK_BYTES)):
                        yield number, chunk

    def _unwritten(self, problem: OSError) -> StorageError:
        return StorageError(
            f"cannot write into {self._folder}: {why_not_written(problem)}",
            "free some disk space, or choose a larger disk: [state] directory in the peer file",
        )


def store_target(
    store: PieceStore,
    pieces: Iterable[Piece],
    stop: threading.Event,
    on_stored: Callable[[Piece], None] = lambda piece: None,
) -> Target:
    """Find out which pieces are missing, and return a target that writes them into a store.

    Args:
        store: Store with a known manifest.
        pieces: Pieces to fetch.
        stop: Event that interrupts the check of pieces on disk.
        on_stored: Called with each piece once it is in the store; at once for pieces that already
            are.

    Raises:
        Interrupted: `stop` was set.
    """
    missing, total_bytes, reused_bytes = deque[Piece](), 0, 0
    for piece in pieces:
        if stop.is_set():
            raise Interrupted("stopped")
        total_bytes += store.length(piece)
        if store.has(piece):
            reused_bytes += store.length(piece)
            on_stored(piece)
        else:
            missing.append(piece)

    def write(piece: Piece, chunk: memoryview) -> None:
        store.write(piece, chunk)
        on_stored(piece)

    queue, digest = PieceQueue(missing), store.piece_digest
    return Target(queue, store.length, digest, write, total_bytes, reused_bytes, reused_bytes)
