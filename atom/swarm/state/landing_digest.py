"""An arena's digest, taken chunk by chunk while the rest of the arena is still on its way."""

import torch
from torch import Tensor

from atom.base.landing import LandedBlocks
from atom.swarm.state.arenas import CHUNK_BYTES, ArenaManifest, bytes_of, chunk_digest, dtype_name


class LandingDigest:
    """The digest of a flat host tensor whose parts become final one by one.

    A chunk is hashed, on threads of this object's own, when all of it has landed. The same bytes as
    `arena_digest`, in whatever order and pieces it lands.
    """

    def __init__(self, arena: Tensor, threads: int | None = None) -> None:
        """`threads`: as many as PyTorch may use, unless told."""
        view, width = bytes_of(arena), arena.element_size()

        def hashed(start: int, stop: int) -> bytes:
            return chunk_digest(view[start * width : stop * width], threads=1)

        most = threads or torch.get_num_threads()
        chunk_elements = CHUNK_BYTES // width
        self._arena = arena
        self._chunks = LandedBlocks(arena.numel(), chunk_elements, hashed, most, "atom-digest")
        self.landed = self._chunks.landed
        self.close = self._chunks.close

    def digest(self) -> bytes:
        """Waits for the last chunks. What has not landed counts as it is now. Call once, at the
        end."""
        arena, chunks = self._arena, b"".join(self._chunks.found())
        return ArenaManifest("", dtype_name(arena), arena.numel(), chunks).digest()
