"""One model on one machine: passes accumulate gradients, and a step uses them.

Nothing in this module knows of other peers. A step runs on its own thread while the next passes
begin: each sub-model is loaded as soon as its own parameters are updated. All other code that reads
or writes the state waits for the end of the step.
"""

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

import torch
from torch import Tensor

from atom.base.clock import BootClock, Clock
from atom.graph.ir import ParameterSpec, Program
from atom.optim.clipping import GradientSums, LandingSquares
from atom.optim.gradients import FlatNumbers, GradientArena
from atom.optim.stepper import Stepper
from atom.swap.device import Device
from atom.swap.engine import PassCancelled
from atom.swap.host_store import FROZEN, StateArena
from atom.swap.schedule import Observer
from atom.swap.voided import PassVoided, finite_answers
from atom.swarm.exchange.contribution import Contribution
from atom.training.replica.engines import DeviceTaken, ReplicaEngines
from atom.training.replica.passes import PassLimits, PassWatch, ReplicaSettings

__all__ = ["Batch", "Replica", "ReplicaSettings"]

FirstValue = Callable[[str, tuple[int, ...]], Tensor]
"""Function (parameter name, shape) → value of the parameter in round 0."""

Batch = Mapping[str, Tensor]
"""One micro-batch: the program's batch inputs by name; the first dimension counts sequences."""


