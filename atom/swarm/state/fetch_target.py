"""Where fetched chunks go: memory, or files that survive an interruption; and who is asked for
which."""

import errno
import os
import threading
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import torch
from torch import Tensor

from atom.base.errors import StorageError
from atom.base.files import why_not_written
from atom.swarm.state.arenas import (
    DTYPES,
    ArenaManifest,
    BlobManifest,
    bytes_of,
    chunk_digest,
)
from atom.swarm.stream.frames import Interrupted

Piece = tuple[int, int]
"""Arena, chunk."""
_MOST_OWED = 4
"""Pieces under way with a donor."""
_OVERDUE_S = 1.0


@dataclass
class PieceQueue:
    """Which donor is asked for which piece. Pure, not thread-safe.

    When nothing is left to ask for, an idle donor is asked for what another one owes for too long;
    the first copy counts. A piece is asked of two donors at most.
    """

    pending: deque[Piece]
    asked: dict[Piece, dict[str, float]] = field(default_factory=dict)
    """Of each piece that is missing and not pending: who was asked for it, and when."""

    @property
    def missing(self) -> int:
        return len(self.pending) + len(self.asked)

    def take(self, donor: str, under_way: int, now: float) -> Piece | None:
        """A piece to ask `donor` for, which owes `under_way`; None if it has enough to do, or
        nothing is left for it."""
        if under_way < _MOST_OWED and self.pending:
            piece = self.pending.popleft()
        elif under_way or (overdue := self._overdue(donor, now)) is None:
            return None
        else:
            piece = overdue
        self.asked.setdefault(piece, {})[donor] = now
        return piece

    def landed(self, piece: Piece) -> bool:
        """Whether it was still missing."""
        return self.asked.pop(piece, None) is not None

    def drop(self, donor: str, owed: Sequence[Piece]) -> None:
        """The donor is gone: what only it was asked for is wanted again, and first."""
        for piece in reversed(owed):
            askers = self.asked.get(piece, {})
            if askers.pop(donor, None) is not None and not askers:
                del self.asked[piece]
                self.pending.appendleft(piece)

    def _overdue(self, donor: str, now: float) -> Piece | None:
        """The one asked for last: a donor delivers in order, so it would come last, too."""
        late = [
            (since, piece)
            for piece, askers in self.asked.items()
            if len(askers) == 1 and donor not in askers
            for since in askers.values()
            if now - since >= _OVERDUE_S
        ]
        return max(late)[1] if late else None


class Target:
    """The arenas of a manifest in memory (or mapped files), and which chunks they still lack."""

    def __init__(
        self,
        manifest: BlobManifest,
        into: Path | None,
        given_bytes: Mapping[str, int],
        stop: threading.Event,
    ) -> None:
        """Chunks that are in place already lack nothing. Raises: StorageError, Interrupted."""
        arenas = self.arenas = _in_memory(manifest) if into is None else _in_files(manifest, into)
        self.given_bytes = given_bytes
        """Donor → what came from it, second copies of a piece included."""
        self.total_bytes = manifest.byte_count
        self._manifests = manifest.arenas
        self._views = [bytes_of(arenas[arena.name]) for arena in manifest.arenas]
        self.queue = PieceQueue(deque())
        for piece in self._pieces():
            if stop.is_set():
                raise Interrupted("stopped")
            if chunk_digest(self._chunk(piece)) != self.digest(piece):
                self.queue.pending.append(piece)
        self.done_bytes = self.total_bytes - sum(map(self.length, self.queue.pending))
        self.reused_bytes = self.done_bytes
        """Found in place and not fetched."""

    def _pieces(self) -> list[Piece]:
        numbered = enumerate(self._manifests)
        return [(number, chunk) for number, arena in numbered for chunk in range(arena.chunks)]

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


def _in_memory(manifest: BlobManifest) -> Mapping[str, Tensor]:
    return {
        arena.name: torch.zeros(arena.elements, dtype=DTYPES[arena.dtype])
        for arena in manifest.arenas
    }


def _in_files(manifest: BlobManifest, folder: Path) -> Mapping[str, Tensor]:
    numbered = enumerate(manifest.arenas)
    return {arena.name: _mapped(arena, folder / f"arena-{number}") for number, arena in numbered}


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
