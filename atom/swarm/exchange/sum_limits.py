"""How large the numbers in a sum may be, by how many parts are in it. Pure.

Each member takes care that its own part is within its limit, and that what it passes on is within
that of the parts in it. So a sum beyond its limit comes from a liar, and the first honest member
that sees it has it from the liar itself: whoever is honest would not have passed it on. Without
limits a sum would only be noticed where it overflows, at somebody honest.

With d for what a codec's rounding may add, relatively, to the largest number of a chunk: who
contributes adds up to 2·(1 + d)·P, its own part P and a leaf's that was rounded, to what arrived;
and the sum is rounded. A(n) below is above all of that: A(n) > (A(n - 1) + 2·(1 + d)·P)·(1 + d).
"""

from dataclasses import dataclass

from atom.swarm.exchange.chunk_kernels import LARGEST_FLOAT32
from atom.swarm.exchange.geometry import Step

LARGEST_PART = 1e30
"""Of any number in one member's sums: a thousand such do not overflow."""
_ROUNDING = 2.0**-8
"""d. Of int8, the coarsest: half a step, of 127."""
MOST_CONTRIBUTORS = 1000
"""For so many the limits stay below what float32 overflows at."""


@dataclass(frozen=True)
class SumLimits:
    """Of one ring: the same for all of its members."""

    part: float = LARGEST_PART
    """P: of any number in one member's sums ."""

    def __post_init__(self) -> None:
        assert 0.0 < self.part <= LARGEST_PART

    @property
    def rounded_part(self) -> float:
        """As it arrives from whoever made it."""
        return self.part * (1 + _ROUNDING)

    def arriving(self, step: Step) -> float:
        """In the sum that a step brings."""
        return self._of(step.contributors.bit_count())

    def passed_on(self, step: Step) -> float:
        """In the sum of that with our own part and our leaf's, before it is rounded."""
        return self._of(step.contributors.bit_count() + 1) / (1 + _ROUNDING)

    def of_parts(self, count: int) -> float:
        """In a sum of so many that came from those who made them."""
        return min(count * self.rounded_part * (1 + _ROUNDING), LARGEST_FLOAT32)

    def mean(self, members: int, scale: float) -> float:
        """In what a segment's owner gives to all: the sum of them all, times `scale`, rounded."""
        return min(self._of(members) * scale, LARGEST_FLOAT32)

    def _of(self, contributors: int) -> float:
        """A(n): a geometric series."""
        if contributors > MOST_CONTRIBUTORS:
            return LARGEST_FLOAT32
        ratio = 1 + 2 * _ROUNDING
        return 3 * self.part * (ratio**contributors - 1) / (ratio - 1)
