"""Results of rounds, in memory and on this peer's disk.

A result stays in memory until its round is over, and on disk until a snapshot covers it. It is kept
in its encoded form, as sent between peers, and named by the digest of these bytes. It never changes
under that name, so any peer that asks for the digest can have it. Its memory is never reused,
because a reader may still hold it.
"""

import threading
from collections.abc import Set
from pathlib import Path

from atom.base.errors import PeerRefused, StorageError
from atom.base.files import remove_leftover
from atom.swarm.exchange.codec import Codec
from atom.swarm.exchange.encoded import EncodedMean, MeanNumbers
from atom.swarm.state.arenas import state_digest
from atom.training.storage.disk import read_tensors, write_tensors


class Results:
    """Results that this peer has, by their digests. Thread-safe."""

    def __init__(self, folder: Path, elements: int, codec: Codec) -> None:
        """Open the results in a folder.

        Args:
            folder: Folder of saved results, one file each.
            elements: Number of elements in each result.
            codec: Codec of the run, in whose form results are kept.
        """
        self.folder, self.elements, self.codec = folder, elements, codec
        self._lock = threading.Lock()
        self._held: dict[bytes, EncodedMean] = {}

    @property
    def usual_bytes(self) -> int:
        """Largest size of a result in bytes, without a few more bytes for each chunk."""
        return self.codec.wire_bytes(self.elements)

    def numbers(self, digest: bytes) -> MeanNumbers:
        """Return the numbers of a held result that an exchange made or `check` accepted."""
        return self._held[digest].numbers(self.codec, self.elements)

    def check(self, digest: bytes) -> None:
        """Require that a held result can be decoded.

        Raises:
            PeerRefused: The bytes cannot be decoded.
        """
        self._held[digest].check(self.codec, self.elements)

    def hold(self, digest: bytes, result: EncodedMean) -> None:
        """Keep a result in memory."""
        with self._lock:
            self._held[digest] = result

    def get(self, digest: bytes) -> EncodedMean | None:
        """Return a result from memory, else from disk; None if neither has it under its digest."""
        found, held = self.unchecked(digest), self._held.get(digest)
        if found is None or found is held:
            return found
        return found if state_digest(found.arenas) == digest else None

    def unchecked(self, digest: bytes) -> EncodedMean | None:
        """Return a result as `get` does, without comparing a file's content with its digest."""
        held = self._held.get(digest)
        return self._stored(digest) if held is None else held

    def save(self, digest: bytes) -> None:
        """Write a held result to disk; a power cut within the next half minute may lose it.

        Raises:
            StorageError: The disk is full or gone.
        """
        write_tensors(self.path(digest), self._held[digest].arenas)

    def keep(self, digests: Set[bytes]) -> None:
        """Drop all results from memory except the results with these digests."""
        with self._lock:
            self._held = {name: self._held[name] for name in self._held.keys() & digests}

    def prune(self, keep: Set[bytes]) -> None:
        """Delete all stored results but these."""
        names = {digest.hex() for digest in keep}
        for path in self.folder.glob("*.safetensors"):
            if path.stem not in names:
                remove_leftover(path)

    def path(self, digest: bytes) -> Path:
        """Return the path of a result's file."""
        return self.folder / f"{digest.hex()}.safetensors"

    def _stored(self, digest: bytes) -> EncodedMean | None:
        try:
            return EncodedMean.of(read_tensors(self.path(digest)))
        except (StorageError, PeerRefused):
            return None