class Replica:
    """Weights, optimizer state and gradients of one model, and the engines that use them.

    Used by one thread at a time. The shared state depends only on the initial values and on the
    arguments of `begin_step`: replicas that take the same steps stay bit-identical.
    """

    def __init__(
        self,
        program: Program,
        evaluation: Program | None,
        settings: ReplicaSettings,
        device: Device,
        clock: Clock | None = None,
        observer: Observer | None = None,
        answering: Program | None = None,
        extra_devices: Sequence[Device] = (),
        on_message: Callable[[str], None] = lambda words: None,
    ) -> None:
        """Allocate all memory, filled with zeros.

        Before the first pass, call `initialise` or `load_state`, and set the frozen parameters. The
        constructor runs the programs' source, so this process must have generated them.

        Args:
            program: Training program.
            evaluation: The same model traced without dropout, with any cut; None: validation runs
                the training program, dropout included.
            settings: Settings of the run and of this machine.
            device: First device.
            clock: Time source; None: the system's.
            observer: Receives timed events of the training program and of the optimizer.
            answering: The same model with the outputs that `answers` returns; None: no `answers`.
            extra_devices: Further devices, which run passes at the same time.
            on_message: Receives a message when a device fails and when it is used again.

        Raises:
            ValueError: The programs differ in layout or precision, the form of the state or of the
                gradients does not fit the precision, or the arrangement names a sub-model that does
                not exist.
            MismatchError: A program was altered, or the host kernels are not compiled.
            MemoryError: The host memory is too small.
        """
        clock = clock or BootClock()
        self._observer = observer
        devices = device, *extra_devices
        self.engines = ReplicaEngines(
            program, evaluation, settings, devices, clock, answering, on_message
        )
        """Engines of all devices; they free device memory on demand."""
        self._store = self.engines.store
        self._arena = GradientArena(
            self._store.gradients, self.engines.wait_added, on_device=self._store.on_device
        )
        self.watch = PassWatch(clock)
        """Recorder of some passes; unused if there is an observer for all passes."""
        self._sequences = program.weight_of(program.values)
        """Number of sequences in one micro-batch."""
        self.losses: Sequence[float] = ()
        """Loss of each micro-batch of the latest training pass."""
        self._stepper = Stepper(
            self._store,
            settings.optimizer,
            clock,
            program.sub_models,
            observer or self.watch.stepped,
        )
        self._rule = settings.update_rule(
            self._store, self._arena, self._stepper, settings.rate, settings.clip_norm
        )
        self._limits = PassLimits.first(settings.precision, settings.micro_batches)
        self._seeds = torch.Generator().manual_seed(settings.dropout_seed)
        self._step_count = 0

    @property
    def step_count(self) -> int:
        """Number of steps since the initial values; a step counts as soon as it has begun."""
        return self._step_count

    @property
    def micro_batches(self) -> int:
        """Largest number of micro-batches in one pass; it is lowered when memory runs out."""
        return self._limits.micro_batches * self.engines.at_work

    def initialise(self, initial_value: FirstValue, threads: int = 1) -> None:
        """Set the state of round 0: initial weights, and a zero optimizer state.

        `threads` threads call `initial_value` in the order in which parameters are first used.

        Raises:
            ValueError: A value has the wrong shape.
        """
        self._stepper.wait_idle()
        self._store.clear_state()
        self._fill(self._store.layout.trained, initial_value, threads)
        self._rule.initialised()
        self._settle_at(0)

    def fill_frozen(self, initial_value: FirstValue, threads: int = 1) -> None:
        """Set the frozen parameters, which are not part of a state, as `initialise` does."""
        specs = [spec for spec in self._store.layout.specs if spec.frozen]
        self._fill(specs, initial_value, threads)
        self._store.changed()

    def _fill(
        self, specs: Sequence[ParameterSpec], initial_value: FirstValue, threads: int
    ) -> None:
        def fill(spec: ParameterSpec) -> None:
            self._store.write_weights(spec.name, initial_value(spec.name, spec.shape))

        with ThreadPoolExecutor(threads, "atom-first-values") as pool:
            list(pool.map(fill, specs))

    # --- accumulating -------------------------------------------------------------------------

    def run_pass(
        self,
        batches: Sequence[Batch],
        should_stop: Callable[[], bool] = lambda: False,
        last: bool = False,
    ) -> int:
        """Run forward and backward of the micro-batches, and add their gradients.

        A pass may begin while a step is under way, and ends after the step. A pass that raises adds
        nothing and changes no weights; if a part of its gradients had been added, all gradients
        that no step has used are dropped. A pass that was cancelled while `breakable` can be
        repeated later with the same result. Errors of the model's computation pass through.

        Args:
            batches: Micro-batches.
            should_stop: Polled during the pass; True cancels it.
            last: True if `begin_own_step` follows; the sums of squares for its gradient norm are
                then collected during the pass.

        Returns:
            Number of sequences in the micro-batches.

        Raises:
            PassVoided: The pass does not count.
            DeviceError: A pass of a single micro-batch ran out of memory twice in a row.
            PassCancelled: `should_stop` returned True, or the device is preempted.
            DeviceTaken: Another program has the device memory.
            StepFailed: The step before failed.
            ValueError: The micro-batches do not fit the program.
        """
        self._stepper.raise_if_failed()
        counted, drawn = self._arena.sequences, self._seeds.get_state()
        seeds = torch.randint(2**63 - 1, (len(batches),), generator=self._seeds).tolist()
        try:
            with self.engines.using(self._stepper.wait_idle):
                losses = self._accumulate(batches, seeds, should_stop, last or self._ends(batches))
        except PassVoided as void:
            raise self._learnt(void, len(batches), counted - self._arena.sequences) from void
        except (PassCancelled, DeviceTaken):
            self._seeds.set_state(drawn)
            raise
        self._limits = self._limits.after_sound()
        self.watch.end()
        self.losses = losses
        sequences, loss_sum = self._summed(losses)
        self._arena.count(sequences, loss_sum)
        self._rule.pass_ended()
        return sequences

    def _accumulate(
        self,
        batches: Sequence[Batch],
        seeds: Sequence[int],
        should_stop: Callable[[], bool],
        last: bool,
    ) -> list[float]:
        arena = self._arena
        if arena.unspent == 0:
            self._limits = self._limits.at_round_start()
        observer = self._observer or self.watch.begin()
        squares = LandingSquares(arena.flat) if last else None
        with arena.accumulating(lambda: self.engines.touched):
            if squares is not None:
                arena.squares = squares.known
            return self.engines.train(
                batches,
                seeds,
                self._limits.micro_batches,
                should_stop,
                arena.void,
                squares.count_added if squares else None,
                self._limits.loss_scale,
                observer,
            )

    def _ends(self, batches: Sequence[Batch]) -> bool:
        """Return True if the update rule takes an inner step after a pass of these batches."""
        until = self._rule.until_step
        return until is not None and until <= len(batches) * self._sequences

    def _learnt(self, void: PassVoided, micro_batches: int, lost: int = 0) -> PassVoided:
        """Adapt limits; return the error with sequences lost and a hint. Raises: DeviceError."""
        at_once = min(micro_batches, self._limits.micro_batches)
        self._limits, hint = self._limits.after_void(void, at_once)
        return PassVoided(void.cause, void.detail, lost, hint)

    def _summed(self, losses: Sequence[float]) -> tuple[int, float]:
        """Return the number of sequences of micro-batches with these losses, and their loss sum."""
        size = self._sequences
        return size * len(losses), sum(loss * size for loss in losses)

    @property
    def breakable(self) -> bool:
        """True if cancelling the running pass loses no earlier pass. Used by its `should_stop`."""
        return self._arena.unspent == 0 or not self.engines.leaving

    @property
    def elements(self) -> int:
        """Number of elements of a contribution and of a mean."""
        return self._arena.flat.numel()

    def contribution(self) -> Contribution:
        """Return this peer's contribution to the round, multiplied by `sequences`.

        Call it between two passes; `UpdateRule.contribution` says how long the values are valid.

        Raises:
            PassVoided: Some counted gradients were lost; call again for the remaining ones.
        """
        if self._arena.void:
            self._stepper.wait_idle()  # a running step may still read sums that are to be cleared
        return self._rule.contribution()

    def gradient_sums(self) -> Tensor:
        """Return the gradient sums over `sequences`, for training on this machine alone.

        The tensor is flat [elements], live, in the dtype `ReplicaSettings.gradients`. Call it
        between two passes.

        Raises:
            PassVoided: Some counted gradients were lost.
        """
        if self._arena.void:
            self._stepper.wait_idle()
        return self._arena.sums

    @property
    def sequences(self) -> int:
        return self._arena.sequences

    @property
    def loss_sum(self) -> float:
        """Sum of the losses of all counted sequences."""
        return self._arena.loss_sum

    @property
    def until_step(self) -> int | None:
        """Number of sequences that the next pass can use before a step; None: no limit."""
        return self._rule.until_step

    @property
    def overlaps(self) -> bool:
        """True if passes may continue while the contribution is averaged."""
        return self._rule.overlaps

    def drop_contribution(self) -> None:
        """Drop a contribution that is not finite, with all sequences that no round has taken."""
        self._stepper.wait_idle()
        self.reset_gradients()
        self._rule.dropped()

    def reset_gradients(self) -> None:
        """Start accumulating from zero; a step may still read earlier sums."""
        self._arena.reset()

    def evaluate(
        self, batches: Sequence[Batch], should_stop: Callable[[], bool] = lambda: False
    ) -> float:
        """Return the mean loss per sequence with the weights that all peers share.

        Gradients and weights are not changed. Do not call it while a contribution is averaged. It
        raises as `run_pass`. After PassVoided (memory ran out) the same call tries smaller passes.
        """
        self._stepper.raise_if_failed()
        losses = list[Tensor]()
        with self._rule.shared_weights():
            while len(losses) < len(batches):
                some = batches[len(losses) : len(losses) + self.micro_batches]
                losses += self._evaluated(some, should_stop)
        sequences, loss_sum = self._summed(list(map(float, losses)))
        return loss_sum / sequences

    def _evaluated(self, batches: Sequence[Batch], should_stop: Callable[[], bool]) -> list[Tensor]:
        try:
            with self.engines.using(self._stepper.wait_idle):
                return self.engines.evaluate(batches, self._limits.micro_batches, should_stop)
        except PassVoided as void:
            raise self._learnt(void, len(batches)) from void

    def answers(self, questions: Sequence[Batch], should_stop: Callable[[], bool]) -> list[Tensor]:
        """Return the answering program's outputs for at most `micro_batches` micro-batches.

        It uses the weights that all peers share, and changes neither weights nor gradients. A
        PassVoided does not lower the limits of training passes.
        """
        return finite_answers(self.outputs(questions, should_stop))

    def outputs(self, questions: Sequence[Batch], should_stop: Callable[[], bool]) -> list[Tensor]:
        """Return what `answers` does, finite or not."""
        self._stepper.raise_if_failed()
        with self._rule.shared_weights(), self.engines.using(self._stepper.wait_idle):
            at_once = self._limits.micro_batches
            return self.engines.evaluate(questions, at_once, should_stop, True)

    # --- stepping -----------------------------------------------------------------------------

    def begin_step(
        self, mean: FlatNumbers, norm: float, round: int, ours: int = 0, knows_lost: bool = False
    ) -> None:
        """Begin the update rule's step with a decided mean; the step runs on its own thread.

        The update rule decides which accumulated gradients the step uses up.

        Args:
            mean: Mean contribution [elements]; not changed. The step reads it until `finish_step`
                returns.
            norm: L2 norm of the mean; it decides how gradients are clipped.
            round: Round that the step leads to.
            ours: Number of this peer's sequences in the mean.
            knows_lost: True if the mean is from the latest exchange that used a contribution of
                this peer.

        Raises:
            ValueError: The round is not the next one, the norm is not finite, or the mean does not
                fit; nothing is changed.
            StepFailed: The step before failed.
        """
        self._stepper.raise_if_failed()
        if round != self._step_count + 1:
            raise ValueError(f"round {round} does not follow {self._step_count} steps")
        if self._store.on_device is not None:
            # The mean replaces these sums; a later reader of the sums gets the error.
            with suppress(Exception):
                self._arena.wait_added()
        self._rule.commit(mean, norm, round, ours, knows_lost)
        self._step_count = round

    def begin_own_step(self) -> None:
        """Begin an optimizer step with the mean of this replica's own gradients.

        It is for training on one machine alone with the rule `EveryStep`. Call `reset_gradients`
        before the next pass. It raises as `begin_step`, perhaps after dividing the gradient sums.
        """
        assert self._rule.same_steps, "a rule with steps of the peer's own takes them itself"
        self._stepper.raise_if_failed()
        if self._arena.void:
            self.gradient_sums()
        self._arena.wait_added()
        sums, sequences = GradientSums(self._arena), self.sequences
        if sequences & (sequences - 1):  # only a power of two can divide exactly within the step
            sums.divide(sequences)
            sequences = 1
        norm = sums.norm() / sequences
        self._rule.optimizer_step(sums, norm, self._step_count + 1, sequences)
        self._step_count += 1

    def finish_step(self) -> None:
        """Wait until no step is under way. Thread-safe. Raises: StepFailed."""
        self._stepper.wait()

    # --- state --------------------------------------------------------------------------------

    @property
    def frozen(self) -> Mapping[str, Tensor]:
        """Frozen parameters: one flat live tensor by its arena name; empty if there are none."""
        arena = self._store.frozen
        return {FROZEN: arena} if arena.numel() else {}

    def load_frozen(self, arenas: Mapping[str, Tensor]) -> None:
        """Copy another replica's frozen parameters. Raises: ValueError if they do not fit."""
        _take_over(self.frozen, arenas)
        self._store.changed()

    def state_arenas(self) -> dict[str, Tensor]:
        """Return the shared state: flat live tensors by the names that `state_form` declares.

        With the rule `EveryStep`, these are the weights and the optimizer's state. The call waits
        for the end of a step. A caller that writes into the tensors calls `load_state` with them
        afterwards.

        Raises:
            StepFailed: The last step failed; the tensors then hold no complete state.
        """
        self._settle()
        return dict(self._rule.shared())

    @property
    def state_form(self) -> Mapping[str, StateArena]:
        """Dtype and layout of each tensor in `state_arenas`, by name."""
        return self._rule.shared_arenas(self._store.arenas)

    def load_state(self, arenas: Mapping[str, Tensor], round: int) -> None:
        """Copy another replica's state of `round`, with the frozen parameters if it has them.

        Raises:
            ValueError: An arena is missing or does not fit; nothing is changed.
        """
        self._stepper.wait_idle()
        _take_over({**self._rule.shared(), **(self.frozen if FROZEN in arenas else {})}, arenas)
        self._rule.adopted(round)
        self._settle_at(round)

    def own_state(self) -> Mapping[str, Tensor]:
        """Return this peer's own state that is worth saving: flat tensors, live or copies.

        Waits for the end of a step. Raises: StepFailed.
        """
        self._settle()
        return self._rule.own()

    def adopt_own(self, saved: Mapping[str, Tensor], at_same_state: bool) -> None:
        """Continue from the `own_state` that an earlier process saved.

        Args:
            saved: Tensors of the saved state, by name.
            at_same_state: True if the shared state was the same then as now. Otherwise only state
                that does not depend on the shared state is restored.

        Raises:
            ValueError: A tensor is missing or does not fit; nothing is changed.
        """
        self._stepper.wait_idle()
        self._rule.adopt_own(saved, at_same_state)

    def _settle(self) -> None:
        """Wait for the step, then copy device-resident state to the host."""
        self.finish_step()
        if self._store.on_device is not None:
            self._store.on_device.to_host()

    def _settle_at(self, round: int) -> None:
        self._store.round_master()
        self._stepper.discard()
        self._step_count = round

    def export_parameters(self) -> dict[str, Tensor]:
        """Return the float32 master weights by their names in the model.

        They are views of the state or, if the state stores them in two parts, copies. The call
        waits for the end of a step.

        Raises:
            StepFailed: The last step failed.
        """
        self._settle()
        specs = self._store.layout.specs
        return {spec.name: self._store.weights(spec.name) for spec in specs}


def _take_over(own: Mapping[str, Tensor], given: Mapping[str, Tensor]) -> None:
    """Copy the given arenas into our own; raise ValueError if one is missing or does not fit."""
    for name, arena in own.items():
        found = given.get(name)
        if found is None or found.shape != arena.shape or found.dtype != arena.dtype:
            raise ValueError(f"the state's {name} is missing or does not fit this model")
    for name, arena in own.items():
        arena.copy_(given[name])
