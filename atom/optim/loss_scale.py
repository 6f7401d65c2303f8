"""The loss scale of float16: as large as the gradients allow. Pure.

float16 holds magnitudes from 2^-24 to 65,504. Gradients of a mean loss are small, and what is below
2^-24 is lost; so the loss is multiplied by a scale before the backward, and the gradients are
divided by it in float32 when they are summed. Both are exact for powers of two. So the scale
changes no gradient but those that left float16's range, and peers with different scales average
the same: it is each peer's own affair, and no part of what a swarm agrees on.

Too small a scale loses small gradients silently, too large a one overflows, which voids the pass
and shows. So the largest that works is looked for: an overflow halves the scale, and after
`GROWTH_PASSES` sound passes it is tried twice as large, at the beginning of a round, when no
earlier passes can be lost with the one that overflows. In the steady state that is one void pass
in GROWTH_PASSES, 0.1 %.

The bounds: below 1 there is no float16 model left to save (its loss alone would overflow). The
largest is 2^24: the smallest number that float16 knows, 2^-24, becomes 1. A model whose loss is
float16 itself cannot be scaled by more than 2^15; there the search ends by the overflow of 2^16.
"""

from dataclasses import dataclass, replace

GROWTH_PASSES = 1000
FIRST_EXPONENT, LEAST_EXPONENT, MOST_EXPONENT = 15, 0, 24


@dataclass(frozen=True)
class LossScale:
    """2^exponent, and how many passes in a row were sound with it."""

    exponent: int = FIRST_EXPONENT
    sound_passes: int = 0

    @property
    def value(self) -> float:
        return 2.0**self.exponent

    def after_sound(self) -> "LossScale":
        return replace(self, sound_passes=self.sound_passes + 1)

    def after_overflow(self) -> "LossScale":
        return LossScale(max(self.exponent - 1, LEAST_EXPONENT))

    def at_round_start(self) -> "LossScale":
        """Tried twice as large if that is due."""
        if self.sound_passes < GROWTH_PASSES:
            return self
        return LossScale(min(self.exponent + 1, MOST_EXPONENT))
