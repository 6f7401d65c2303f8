"""The passes of one replica: what each draws, leaves in the gradients, and teaches."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from atom.base.clock import Clock
from atom.optim.gradients import GradientArena
from atom.swap.engine import Engine, Observer, PassCancelled
from atom.swap.voided import PassVoided
from atom.training.replica.engines import DeviceTaken, ReplicaEngines
from atom.training.replica.pass_limits import PassLimits
from atom.training.replica.pass_watch import PassWatch
from atom.training.replica.settings import ReplicaSettings

Batch = Mapping[str, Tensor]
"""One micro-batch: the program's batch inputs by name, first dimension = sequences."""


@dataclass(frozen=True)
class PassResult:
    """What one pass added to the gradients."""

    sequences: int
    loss_sum: float
    """Mean loss per sequence, summed over the sequences, nats."""
    seconds: float


class Passes:
    """Forward and backward of micro-batches into the replica's gradients. On its thread."""

    def __init__(
        self,
        engines: ReplicaEngines,
        arena: GradientArena,
        settings: ReplicaSettings,
        watch: PassWatch,
        clock: Clock,
        observer: Observer | None,
    ) -> None:
        """Without `observer`, `watch` looks at some of the passes."""
        self._engines = engines
        self._arena = arena
        self._watch = watch
        self._clock = clock
        self._observer = observer
        self._engine.observer = observer
        self._limits = PassLimits.first(settings.precision, settings.micro_batches)
        self._seeds = torch.Generator().manual_seed(settings.dropout_seed)

    def follow(self, settings: ReplicaSettings) -> None:
        """The device side was rearranged so. The seeds still to be drawn stay."""
        self._engine.observer = self._observer
        self._limits = replace(
            self._limits, micro_batches=settings.micro_batches, failed_alone=False
        )

    @property
    def _engine(self) -> Engine:
        """Another one after each rearrangement."""
        return self._engines.training

    @property
    def micro_batches(self) -> int:
        """The most that a pass may accumulate; fewer after memory ran out."""
        return self._limits.micro_batches

    @property
    def breakable(self) -> bool:
        """As `Replica.breakable`."""
        return self._arena.sequences == 0 or not self._engine.leaving

    def run(
        self,
        batches: Sequence[Batch],
        should_stop: Callable[[], bool],
        last: bool,
    ) -> PassResult:
        """Forward and backward of the micro-batches; adds to the gradients. May begin while a step
        is under way, and ends after it. `last`: as far as the caller knows, no other pass comes
        before the step; then most of `gradient_norm` is reckoned under this one.

        A pass that is void (PassVoided) adds nothing: if a part of it had been added already, the
        gradients begin anew, without those of earlier passes either. Another exception
        (PassCancelled when `should_stop` says so) that comes as late poisons the gradients: they
        cannot be read until `reset_gradients`. Weights are untouched. One that is cancelled while
        it is `breakable` poisons nothing: the same call does the same later.

        Raises: PassVoided; DeviceError if a pass of one micro-batch ran out of memory again and
        again; PassCancelled; GradientsPoisoned; ValueError; StepFailed when the step under way
        breaks off; DeviceTaken; what the model's computation raises.
        """
        started, drawn = self._clock.now(), self._seeds.get_state()
        seeds = torch.randint(2**63 - 1, (len(batches),), generator=self._seeds).tolist()
        try:
            with self._engines.using():
                losses = self._accumulate(batches, seeds, should_stop, last)
        except PassVoided as void:
            raise self._learnt(void, len(batches), self._drop_what_is_torn()) from void
        except (PassCancelled, DeviceTaken):
            if self._arena.sequences == 0:
                self._drop_what_is_torn()
            self._seeds.set_state(drawn)
            raise
        self._limits = self._limits.after_sound()
        self._watch.end()
        sizes = [self._sequences_of(batch) for batch in batches]
        loss_sum = sum(loss * size for loss, size in zip(losses, sizes, strict=True))
        self._arena.count(sum(sizes), loss_sum)
        return PassResult(sum(sizes), loss_sum, self._clock.now() - started)

    def _accumulate(
        self,
        batches: Sequence[Batch],
        seeds: Sequence[int],
        should_stop: Callable[[], bool],
        last: bool,
    ) -> list[float]:
        if self._arena.sequences == 0:
            self._limits = self._limits.at_round_start()
        self._engine.loss_scale = self._limits.loss_scale
        first = self._arena.void
        self._engine.observer = self._observer or self._watch.begin()
        try:
            with self._arena.accumulating(lambda: self._engine.touched, last) as landed:
                return self._engine.run_pass(batches, seeds, should_stop, first, landed)
        finally:
            self._engine.observer = self._observer

    def _learnt(self, void: PassVoided, micro_batches: int, lost: int = 0) -> PassVoided:
        """The same with what is lost and what is changed because of it. Raises: DeviceError."""
        self._limits, hint = self._limits.after_void(void, micro_batches)
        return PassVoided(void.cause, void.detail, lost, hint)

    def _drop_what_is_torn(self) -> int:
        """Begins anew if the gradients hold part of a pass. Returns the sequences lost with it."""
        if not self._arena.poisoned:
            return 0
        lost = self._arena.sequences
        self._arena.reset(self._arena.tag)
        return lost

    def evaluate(self, batches: Sequence[Batch], should_stop: Callable[[], bool]) -> float:
        """Mean loss per sequence. Touches neither gradients nor weights.

        When it is void, memory ran out: the same call tries again with fewer at a time. Raises: as
        `run_pass`.
        """
        losses = list[float]()
        while len(losses) < len(batches):
            some = batches[len(losses) : len(losses) + self.micro_batches]
            try:
                with self._engines.using():
                    losses += self._engines.evaluation.evaluate(some, should_stop)
            except PassVoided as void:
                raise self._learnt(void, len(some)) from void
        sizes = [self._sequences_of(batch) for batch in batches]
        return sum(loss * size for loss, size in zip(losses, sizes, strict=True)) / sum(sizes)

    def _sequences_of(self, batch: Batch) -> int:
        return self._engine.sequences_of(batch)
