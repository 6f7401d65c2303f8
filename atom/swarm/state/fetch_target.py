"""Where fetched chunks go: new memory, given tensors, or files that survive an interruption."""

import contextlib
import errno
import os
import struct
import threading
from collections.abc import Mapping
from pathlib import Path

import torch
from torch import Tensor

from atom.base.disk_words import why_not_written
from atom.base.errors import MismatchError, StorageError
from atom.swarm.state.arenas import (
    CHUNK_BYTES,
    DTYPES,
    ArenaManifest,
    bytes_of,
    chunk_digest,
    dtype_name,
)
from atom.swarm.state.manifest import Manifest
from atom.swarm.stream.frames import Interrupted

_LANDED = "landed"
_PIECE = struct.Struct(">IQ")


class Target:
    """The arenas of a manifest in memory (or mapped files), and which chunks they still lack."""

    def __init__(
        self, manifest: Manifest, arenas: dict[str, Tensor], log: "Landed | None" = None
    ) -> None:
        self._log = log
        self.arenas = arenas
        self.total_bytes = manifest.byte_count
        self.done_bytes = 0
        self.reused_bytes = 0
        self.missing: list[tuple[int, int]] = [
            (number, chunk)
            for number, arena in enumerate(manifest.arenas)
            for chunk in range(arena.chunks)
        ]
        self._manifests = manifest.arenas
        self._views = [bytes_of(arenas[arena.name]) for arena in manifest.arenas]

    def keep_matching(self, stop: threading.Event) -> None:
        """Looks for chunks that are in place already: for those in the log, or for any.

        Raises: Interrupted.
        """
        likely = set(self.missing) if self._log is None else self._log.pieces()
        missing = []
        for piece in self.missing:
            if piece not in likely:
                missing.append(piece)
                continue
            if stop.is_set():
                raise Interrupted("stopped")
            start, stop_byte = self._bounds(piece)
            if chunk_digest(self._views[piece[0]][start:stop_byte]) == self.digest(piece):
                self.done_bytes += stop_byte - start
            else:
                missing.append(piece)
        self.missing = missing
        self.reused_bytes = self.done_bytes

    def length(self, piece: tuple[int, int]) -> int:
        start, stop = self._bounds(piece)
        return stop - start

    def digest(self, piece: tuple[int, int]) -> bytes:
        return self._manifests[piece[0]].chunk_digest(piece[1])

    def write(self, piece: tuple[int, int], chunk: memoryview) -> None:
        """Stores a checked chunk; from any thread, a second time changes nothing."""
        start, stop = self._bounds(piece)
        self._views[piece[0]][start:stop] = chunk
        if self._log is not None:
            self._log.add(piece)

    def _bounds(self, piece: tuple[int, int]) -> tuple[int, int]:
        return self._manifests[piece[0]].chunk_bounds(piece[1])


class Landed:
    """Which pieces a folder holds, as far as is known: appended after each, checked by hash before
    it is believed. A disk that takes no more costs time after a crash, and nothing else."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / _LANDED

    def pieces(self) -> set[tuple[int, int]]:
        try:
            raw = self._path.read_bytes()
        except OSError:
            return set()
        whole = len(raw) - len(raw) % _PIECE.size
        return {(arena, chunk) for arena, chunk in _PIECE.iter_unpack(raw[:whole])}

    def add(self, piece: tuple[int, int]) -> None:
        with contextlib.suppress(OSError), self._path.open("ab", buffering=0) as file:
            file.write(_PIECE.pack(*piece))


def landed_bytes(folder: Path) -> int:
    """About how much of a blob an interrupted fetch left in `folder`."""
    return len(Landed(folder).pieces()) * CHUNK_BYTES


def prepare(
    manifest: Manifest, into: Path | Mapping[str, Tensor] | None, stop: threading.Event
) -> Target:
    """Raises: StorageError, MismatchError, Interrupted."""
    if into is None:
        new = {
            arena.name: torch.empty(arena.elements, dtype=_dtype(arena))
            for arena in manifest.arenas
        }
        return Target(manifest, new)
    if isinstance(into, Path):
        target = Target(manifest, _map_files(manifest, into), Landed(into))
    else:
        _check_given(manifest, into)
        target = Target(manifest, dict(into))
    target.keep_matching(stop)
    return target


def _dtype(arena: ArenaManifest) -> torch.dtype:
    return DTYPES[arena.dtype]


def _map_files(manifest: Manifest, directory: Path) -> dict[str, Tensor]:
    """One file per arena, its room reserved first: writing to a mapped file on a full disk kills
    the process."""
    arenas = {}
    for number, arena in enumerate(manifest.arenas):
        if arena.elements == 0:
            arenas[arena.name] = torch.empty(0, dtype=_dtype(arena))
            continue
        path = directory / f"arena-{number}"
        _reserve(path, arena.byte_count)
        arenas[arena.name] = torch.from_file(
            str(path), shared=True, size=arena.elements, dtype=_dtype(arena)
        )
    return arenas


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


def _check_given(manifest: Manifest, given: Mapping[str, Tensor]) -> None:
    wanted = {arena.name: (arena.dtype, arena.elements) for arena in manifest.arenas}
    found = {name: (dtype_name(tensor), tensor.numel()) for name, tensor in given.items()}
    if wanted != found:
        names = sorted(name for name in wanted | found if wanted.get(name) != found.get(name))
        raise MismatchError(
            f"the swarm's state differs from this program's in {', '.join(names[:5])}",
            "compare the program hash and the versions with the run's",
        )
