"""What a replica learns from passes that were void: how much, and how high, it may go."""

import torch

from atom.base.errors import DeviceError
from atom.optim.loss_scale import LossScale
from atom.swap.voided import Cause, PassVoided
from atom.training.replica.pass_size import PassSize

_LOWER_MEMORY = (
    "lower [device] memory in the peer file, so that the plan leaves more room, "
    "or train a run with a smaller micro_batch_sequences"
)


class Caution:
    """Decides before each pass, and learns after it. On the replica's thread."""

    def __init__(self, precision: torch.dtype, micro_batches: int) -> None:
        self._size = PassSize(micro_batches)
        self._scale = LossScale() if precision == torch.float16 else None

    @property
    def micro_batches(self) -> int:
        """The most that a pass may take."""
        return self._size.most

    def allow(self, micro_batches: int) -> None:
        """So many per pass, by a new reckoning: what ran out of memory before was another plan."""
        self._size = PassSize(micro_batches)

    def loss_scale(self, round_begins: bool) -> float:
        """For the next pass. `round_begins`: nothing has been accumulated that could be lost."""
        if self._scale is None:
            return 1.0
        if round_begins:
            self._scale = self._scale.at_round_start()
        return self._scale.value

    def sound(self) -> None:
        self._size = self._size.after_sound()
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
        smaller = self._size.after_out_of_memory(micro_batches)
        if smaller is None:
            raise DeviceError(
                f"not even one micro-batch fits into memory: {void.detail}", _LOWER_MEMORY
            )
        self._size = smaller
        return f"at most {smaller.most} per pass from now on; {_LOWER_MEMORY}"
