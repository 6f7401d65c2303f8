"""Engine that carries out a schedule, event by event, on a device.

Units: a micro-batch's loss is the mean over its sequences. The gradients that reach the host are
summed over sequences, so gradient arena / sequences = gradient of the mean loss. Within a pass they
are summed in float32 in the order of the micro-batches; then the pass's sum is added to the arena.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import cached_property, partial

from torch import Tensor

from atom.base.errors import AtomError
from atom.graph.ir import Program, require_fit
from atom.swap.boundary_traffic import BoundaryTraffic, MicroBatch
from atom.swap.computation import Computation
from atom.swap.device import Device, Report
from atom.swap.device_slots import BoundSubModel, DeviceSlots, Factory, Tag, bind
from atom.swap.host_store import HostStore
from atom.swap.host_sums import AdditionOrder, Gate, HostSum, NotFinite
from atom.swap.parameter_gradients import ParameterGradients
from atom.swap.running_pass import Handoff, HandoffStopped, Neighbours, RunningPass
from atom.swap.schedule import (
    Backward,
    Event,
    Forward,
    GradientOut,
    GradientSum,
    Load,
    Observed,
    Observer,
    ValuesIn,
    ValuesOut,
    evaluation_pass,
    training_pass,
)
from atom.swap.voided import Cause, PassVoided, not_finite, voided_by_memory


class PassCancelled(AtomError):
    """Error of a pass that `should_stop` cancelled."""


class Engine:
    """Runner of the passes of one program on a device.

    One thread at a time may call the methods, and the host store must not change during a pass.
    Several engines (training, evaluation) may share store, slots and device if they take turns.

    `loss_scale` multiplies the loss before the backward, and gradients are divided by it in
    float32. float16 needs it; choose a power of two. With float32 weights it stays 1. Set it and
    `observer` between passes.

    A pass returns when everything is computed and all gradients are found finite. Its last
    gradients may then still be on their way, while the next pass runs. Call `wait_added` before
    reading the gradient arena. An observed pass returns when its gradients have been added.

    After an exception in a pass the parameters are unchanged and the engine can be used again. If
    `touched` is True, the gradient arena contains an unknown part of that pass, or lacks a part of
    the previous one: zero it before the next pass. Numbers that are not finite are never added to
    it (`host_sums.Gate`). A failed `first` pass may leave any content, finite or not: the next pass
    has to be the first again.

    Values that are the same in every micro-batch (`Program.shared`: masks, rotary tables) are held
    once per pass. Other values wait on the host if the arrangement says so. Then a pass may have no
    more micro-batches than the slots were made for.

    The reported times of forward and backward do not include waiting, so the gaps between them are
    the device's idle time.

    Raises:
        ValueError: The slots are too small for the program.
    """

    def __init__(
        self,
        program: Program,
        factories: Sequence[Factory],
        store: HostStore,
        slots: DeviceSlots,
        device: Device,
        order: AdditionOrder | None = None,
        neighbours: Neighbours | None = None,
    ) -> None:
        """Bind the program's modules to the slots.

        Args:
            program: Program to run.
            factories: Builder of each sub-model's module.
            store: Arenas on the host.
            slots: Memory on the device.
            device: Device to run on.
            order: Order of additions, if engines on other devices fill the same store.
            neighbours: Other devices of the group, whose engines run each pass together.
        """
        self._program = program
        self._store = store
        self._slots = slots
        self._device = device
        self.loss_scale = 1.0
        self.observer: Observer | None = None
        self._order = order
        self._previous_gate, self._gate = Gate(), Gate()
        """Gates of the last training pass but one, and of the latest."""
        self._shape = slots.shape_of(program)
        bound = bind(program, factories, slots, store.working_pieces)
        self._bound = {part.sub_model.index: part for part in bound}
        self._traffic = BoundaryTraffic(self._shape, slots.boundary, device, len(slots.weights))
        self._computation = Computation(program, slots, device, self._traffic)
        self._neighbours = neighbours or Neighbours(program, 0, [device])

    @cached_property
    def _gradients(self) -> ParameterGradients:
        """Gradient slots, created by the first training pass.

        An engine that only evaluates needs none.
        """
        layout, to = self._program.layout, self._store.gradient_pieces
        bound, device = list(self._bound.values()), self._device
        return ParameterGradients(bound, layout, self._slots, to, device, self._shape)

    def run_pass(
        self,
        micro_batches: Sequence[Mapping[str, Tensor]],
        seeds: Sequence[int],
        should_stop: Callable[[], bool] = lambda: False,
        first: bool = False,
        on_added: Callable[[Sequence[HostSum]], None] | None = None,
        number: int = 0,
        handoff: Handoff | None = None,
    ) -> list[float]:
        """Run forward and backward of every micro-batch; add gradients to `store.gradients`.

        Each micro-batch maps the program's batch inputs to tensors whose first dimension counts
        sequences. Random operations (dropout) draw the same numbers as the uncut model after
        `torch.manual_seed`. The pass uses the process's random generators, and restores their state
        at the end.

        Args:
            micro_batches: Inputs of each micro-batch.
            seeds: Random seed of each micro-batch. The first one is also the seed of the noise for
                stochastic rounding of bfloat16 sums.
            should_stop: Asked between events; True cancels the pass.
            first: True for the first pass of a round, whose gradients overwrite the arena.
            on_added: Receives the additions that were made (see `Gate`).
            number: Number of this pass in the `order`; gradients that were added under this number
                before are not added again.
            handoff: Exchange of this pass, shared by all engines of the group.

        Returns:
            Mean loss of each micro-batch; in a group only the engine with the last sub-model
                returns them.

        Raises:
            PassCancelled: `should_stop` returned True.
            HandoffStopped: Another engine of the group failed.
            PassVoided: A loss or gradient is not finite, or memory ran out.
            ValueError: A micro-batch does not fit the program; nothing was changed.
            Exception: Any error of the model's own computation.
        """
        self._previous_gate, self._gate = self._gate, Gate(on_added, self._order, number)
        with self._voided_by_memory():
            if first or self._previous_gate.failure is not None:
                self._device.drain()  # a first pass copies into the arena, where additions may run
            if self._previous_gate.failure is not None and not first:
                raise self._previous_gate.failure
            try:
                current = self._begin(micro_batches, seeds, self._gate, handoff, first)
            except BaseException:
                self._drain_quietly()  # so a failure of the previous pass's gradients becomes known
                raise
            schedule = training_pass(current.shape, self.loaded())
            return [float(loss) for loss in self._run(schedule, current, should_stop)]

    def evaluate(
        self,
        micro_batches: Sequence[Mapping[str, Tensor]],
        should_stop: Callable[[], bool] = lambda: False,
        handoff: Handoff | None = None,
    ) -> list[Tensor]:
        """Run the forward of every micro-batch, without gradients.

        Dropout is active if the program was traced with dropout, so evaluate a program that was
        traced without.

        Args:
            micro_batches: Batch entries of each micro-batch, by name.
            should_stop: Function that is asked before each event; True cancels the evaluation.
            handoff: Exchange with the other devices of the group; None: a single device.

        Returns:
            Output of the program (usually the mean loss) for each micro-batch, on the host, finite
                or not.

        Raises:
            Exception: As `run_pass`.
        """
        with self._voided_by_memory():
            current = self._begin(micro_batches, [0] * len(micro_batches), None, handoff)
            schedule = evaluation_pass(current.shape, self.loaded())
            return self._run(schedule, current, should_stop)

    @contextmanager
    def _voided_by_memory(self) -> Iterator[None]:
        """Turn out-of-memory errors into PassVoided, and release PyTorch's cached free memory.

        The cache consists of fragments that were too small; the next pass may get larger pieces.
        """
        try:
            with voided_by_memory():
                yield
        except PassVoided as void:
            if void.cause is Cause.MEMORY:
                self._device.give_back(())
            raise

    @property
    def touched(self) -> bool:
        """True if the gradient arena may hold a part of the latest pass.

        Also True if it may lack a part of the previous pass.
        """
        return self._gate.touched or self._previous_gate.failure is not None

    def wait_added(self) -> None:
        """Wait until the gradient arena holds the gradients of all passes that have returned.

        Call it between passes. It raises the error that kept gradients from being added; zero the
        arena after such an error.
        """
        self._device.drain()
        if self._gate.failure is not None:
            raise self._gate.failure

    @property
    def adding(self) -> list[int]:
        """Sub-models whose gradient sums are sent to the host's arena in every pass, ascending."""
        return self._gradients.adding

    def break_off(self) -> None:
        """Discard the latest pass, because another engine of the group failed.

        Call it between passes.
        """
        self._drain_quietly()
        self._gate.failure = None

    def forget(self) -> BaseException | None:
        """Wait for gradients under way; return and clear the error that kept some from the arena.

        The missing gradients are not added later. Call it between passes.

        Returns:
            Error of the last two training passes; None: all their gradients were added. The caller
            counts passes, and so knows which of them are incomplete.
        """
        self._drain_quietly()
        failure = self._previous_gate.failure or self._gate.failure
        self._previous_gate, self._gate = Gate(), Gate()
        return failure

    @property
    def leaving(self) -> bool:
        """True if gradients of the latest training pass were sent to the arena."""
        return self._gate.gradients_sent

    def loaded(self) -> list[int]:
        """Return the sub-models whose slot holds their current parameters."""
        tags = self._slots.tags
        return [s for s, part in self._bound.items() if tags.get(part.slot) == self._tag(part)]

    def _tag(self, part: BoundSubModel) -> Tag:
        return part.sub_model.index, part.layout.runs, self._store.version

    def _run(
        self, schedule: Sequence[Event], current: RunningPass, should_stop: Callable[[], bool]
    ) -> list[Tensor]:
        random_outside = self._device.random_state()
        try:
            with self._device.computing():
                for event in schedule:
                    if should_stop():
                        raise PassCancelled("the pass was cancelled")
                    self._carry_out(event, current)
                found = current.results()
                if current.gate is None or self.observer is not None:
                    self._device.drain()
                else:
                    self._device.settle()
            return found
        except NotFinite as problem:
            self._abandon(current)
            raise not_finite(current.losses()) from problem
        except BaseException as failure:
            if isinstance(failure, HandoffStopped):
                current.handoff.losses += current.losses()
            self._abandon(current)
            raise
        finally:
            self._traffic.forget()
            with self._device.drawing(random_outside):
                pass

    def _abandon(self, current: RunningPass) -> None:
        """Clean up after an interrupted pass; raise nothing, since the caller raises the cause."""
        self._slots.tags.clear()
        for batch in current.batches:
            batch.clear()
        for part in self._bound.values():
            for parameter in part.parameters.values():
                parameter.grad = None
        self._drain_quietly()
        if current.gate is not None:
            current.gate.failure = None  # its gradients do not count

    def _drain_quietly(self) -> None:
        with suppress(Exception):  # the caller raises another error, and gates keep theirs
            self._device.drain()

    def _begin(
        self,
        micro_batches: Sequence[Mapping[str, Tensor]],
        seeds: Sequence[int],
        gate: Gate | None,
        handoff: Handoff | None,
        first: bool = False,
    ) -> RunningPass:
        """Check the batches and copy them to the device; raise ValueError if one does not fit."""
        if not micro_batches or len(micro_batches) != len(seeds):
            raise ValueError(f"{len(micro_batches)} micro-batches, but {len(seeds)} seeds")
        if self._shape.crossings and len(micro_batches) > self._slots.boundary.micro_batches:
            raise ValueError(
                f"{len(micro_batches)} micro-batches, but host memory for only "
                f"{self._slots.boundary.micro_batches}"
            )
        for entries in micro_batches:
            require_fit(self._program, entries)
        batches = []
        for entries, seed in zip(micro_batches, seeds, strict=True):
            with self._device.computing():
                values = {
                    name: entries[name].to(self._device.torch_device)
                    for name in self._program.batch_inputs
                }
            weight = self._program.weight_of(entries)
            batches.append(MicroBatch(values, weight, self._device.seed(seed)))
        shape = replace(self._shape, micro_batches=len(batches))
        exchange = handoff or Handoff()
        return RunningPass(batches, shape, self.loss_scale, gate, first, seeds[0], exchange)

    def _carry_out(self, event: Event, current: RunningPass) -> None:
        match event:
            case Load(sub_model, slot):
                part = self._bound[sub_model]
                self._slots.tags[slot] = self._tag(part)
                stretches = [run.stretch for run in part.layout.runs]
                ready = partial(self._store.wait_ready, stretches)
                self._device.load(slot, part.copies, self._report(event), ready)
            case Forward(sub_model, micro_batch):
                part = self._bound[sub_model]
                self._device.wait_loaded(part.slot)
                self._neighbours.receive_values(sub_model, micro_batch, current)
                with self._device.timed(self._report(event)):
                    self._computation.forward(part, current, micro_batch)
                self._neighbours.send_values(sub_model, micro_batch, current)
            case Backward(sub_model, micro_batch):
                part = self._bound[sub_model]
                self._device.wait_loaded(part.slot)
                if micro_batch == 0:
                    self._gradients.wait_for_slot(sub_model)
                self._traffic.receive(event, current.batches[micro_batch])
                self._neighbours.receive_gradients(sub_model, micro_batch, current)
                with self._device.timed(self._report(event)):
                    self._computation.backward(part, current, micro_batch, self._gradients)
                self._neighbours.send_gradients(sub_model, micro_batch, current)
            case GradientOut(sub_model):
                assert current.gate is not None, "only training schedules send gradients"
                gate, terms = current.gate, (current.first, current.seed)
                gate.gradients_sent = True
                reports = self._report(event), self._report(GradientSum(sub_model))
                self._gradients.send(sub_model, gate, *terms, *reports)
            case ValuesOut(_, micro_batch):
                self._traffic.send(event, current.batches[micro_batch], self._report(event))
            case ValuesIn():
                self._traffic.fetch(event, self._report(event))

    def _report(self, event: Observed) -> Report:
        if self.observer is None:
            return None
        return partial(self.observer, event, self._neighbours.place)
