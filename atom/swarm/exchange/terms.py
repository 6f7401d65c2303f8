"""What a member knows when its all-reduce begins: the terms, which all share, and its memory."""

from collections.abc import Callable
from dataclasses import dataclass, field

import torch
from torch import Tensor

from atom.swarm.chain.ring_standing import Pace
from atom.swarm.exchange.algorithm import Algorithm
from atom.swarm.exchange.codec import EXACT, Codec
from atom.swarm.exchange.leaves import Leaf
from atom.swarm.exchange.sum_limits import SumLimits


@dataclass(frozen=True)
class RingTerms:
    """What all members of one ring agree on, and this one's place in it."""

    members: tuple[str, ...]
    """Peer ids in ring order."""
    rank: int
    """Ours; a leaf's follow after those of the members."""
    tag: bytes
    """Of the attempt: see `ring_tag`."""
    scale: float
    """What the sum is multiplied by."""
    codec: Codec = field(default=EXACT)
    algorithm: Algorithm = Algorithm.RING
    progress_timeout_s: float = 3.0
    """Silence that means frozen or cut off."""
    opening_s: float = 0.0
    """After our own start, how long a neighbour may still be busy opening its other connections."""
    pace: Pace = field(default_factory=Pace)
    leaves: tuple[Leaf, ...] = ()
    """Whose sums members add to their own: each has a carrier to itself."""
    limits: SumLimits = field(default_factory=SumLimits)

    @property
    def me(self) -> str:
        return self.everybody[self.rank]

    @property
    def everybody(self) -> tuple[str, ...]:
        """Members, then leaves."""
        return self.members + tuple(leaf.peer_id for leaf in self.leaves)


@dataclass(frozen=True)
class Arenas:
    """This member's memory, each fp32 [elements], contiguous, a multiple of 16 long, distinct."""

    source: Tensor | None
    """Read only. None counts as zeros. May be bfloat16: each element counts as what it says."""
    result: Tensor
    residual: Tensor | None = None
    """Written: what encoding took away from what we sent. Added to the gradients of the next round,
    it gives them back what this one has lost."""
    landed: Callable[[int, int], None] = lambda start, stop: None
    """Told which elements [start, stop) of the result are final, by whichever thread made them so.
    Each at most once; after a failure they were not."""

    def check(self) -> None:
        given = [t for t in (self.source, self.result, self.residual) if t is not None]
        for tensor in given:
            assert tensor.dtype is torch.float32 or tensor is self.source
            assert tensor.is_contiguous()
            assert tensor.dim() == 1
            assert tensor.numel() == self.result.numel()
        assert len({tensor.data_ptr() for tensor in given if tensor.numel()}) in (0, len(given))
