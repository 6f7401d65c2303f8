"""What a replica learns from passes that were void: how much, and how high, it may go."""

from dataclasses import dataclass, replace

import torch

from atom.base.errors import DeviceError
from atom.swap.voided import Cause, PassVoided

_LOWER_MEMORY = (
    "lower [device] memory in the peer file, so that the plan leaves more room, "
    "or train a run with a smaller micro_batch_sequences"
)


ATTEMPTS_ALONE = 2
GROWTH_PASSES = 1000
FIRST_EXPONENT, LEAST_EXPONENT, MOST_EXPONENT = 15, 0, 24


@dataclass(frozen=True)
class LossScale:
    """What a loss in float16 is multiplied by before the backward: 2^exponent.

    The gradients of a mean loss are small, and float16 loses what is below 2^-24. They are divided
    by the scale in float32 when they are summed. Both are exact, so the scale changes no gradient
    but those that left float16's range, and each peer finds its own: as large as the gradients
    allow. An overflow voids the pass and halves it; after `GROWTH_PASSES` sound passes twice as
    large a one is tried, at the beginning of a round, when no other pass can be lost with it.
    """

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


class Caution:
    """Decides before each pass, and learns after it. On the replica's thread.

    What a pass holds beside the weights grows with its micro-batches, so half as many are tried
    after memory ran out. One alone is tried twice: what another program held may be free again. The
    number does not grow again: what did not fit once is a plan that was too tight.
    """

    def __init__(self, precision: torch.dtype, micro_batches: int) -> None:
        self.allow(micro_batches)
        self._scale = LossScale() if precision == torch.float16 else None

    def allow(self, micro_batches: int) -> None:
        """So many per pass, by a new reckoning: what ran out of memory before was another plan."""
        self.micro_batches = micro_batches
        """The most that a pass may take."""
        self._failures_alone = 0

    def loss_scale(self, round_begins: bool) -> float:
        """For the next pass. `round_begins`: nothing has been accumulated that could be lost."""
        if self._scale is None:
            return 1.0
        if round_begins:
            self._scale = self._scale.at_round_start()
        return self._scale.value

    def sound(self) -> None:
        self._failures_alone = 0
        if self._scale is not None:
            self._scale = self._scale.after_sound()

    def learn(self, void: PassVoided, micro_batches: int, sequences_lost: int = 0) -> PassVoided:
        """The same failure with what is lost and what is changed because of it.

        Raises: DeviceError if not even one micro-batch fits.
        """
        if void.cause is Cause.MEMORY:
            hint = self._take_less(void, micro_batches)
        elif void.cause is Cause.GRADIENTS and self._scale is not None:
            hint = self._scale_less(self._scale)
        else:
            hint = "if it goes on, the training has diverged, or this machine computes wrongly"
        return PassVoided(void.cause, void.detail, sequences_lost, hint)

    def _scale_less(self, scale: LossScale) -> str:
        self._scale = scale.after_overflow()
        if self._scale.exponent == scale.exponent:
            return "an overflow of float16 with the least loss scale: this run needs bfloat16"
        return f"an overflow of float16; the loss scale is {self._scale.value:.0f} from now on"

    def _take_less(self, void: PassVoided, micro_batches: int) -> str:
        if micro_batches > 1:
            self.allow(min(self.micro_batches, micro_batches // 2))
        elif self._failures_alone + 1 < ATTEMPTS_ALONE:
            self.micro_batches, self._failures_alone = 1, self._failures_alone + 1
        else:
            raise DeviceError(
                f"not even one micro-batch fits into memory: {void.detail}", _LOWER_MEMORY
            )
        return f"at most {self.micro_batches} per pass from now on; {_LOWER_MEMORY}"
