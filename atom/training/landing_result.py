"""What a round has to know of an average, reckoned while the average is still on its way."""

from torch import Tensor

from atom.optim.clipping import LandingNorm
from atom.swarm.state.arenas import LandingDigest


class LandingResult:
    """Norm and digest of a result whose parts become final one by one. Each owns threads; they are
    gone when `known` or `close` has returned."""

    def __init__(self, result: Tensor) -> None:
        self._norm, self._digest = LandingNorm(result), LandingDigest(result)

    def landed(self, start: int, stop: int) -> None:
        """Elements [start, stop) are final, and were not before. From any thread; does not wait."""
        self._norm.landed(start, stop)
        self._digest.landed(start, stop)

    def known(self) -> tuple[float, bytes]:
        """Norm and digest, when both are known. Call once, when all has landed."""
        return self._norm.norm(), self._digest.digest()

    def close(self) -> None:
        """Nobody wants to know any more. The result is not read after this."""
        self._norm.close()
        self._digest.close()
