"""What is learnt from a replica's passes: how large they may be, and how their time is spent.

Timing every event of every pass would cost a little all the time, and nobody could read it all. So
one pass in LOOK_S is recorded, for the figures that a daemon shows.
"""

import threading
from collections import deque
from dataclasses import dataclass, replace
from typing import Any

import torch

from atom.base.clock import Clock
from atom.base.errors import DeviceError
from atom.swap.engine import Observer
from atom.swap.pass_shares import PassShares
from atom.swap.schedule import Observed
from atom.swap.timeline import Recording, Span, Timeline
from atom.swap.voided import Cause, PassVoided

_LOWER_MEMORY = (
    "lower [device] memory in the peer file, so that the plan leaves more room, "
    "or train a run with a smaller micro_batch_sequences"
)
GROWTH_PASSES = 1000
FIRST_EXPONENT, LEAST_EXPONENT, MOST_EXPONENT = 15, 0, 24
LOOK_S = 30.0
_STEP_SPANS = 4096
"""Of the optimizer's latest work, at most."""


@dataclass(frozen=True)
class PassLimits:
    """Asked before each pass, and another one after it.

    What a pass holds beside the weights grows with its micro-batches, so half as many are tried
    after memory ran out. One alone is tried twice: what another program held may be free again. The
    number does not grow again: what did not fit once is a plan that was too tight.

    A loss in float16 is multiplied by 2^exponent before the backward. The gradients of a mean loss
    are small, and float16 loses what is below 2^-24. They are divided by the scale in float32 when
    they are summed. Both are exact, so the scale changes no gradient but those that left float16's
    range, and each peer finds its own: as large as the gradients allow. An overflow voids the pass
    and halves it; after `GROWTH_PASSES` sound passes twice as large a one is tried, at the
    beginning of a round, when no other pass can be lost with it.
    """

    micro_batches: int
    """The most that a pass may take."""
    exponent: int | None = None
    """None: not in float16, the loss is not scaled."""
    sound_passes: int = 0
    """With this exponent."""
    failed_alone: bool = False
    """The last pass was of one micro-batch, and memory ran out."""

    @classmethod
    def first(cls, precision: torch.dtype, micro_batches: int) -> "PassLimits":
        return cls(micro_batches, FIRST_EXPONENT if precision == torch.float16 else None)

    @property
    def loss_scale(self) -> float:
        return 1.0 if self.exponent is None else 2.0**self.exponent

    def at_round_start(self) -> "PassLimits":
        """With a loss scale twice as large if that is due."""
        if self.exponent is None or self.sound_passes < GROWTH_PASSES:
            return self
        return replace(self, exponent=min(self.exponent + 1, MOST_EXPONENT), sound_passes=0)

    def after_sound(self) -> "PassLimits":
        return replace(self, sound_passes=self.sound_passes + 1, failed_alone=False)

    def after_void(self, void: PassVoided, micro_batches: int) -> tuple["PassLimits", str]:
        """What holds after a pass of so many that was void, and what that means, for people.

        Raises: DeviceError if not even one micro-batch fits.
        """
        if void.cause is Cause.MEMORY:
            return self._with_less(void, micro_batches)
        if void.cause is Cause.DEVICE:
            return self, "the other devices go on"
        if void.cause is Cause.GRADIENTS and self.exponent is not None:
            less = replace(self, exponent=max(self.exponent - 1, LEAST_EXPONENT), sound_passes=0)
            if less.exponent == self.exponent:
                return less, "an overflow with the least loss scale: this run needs bfloat16"
            hint = f"an overflow of float16; the loss scale is {less.loss_scale:.0f} from now on"
            return less, hint
        return self, "if it goes on, the training has diverged, or this machine computes wrongly"

    def _with_less(self, void: PassVoided, micro_batches: int) -> tuple["PassLimits", str]:
        alone = micro_batches == 1
        if alone and self.failed_alone:
            reason = f"not even one micro-batch fits into memory: {void.detail}"
            raise DeviceError(reason, _LOWER_MEMORY)
        most = min(self.micro_batches, max(micro_batches // 2, 1))
        less = replace(self, micro_batches=most, failed_alone=alone)
        return less, f"at most {most} per pass from now on; {_LOWER_MEMORY}"


class PassWatch:
    """`begin` and `end` around each pass, on the thread that trains; the rest from any thread."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._recording: Recording | None = None
        self._steps: deque[Span] = deque(maxlen=_STEP_SPANS)
        self._due = float("-inf")
        self._latest: Timeline | None = None
        """What the pass looked at last did."""

    def begin(self) -> Observer | None:
        """Who is to be told of the pass that begins now; None: nobody. After one that was not sound
        it is looked at the next."""
        with self._lock:
            looks = self._recording is not None or self._clock.now() >= self._due
            if looks:
                self._due = self._clock.now() + LOOK_S
            self._recording = Recording() if looks else None
            return self._recording

    def end(self) -> None:
        """Keep what was recorded of the pass that began last, which was sound."""
        if self._recording is not None:
            self._latest = self._with_steps(self._recording.spans)
            self._recording = None

    def stepped(self, event: Observed, start_s: float, end_s: float, device: int = 0) -> None:
        """The optimizer's observer: its work may fall into a pass."""
        self._steps.append(Span(event, start_s, end_s))

    def figures(self) -> dict[str, Any] | None:
        """Of the latest pass looked at, as `PassShares.to_json` has them; None: none yet."""
        latest = self._latest
        return None if latest is None else PassShares.of(latest).to_json()

    def _with_steps(self, spans: list[Span]) -> Timeline:
        began = min((span.start_s for span in spans), default=0.0)
        return Timeline.of([*(s for s in list(self._steps) if s.end_s > began), *spans])
