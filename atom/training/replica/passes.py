"""Settings of a replica, limits of its passes (size, loss scale), and a sample of their time.

Timing every event of every pass would slow down training a little and produce more figures than
anyone reads. Therefore one pass every `LOOK_S` seconds is recorded, for the figures that a daemon
shows.
"""

import threading
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch

from atom.base.clock import Clock
from atom.base.errors import DeviceError
from atom.optim.rate import RateSettings
from atom.swap import pass_shares
from atom.swap.schedule import Observed, Observer
from atom.swap.timeline import Recording, Span, Timeline
from atom.swap.voided import Cause, PassVoided
from atom.training.replica.device_engines import EngineSettings
from atom.training.replica.update_rule import EveryStep, UpdateRule

_LOWER_MEMORY = (
    "lower [device] memory in the peer file, so that the plan leaves more room, "
    "or train a run with a smaller micro_batch_sequences"
)
GROWTH_PASSES = 1000
FIRST_EXPONENT, LEAST_EXPONENT, MOST_EXPONENT = 15, 0, 24
LOOK_S = 30.0
_STEP_SPANS = 4096
"""Largest number of the optimizer's latest time spans to keep."""


@dataclass(frozen=True, kw_only=True)
class ReplicaSettings(EngineSettings):
    """Settings of a replica: its memory, the learning rate, and the update rule."""

    rate: RateSettings
    clip_norm: float | None = None
    dropout_seed: int = 0
    """Seed of dropout; it should differ between peers. The initial weights do not depend on it."""
    update_rule: Callable[..., UpdateRule] = EveryStep
    """Constructor of the update rule: an `UpdateRule` subclass, or a partial with its options."""


@dataclass(frozen=True)
class PassLimits:
    """Limits for the next pass; each pass yields new limits.

    The memory that a pass needs in addition to the weights grows with its micro-batches, so half as
    many are tried after memory ran out. A pass of one micro-batch is tried twice, because another
    program may have freed its memory. The number never grows again: if a pass did not fit once, the
    plan was too tight.

    In float16 the loss is multiplied by 2^exponent before the backward, because the gradients of a
    mean loss are small and float16 loses values below 2^-24. The gradients are divided by the scale
    in float32 when they are summed. Both operations are exact, so the scale only affects gradients
    outside float16's range. Each peer finds its own scale, as large as the gradients allow: an
    overflow voids the pass and halves the scale; after `GROWTH_PASSES` sound passes a scale twice
    as large is tried, at the beginning of a round, when no other pass can be lost.
    """

    micro_batches: int
    """Largest number of micro-batches in a pass."""
    exponent: int | None = None
    """Binary logarithm of the loss scale; None: the loss is not scaled (not float16)."""
    sound_passes: int = 0
    """Number of sound passes with this exponent."""
    failed_alone: bool = False
    """True if the last pass had a single micro-batch and ran out of memory."""

    @classmethod
    def first(cls, precision: torch.dtype, micro_batches: int) -> "PassLimits":
        """Return the limits for the first pass of a replica."""
        return cls(micro_batches, FIRST_EXPONENT if precision == torch.float16 else None)

    @property
    def loss_scale(self) -> float:
        """Factor of the loss in the backward."""
        return 1.0 if self.exponent is None else 2.0**self.exponent

    def at_round_start(self) -> "PassLimits":
        """Return the limits for the first pass of a round; the loss scale may be doubled."""
        if self.exponent is None or self.sound_passes < GROWTH_PASSES:
            return self
        return replace(self, exponent=min(self.exponent + 1, MOST_EXPONENT), sound_passes=0)

    def after_sound(self) -> "PassLimits":
        """Return the limits after a pass that was not void."""
        return replace(self, sound_passes=self.sound_passes + 1, failed_alone=False)

    def after_void(self, void: PassVoided, micro_batches: int) -> tuple["PassLimits", str]:
        """Return the limits after a void pass, and a hint for people.

        Args:
            void: Error of the pass.
            micro_batches: Number of micro-batches in the pass.

        Raises:
            DeviceError: Not even one micro-batch fits into memory.
        """
        if void.cause is Cause.MEMORY:
            return self._with_less(void, micro_batches)
        if void.cause is Cause.DEVICE:
            return self, "the other devices continue"
        if void.cause is Cause.GRADIENTS and self.exponent is not None:
            less = replace(self, exponent=max(self.exponent - 1, LEAST_EXPONENT), sound_passes=0)
            if less.exponent == self.exponent:
                return less, "an overflow with the smallest loss scale: this run needs bfloat16"
            hint = f"an overflow of float16; the loss scale is {less.loss_scale:.0f} from now on"
            return less, hint
        return self, "if this continues, training has diverged, or this machine computes wrongly"

    def _with_less(self, void: PassVoided, micro_batches: int) -> tuple["PassLimits", str]:
        alone = micro_batches == 1
        if alone and self.failed_alone:
            reason = f"not even one micro-batch fits into memory: {void.detail}"
            raise DeviceError(reason, _LOWER_MEMORY)
        most = min(self.micro_batches, max(micro_batches // 2, 1))
        less = replace(self, micro_batches=most, failed_alone=alone)
        return less, f"at most {most} per pass from now on; {_LOWER_MEMORY}"


class PassWatch:
    """Recorder of some passes.

    The thread that trains calls `begin` and `end` around each pass; other methods are thread-safe.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._recording: Recording | None = None
        self._steps: deque[Span] = deque(maxlen=_STEP_SPANS)
        self._due = float("-inf")
        self._latest: Timeline | None = None
        """Timeline of the latest recorded pass."""

    def begin(self) -> Observer | None:
        """Return an observer for the pass that begins now; None: the pass is not recorded.

        If a recorded pass fails, the next pass is recorded instead.
        """
        with self._lock:
            looks = self._recording is not None or self._clock.now() >= self._due
            if looks:
                self._due = self._clock.now() + LOOK_S
            self._recording = Recording() if looks else None
            return self._recording

    def end(self) -> None:
        """Keep the recording of the latest pass, if there is one; call it after a sound pass."""
        if self._recording is not None:
            self._latest = self._with_steps(self._recording.spans)
            self._recording = None

    def stepped(self, event: Observed, device: int, start_s: float, end_s: float) -> None:
        """Record an event of the optimizer, whose work may overlap a pass (an `Observer`)."""
        self._steps.append(Span(event, start_s, end_s, device))

    def figures(self) -> dict[str, Any] | None:
        """Return the figures of the latest recorded pass: see `pass_shares.figures`.

        None: no pass has been recorded yet.
        """
        latest = self._latest
        return None if latest is None else pass_shares.figures(latest)

    def _with_steps(self, spans: list[Span]) -> Timeline:
        began = min((span.start_s for span in spans), default=0.0)
        return Timeline.of([*(s for s in list(self._steps) if s.end_s > began), *spans])
