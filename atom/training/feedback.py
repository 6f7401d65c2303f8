"""What a coarse codec took away from this peer's gradients, until a later round gets it back.

Without it a codec of eight bits would lose the same small numbers round after round. With it they
add up here until they are large enough to be sent (error feedback: Seide et al. 2014, "1-bit
stochastic gradient descent"; Karimireddy et al. 2019). It is this peer's own: replicas agree
because all apply the same decoded average.

One arena serves three times per round: what the last round left is folded into the gradients
before they are offered; then the ring writes what this round leaves; and that counts only if the
round is committed with this ring's result and our part in it.
"""

import torch

from atom.swap.host_memory import allocate_host_memory
from atom.swap.host_sums import add


class Feedback:
    """One arena, fp32 [elements]. `fold`, `committed` and `forget` on the worker's thread, `begin`
    and `written` on a ring's in between; the round takes care that they do not meet."""

    def __init__(self, elements: int) -> None:
        """Raises: MemoryError."""
        self._arena = allocate_host_memory(elements, torch.float32)
        self._kept = False
        """Whether the arena holds something to be given back."""
        self._written_for = b""

    def fold(self, gradients: torch.Tensor) -> None:
        """Adds what is kept to `gradients`, sums over sequences like itself; once."""
        if self._kept:
            add(gradients, self._arena)
        self._kept = False

    def begin(self) -> torch.Tensor:
        """The arena, for a ring that our gradients take part in. What was kept is folded by now."""
        assert not self._kept
        self._written_for = b""
        return self._arena

    def written(self, result_digest: bytes) -> None:
        """The ring has filled the arena; this is the result it made."""
        self._written_for = result_digest

    def committed(self, result_digest: bytes) -> None:
        """The round is decided: what its own ring left is kept, what any other left is not."""
        self._kept = self._kept or self._written_for == result_digest
        self._written_for = b""

    def forget(self) -> None:
        """The gradients of another history: nothing is owed to this one."""
        self._kept, self._written_for = False, b""
