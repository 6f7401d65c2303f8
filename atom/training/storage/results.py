"""Averaged gradients: in memory until their round is over, on disk until a snapshot covers them.

A result is named by its digest and never changes once it has its name, so it can be handed to
anyone who asks for that digest.
"""

import os
import re
import threading
from collections.abc import Set
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file

from atom.base.disk_words import why_not_written
from atom.base.errors import StorageError
from atom.base.leftover import remove_leftover
from atom.swarm.state.arenas import arena_digest

_KEY = "result"
_DIGEST_NAME = re.compile("[0-9a-f]{64}")


class Results:
    """Thread-safe. Tensors are flat float32 [elements] on the host."""

    def __init__(self, folder: Path, elements: int) -> None:
        self._folder = folder
        self._elements = elements
        self._lock = threading.Lock()
        self._held: dict[bytes, torch.Tensor] = {}
        self._spare: list[torch.Tensor] = []
        self._lent: set[bytes] = set()

    def buffer(self) -> torch.Tensor:
        """An arena for a result to come; give it back with `hold` or `discard`."""
        with self._lock:
            if self._spare:
                return self._spare.pop()
        return torch.zeros(self._elements)

    @property
    def arena_bytes(self) -> int:
        """Of one result."""
        return 4 * self._elements

    def hold(self, digest: bytes, result: torch.Tensor) -> None:
        with self._lock:
            self._held[digest] = result

    def discard(self, result: torch.Tensor) -> None:
        with self._lock:
            self._spare.append(result)

    def get(self, digest: bytes) -> torch.Tensor | None:
        """From memory, else from disk; None if it is in neither (or not under its own digest)."""
        with self._lock:
            held = self._held.get(digest)
        if held is not None:
            return held
        try:
            stored = load_file(self.path(digest)).get(_KEY)
        except (OSError, SafetensorError):
            return None
        if stored is None or stored.shape != (self._elements,) or stored.dtype != torch.float32:
            return None
        return stored if arena_digest(stored) == digest else None

    def stored(self) -> list[bytes]:
        """Digests of the results on disk."""
        return [
            bytes.fromhex(path.stem)
            for path in self._folder.glob("*.safetensors")
            if _DIGEST_NAME.fullmatch(path.stem)
        ]

    def tidy(self) -> None:
        """Removes what a crash left half-written."""
        for path in self._folder.glob("*.partial"):
            remove_leftover(path)

    def path(self, digest: bytes) -> Path:
        return self._folder / f"{digest.hex()}.safetensors"

    def save(self, digest: bytes) -> None:
        """Puts a held result on disk. Raises: StorageError when the disk is full or gone."""
        with self._lock:
            result = self._held[digest]
        path = self.path(digest)
        aside = path.with_suffix(".partial")
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            save_file({_KEY: result}, aside)
            aside.replace(path)
        except (OSError, SafetensorError) as problem:
            remove_leftover(aside)
            raise StorageError(
                f"could not write the result {path}: {why_not_written(problem)}",
                "free some disk space; until then a restart has to fetch it from others",
            ) from problem

    def sync(self, digest: bytes) -> None:
        """Sees a saved result through to the disk itself, which a power cut asks for. Takes as long
        as the disk does. Raises: StorageError."""
        path = self.path(digest)
        try:
            with path.open("rb") as file:
                os.fsync(file.fileno())
        except OSError as problem:
            raise StorageError(
                f"could not write the result {path}: {why_not_written(problem)}",
                "look at the disk; until then a restart has to fetch it from others",
            ) from problem

    def lend(self, digest: bytes) -> torch.Tensor | None:
        """A held result, for others to read from memory: no later round writes into it. None if it
        is not held."""
        with self._lock:
            result = self._held.get(digest)
            if result is not None:
                self._lent.add(digest)
            return result

    @property
    def lent(self) -> set[bytes]:
        """Digests of the results that are held and were lent."""
        with self._lock:
            return set(self._lent)

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

    def prune(self, keep: set[bytes]) -> None:
        """Deletes stored results but those named."""
        names = {digest.hex() for digest in keep}
        for path in self._folder.glob("*.safetensors"):
            if path.stem not in names:
                remove_leftover(path)
