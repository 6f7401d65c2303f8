"""Averaged results: in memory until their round is over, on disk until a snapshot covers them.

A result is named by its digest and never changes once it has its name, so it can be handed to
anyone who asks for that digest. Its memory is not used again: somebody may still be reading it.
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
from atom.training.storage.disk import read_tensors, write_tensors


class Results:
    """Thread-safe. Tensors are flat float32 [elements] on the host."""

    def __init__(self, folder: Path, elements: int) -> None:
        self.folder = folder
        self.elements = elements
        self.arena_bytes = 4 * elements
        """Of one result."""
        self._lock = threading.Lock()
        self._held: dict[bytes, Tensor] = {}

    def hold(self, digest: bytes, result: Tensor) -> None:
        with self._lock:
            self._held[digest] = result

    def get(self, digest: bytes) -> Tensor | None:
        """From memory, else from disk; None if it is in neither (or not under its own digest)."""
        found, held = self.unchecked(digest), self._held.get(digest)
        if found is None or found is held:
            return found
        return found if arena_digest(found) == digest else None

    def unchecked(self, digest: bytes) -> Tensor | None:
        """As `get`, but who reads it has to see whether the disk gave what it was given."""
        held = self._held.get(digest)
        return self._stored(digest) if held is None else held

    def save(self, digest: bytes, result: Tensor) -> None:
        """Puts it on disk; a power cut within the next half minute may take it. Raises:
        StorageError when the disk is full or gone."""
        write_tensors(self.path(digest), {RESULT_ARENA: result})

    def keep(self, digests: Set[bytes]) -> None:
        """Forgets all others that are in memory."""
        with self._lock:
            self._held = {name: self._held[name] for name in self._held.keys() & digests}

    def prune(self, keep: Set[bytes]) -> None:
        """Deletes stored results but those named."""
        names = {digest.hex() for digest in keep}
        for path in self.folder.glob("*.safetensors"):
            if path.stem not in names:
                remove_leftover(path)

    def path(self, digest: bytes) -> Path:
        return self.folder / f"{digest.hex()}.safetensors"

    def _stored(self, digest: bytes) -> Tensor | None:
        try:
            stored = read_tensors(self.path(digest)).get(RESULT_ARENA)
        except StorageError:
            return None
        if stored is None or stored.shape != (self.elements,) or stored.dtype != torch.float32:
            return None
        return stored
