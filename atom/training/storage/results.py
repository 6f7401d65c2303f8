"""Averaged results: in memory until their round is over, on disk until a snapshot covers them.

A result is named by its digest and never changes once it has its name, so it can be handed to
anyone who asks for that digest.
"""

import threading
from collections.abc import Set
from pathlib import Path

import torch
from torch import Tensor

from atom.base.errors import StorageError
from atom.base.leftover import remove_leftover
from atom.swarm.state.arenas import arena_digest
from atom.swarm.state.blobs import RESULT_ARENA
from atom.training.storage.disk import not_written, read_tensors, sync, write_tensors


class Results:
    """Thread-safe. Tensors are flat float32 [elements] on the host."""

    def __init__(self, folder: Path, elements: int) -> None:
        self.folder = folder
        self.arena_bytes = 4 * elements
        """Of one result."""
        self._elements = elements
        self._lock = threading.Lock()
        self._held: dict[bytes, Tensor] = {}
        self._spare: list[Tensor] = []
        self._lent: set[bytes] = set()
        """Held ones that others may be reading: no later round writes into their memory."""

    def buffer(self) -> Tensor:
        """An arena for a result to come; give it back with `hold` or `discard`."""
        with self._lock:
            if self._spare:
                return self._spare.pop()
        return torch.zeros(self._elements)

    def hold(self, digest: bytes, result: Tensor) -> None:
        with self._lock:
            self._held[digest] = result

    def discard(self, result: Tensor) -> None:
        with self._lock:
            self._spare.append(result)

    def get(self, digest: bytes) -> Tensor | None:
        """From memory, else from disk; None if it is in neither (or not under its own digest)."""
        with self._lock:
            held = self._held.get(digest)
        if held is not None:
            return held
        stored = self._stored(digest)
        return stored if stored is not None and arena_digest(stored) == digest else None

    def lend(self, digest: bytes) -> Tensor | None:
        """A result for others to read: from memory, also before anybody knows whether it will be
        committed, else from disk, unchecked. None if it is in neither."""
        with self._lock:
            held = self._held.get(digest)
            if held is not None:
                self._lent.add(digest)
                return held
        return self._stored(digest)

    def path(self, digest: bytes) -> Path:
        return self.folder / f"{digest.hex()}.safetensors"

    def save(self, digest: bytes) -> None:
        """Puts a held result on disk. Raises: StorageError when the disk is full or gone."""
        with self._lock:
            result = self._held[digest]
        write_tensors(self.path(digest), {RESULT_ARENA: result})

    def sync(self, digest: bytes) -> None:
        """Sees a saved result through a power cut. Raises: StorageError."""
        try:
            sync(self.path(digest))
        except OSError as problem:
            raise not_written(self.path(digest), problem) from problem

    def keep(self, digests: Set[bytes]) -> None:
        """Forgets all others; their arenas are not used again, since somebody may still read
        them."""
        with self._lock:
            for digest in self._held.keys() - digests:
                del self._held[digest]
            self._lent &= digests

    def release(self) -> None:
        """The round is over: forgets what is in memory, keeps two arenas for the next."""
        with self._lock:
            mine = (result for digest, result in self._held.items() if digest not in self._lent)
            self._spare.extend(mine)
            self._held.clear()
            self._lent.clear()
            del self._spare[2:]

    def prune(self, keep: Set[bytes]) -> None:
        """Deletes stored results but those named."""
        names = {digest.hex() for digest in keep}
        for path in self.folder.glob("*.safetensors"):
            if path.stem not in names:
                remove_leftover(path)

    def _stored(self, digest: bytes) -> Tensor | None:
        try:
            stored = read_tensors(self.path(digest)).get(RESULT_ARENA)
        except StorageError:
            return None
        if stored is None or stored.shape != (self._elements,) or stored.dtype != torch.float32:
            return None
        return stored
