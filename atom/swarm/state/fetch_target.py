"""Where fetched chunks go: new memory, given tensors, or files that survive an interruption."""

import errno
import os
import threading
from collections.abc import Mapping
from pathlib import Path

import torch
from torch import Tensor

from atom.base.disk_words import why_not_written
from atom.base.errors import MismatchError, StorageError
from atom.swarm.state.arenas import (
    DTYPES,
    ArenaManifest,
    BlobManifest,
    bytes_of,
    chunk_digest,
    dtype_name,
)
from atom.swarm.stream.frames import Interrupted

Piece = tuple[int, int]
"""Arena, chunk."""


class Target:
    """The arenas of a manifest in memory (or mapped files), and which chunks they still lack."""

    def __init__(self, manifest: BlobManifest, arenas: dict[str, Tensor]) -> None:
        self.arenas = arenas
        self.total_bytes = manifest.byte_count
        self.done_bytes = 0
        self.reused_bytes = 0
        self.missing: list[Piece] = [
            (number, chunk)
            for number, arena in enumerate(manifest.arenas)
            for chunk in range(arena.chunks)
        ]
        self._manifests = manifest.arenas
        self._views = [bytes_of(arenas[arena.name]) for arena in manifest.arenas]

    def keep_matching(self, stop: threading.Event) -> None:
        """Looks for chunks that are in place already. Raises: Interrupted."""
        missing = []
        for piece in self.missing:
            if stop.is_set():
                raise Interrupted("stopped")
            chunk = self._chunk(piece)
            if chunk_digest(chunk) == self.digest(piece):
                self.done_bytes += len(chunk)
            else:
                missing.append(piece)
        self.missing = missing
        self.reused_bytes = self.done_bytes

    def length(self, piece: Piece) -> int:
        return len(self._chunk(piece))

    def digest(self, piece: Piece) -> bytes:
        return self._manifests[piece[0]].chunk_digest(piece[1])

    def write(self, piece: Piece, chunk: memoryview) -> None:
        """Stores a checked chunk; from any thread, a second time changes nothing."""
        self._chunk(piece)[:] = chunk

    def _chunk(self, piece: Piece) -> memoryview:
        start, stop = self._manifests[piece[0]].chunk_bounds(piece[1])
        return self._views[piece[0]][start:stop]


def prepare(
    manifest: BlobManifest, into: Path | Mapping[str, Tensor] | None, stop: threading.Event
) -> Target:
    """Raises: StorageError, MismatchError, Interrupted."""
    if into is None:
        new = {a.name: torch.empty(a.elements, dtype=DTYPES[a.dtype]) for a in manifest.arenas}
        return Target(manifest, new)
    if isinstance(into, Path):
        arenas = {
            arena.name: _mapped(arena, into / f"arena-{number}")
            for number, arena in enumerate(manifest.arenas)
        }
    else:
        _check_given(manifest, into)
        arenas = dict(into)
    target = Target(manifest, arenas)
    target.keep_matching(stop)
    return target


def _mapped(arena: ArenaManifest, path: Path) -> Tensor:
    """A file's memory. Its room is reserved first: writing to a mapped file on a full disk kills
    the process."""
    dtype = DTYPES[arena.dtype]
    if arena.elements == 0:
        return torch.empty(0, dtype=dtype)
    _reserve(path, arena.byte_count)
    mapped: Tensor = torch.from_file(str(path), shared=True, size=arena.elements, dtype=dtype)
    return mapped


def _reserve(path: Path, count: int) -> None:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with open(os.open(path, os.O_RDWR | os.O_CREAT, 0o600), "rb+") as file:
            os.ftruncate(file.fileno(), count)
            os.posix_fallocate(file.fileno(), 0, count)
    except OSError as error:
        hint = "free some space" if error.errno == errno.ENOSPC else "check the state directory"
        raise StorageError(
            f"cannot reserve {count:,} bytes in {path.parent}: {why_not_written(error)}", hint
        ) from error


def _check_given(manifest: BlobManifest, given: Mapping[str, Tensor]) -> None:
    wanted = {arena.name: (arena.dtype, arena.elements) for arena in manifest.arenas}
    found = {name: (dtype_name(tensor), tensor.numel()) for name, tensor in given.items()}
    if wanted != found:
        names = sorted(name for name in wanted | found if wanted.get(name) != found.get(name))
        raise MismatchError(
            f"the swarm's state differs from this program's in {', '.join(names[:5])}",
            "compare the program hash and the versions with the run's",
        )
