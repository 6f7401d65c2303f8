"""The results of rounds, in memory and on this peer's disk.

Results are in memory until their round is over, on disk until a snapshot covers them. A result is
kept in the bytes that travelled, is named by their digest, and never changes once it has its name,
so it can be handed to anyone who asks for that digest. Its memory is not used again: somebody may
still be reading it.
"""

import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Set
from pathlib import Path
from typing import Any, Generic, TypeVar

from atom.base.errors import PeerRefused, StorageError
from atom.base.files import remove_leftover
from atom.optim.gradients import FlatNumbers
from atom.swarm.exchange.codec import Codec
from atom.swarm.exchange.encoded import EncodedMean, MeanNumbers
from atom.swarm.state.arenas import state_digest
from atom.swarm.state.blobs import Content
from atom.training.storage.disk import read_tensors, write_tensors

R = TypeVar("R")


class KeptResults(ABC, Generic[R]):
    """By their digests. Thread-safe."""

    def __init__(self, folder: Path, elements: int, codec: Codec) -> None:
        """`elements`: of each mean. `codec`: of the run."""
        self.folder, self.elements, self.codec = folder, elements, codec
        self._lock = threading.Lock()
        self._held: dict[bytes, R] = {}

    @property
    @abstractmethod
    def usual_bytes(self) -> int:
        """The most that a result takes, but for a few per chunk."""

    @abstractmethod
    def numbers(self, digest: bytes) -> FlatNumbers:
        """What a held result says, which an exchange or `check` found to say something."""

    @abstractmethod
    def check(self, digest: bytes) -> None:
        """Whether a held result says anything. Raises: PeerRefused."""

    @abstractmethod
    def fetch(self, digest: bytes, ask: Callable[[bytes], Content]) -> None:
        """Holds a result, from here or as `ask` gives it: contents by their digests. Raises: what
        `ask` does; PeerRefused(MALFORMED)."""

    @abstractmethod
    def served(self, digest: bytes) -> Content | None:
        """What others get under that digest. Who reads it has to see whether the disk gave what it
        was given."""

    def hold(self, digest: bytes, result: R) -> None:
        """Keeps it in memory."""
        with self._lock:
            self._held[digest] = result

    @abstractmethod
    def get(self, digest: bytes) -> R | None:
        """From memory, else from disk; None if it is in neither (or not under its own digest)."""

    @abstractmethod
    def save(self, digest: bytes) -> None:
        """Puts a held one on disk; a power cut within the next half minute may take it. Raises:
        StorageError when the disk is full or gone."""

    def keep(self, digests: Set[bytes]) -> None:
        """Forgets all others that are in memory."""
        with self._lock:
            self._held = {name: self._held[name] for name in self._held.keys() & digests}

    def prune(self, keep: Set[bytes]) -> None:
        """Deletes stored results but those named."""
        for path in self.unnamed(keep):
            remove_leftover(path)

    def unnamed(self, keep: Set[bytes]) -> Set[Path]:
        """Files of all others."""
        there = [*self.folder.glob("*.safetensors")]  # first: what comes meanwhile stays
        names = {digest.hex() for digest in self.named_with(keep)}
        return {path for path in there if path.stem not in names}

    def began(self, keep: Set[bytes]) -> None:
        """A start, before anything is pruned; these results would stay."""

    def named_with(self, digests: Set[bytes]) -> Set[bytes]:
        """Names of all files that belong to these results, or may yet."""
        return digests

    def path(self, digest: bytes) -> Path:
        return self.folder / f"{digest.hex()}.safetensors"


AnyResults = KeptResults[Any]


class Results(KeptResults[EncodedMean]):
    """Means of all elements."""

    @property
    def usual_bytes(self) -> int:
        return self.codec.wire_bytes(self.elements)

    def numbers(self, digest: bytes) -> MeanNumbers:
        return self._held[digest].numbers(self.codec, self.elements)

    def check(self, digest: bytes) -> None:
        self._held[digest].check(self.codec, self.elements)

    def fetch(self, digest: bytes, ask: Callable[[bytes], Content]) -> None:
        self.hold(digest, self.get(digest) or EncodedMean.of(ask(digest)))

    def served(self, digest: bytes) -> Content | None:
        found = self.unchecked(digest)
        return None if found is None else found.arenas

    def get(self, digest: bytes) -> EncodedMean | None:
        found, held = self.unchecked(digest), self._held.get(digest)
        if found is None or found is held:
            return found
        return found if state_digest(found.arenas) == digest else None

    def unchecked(self, digest: bytes) -> EncodedMean | None:
        """As `get`, but who reads it has to see whether the disk gave what it was given."""
        held = self._held.get(digest)
        return self._stored(digest) if held is None else held

    def save(self, digest: bytes) -> None:
        write_tensors(self.path(digest), self._held[digest].arenas)

    def _stored(self, digest: bytes) -> EncodedMean | None:
        try:
            return EncodedMean.of(read_tensors(self.path(digest)))
        except (StorageError, PeerRefused):
            return None
