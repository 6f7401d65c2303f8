"""The engine: carries out a schedule, event by event, on a device.

Units: a micro-batch's loss is the mean over its sequences; the gradients that reach the host are
summed over sequences, so gradient arena / sequences = gradient of the mean loss. Within a pass
they are summed in float32 in the order of the micro-batches; the pass's sum is then added to the
arena.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from dataclasses import replace
from functools import cached_property, partial
from typing import Protocol

from torch import Tensor

from atom.base.errors import AtomError
from atom.graph.ir import Program, require_fit
from atom.swap.boundary_traffic import BoundaryTraffic, MicroBatch
from atom.swap.computation import Computation, RunningPass
from atom.swap.device import Device, Report
from atom.swap.device_slots import BoundSubModel, DeviceSlots, Factory, Tag, bind
from atom.swap.handoff import Handoff, HandoffStopped
from atom.swap.host_store import HostStore
from atom.swap.host_sums import Gate, HostSum, NotFinite
from atom.swap.landing_order import LandingOrder
from atom.swap.neighbours import Neighbours
from atom.swap.parameter_gradients import ParameterGradients
from atom.swap.schedule import (
    Backward,
    Event,
    Forward,
    GradientOut,
    GradientSum,
    Load,
    Observed,
    ValuesIn,
    ValuesOut,
    evaluation_pass,
    training_pass,
)
from atom.swap.voided import Cause, PassVoided, not_finite, voided_by_memory


class Observer(Protocol):
    def __call__(self, event: Observed, start_s: float, end_s: float, device: int = 0, /) -> None:
        """Told of each event that takes time (drops do not) when it began and ended, in seconds of
        the device's clock, and of the optimizer's work on what they wait for; from several threads,
        in no order, all of a pass before the pass returns. `device`: of a group."""


class PassCancelled(AtomError):
    """`should_stop` said so in the middle of a pass."""


class Engine:
    """Runs one program's passes. One thread; the host store must not change meanwhile.

    Several engines (training, evaluation) may share store, slots and device, taking turns.
    `loss_scale` multiplies the loss before the backward and is divided out in float32; float16
    needs it, choose a power of two. In float32 it stays 1. It and `observer` are set between
    passes.

    A pass returns when all is computed and found finite; its last gradients may still be on their
    way then, under the next pass. Whoever reads the gradient arena calls `landed` first. A pass
    that is observed returns when all of it has landed.

    When a pass raises, whatever the reason, parameters are untouched and the engine is usable
    again. If `touched`, the gradient arena holds an unknown part of that pass, or lacks some of the
    one before: zero it before the next. Nothing that is not finite is ever added to it
    (`host_sums.Gate`). A `first` pass that raises leaves there what it likes, finite or not: the
    next one has to be the first again.

    Values that are the same in every micro-batch (`Program.shared`: masks, rotary tables) are held
    once per pass. Others wait on the host if the arrangement says so; then a pass may have no more
    micro-batches than the slots were made for.

    Forward and backward are observed without what they waited for, so that the gaps between them
    are the device's idle time.

    Raises: ValueError for a program the slots were not made for.
    """

    def __init__(
        self,
        program: Program,
        factories: Sequence[Factory],
        store: HostStore,
        slots: DeviceSlots,
        device: Device,
        order: LandingOrder | None = None,
        neighbours: Neighbours | None = None,
    ) -> None:
        """`order`: in which passes land, if engines on other devices fill the same store.
        `neighbours`: in a group, whose engines run each pass together."""
        self._program = program
        self._store = store
        self._slots = slots
        self._device = device
        self.loss_scale = 1.0
        self.observer: Observer | None = None
        self._order = order
        self._before, self._gate = Gate(), Gate()
        """Of the latest training pass, and of the one before it."""
        self._shape = slots.shape_of(program)
        bound = bind(program, factories, slots, store.working_pieces)
        self._bound = {part.sub_model.index: part for part in bound}
        self._traffic = BoundaryTraffic(self._shape, slots.boundary, device, len(slots.weights))
        self._computation = Computation(program, slots, device, self._traffic)
        self._neighbours = neighbours or Neighbours(program, 0, [device])

    @cached_property
    def _gradients(self) -> ParameterGradients:
        """Made by the first training pass: an engine that only evaluates needs none."""
        layout, to = self._program.layout, self._store.gradient_pieces
        bound, device = list(self._bound.values()), self._device
        return ParameterGradients(bound, layout, self._slots, to, device, self._shape)

    def run_pass(
        self,
        micro_batches: Sequence[Mapping[str, Tensor]],
        seeds: Sequence[int],
        should_stop: Callable[[], bool] = lambda: False,
        first: bool = False,
        landed: Callable[[Sequence[HostSum]], None] | None = None,
        number: int = 0,
        handoff: Handoff | None = None,
    ) -> list[float]:
        """Forward and backward of every micro-batch; gradients are added to `store.gradients`, or
        take the place of all it held if this is the `first` pass.

        Each micro-batch maps the program's batch inputs to tensors whose first dimension counts
        sequences; `seeds` has one seed per micro-batch, for its random operations (dropout): they
        come out as in the uncut model after `torch.manual_seed`. The process's own generators are
        used meanwhile and put back. From the first seed comes also the noise that sums in bfloat16
        are rounded with. Returns each micro-batch's mean loss: in a group, that of the last
        sub-model. `should_stop` is asked between events. `landed`: see `Gate`. `number`: of this
        pass in the `order`; what has landed of it before is not added again. `handoff`: the pass's,
        for all of a group.

        Raises: PassCancelled; HandoffStopped; PassVoided for a loss or gradient that is not finite,
        or if memory ran out; ValueError for a micro-batch that does not fit the program, before
        anything is changed; whatever the model's own computation raises.
        """
        self._before, self._gate = self._gate, Gate(landed, self._order, number)
        with self._voided_by_memory():
            if first or self._before.failure is not None:
                self._device.drain()  # copies go straight to where something may be added still
            if self._before.failure is not None and not first:
                raise self._before.failure
            try:
                begun = self._begin(micro_batches, seeds, self._gate, handoff)
            except BaseException:
                self._let_land()  # what of the pass before does not land is known then
                raise
            current = replace(begun, first=first, seed=seeds[0])
            schedule = training_pass(current.shape, self.loaded())
            return [float(loss) for loss in self._run(schedule, current, should_stop)]

    def evaluate(
        self,
        micro_batches: Sequence[Mapping[str, Tensor]],
        should_stop: Callable[[], bool] = lambda: False,
        handoff: Handoff | None = None,
    ) -> list[Tensor]:
        """What the program gives of each micro-batch, most often its mean loss: finite or not, on
        the host. Without gradients. Raises: as `run_pass`.

        Dropout is as the program was traced: evaluate one that was traced without.
        """
        with self._voided_by_memory():
            current = self._begin(micro_batches, [0] * len(micro_batches), None, handoff)
            schedule = evaluation_pass(current.shape, self.loaded())
            return self._run(schedule, current, should_stop)

    @contextmanager
    def _voided_by_memory(self) -> Iterator[None]:
        """What PyTorch keeps in pieces that were too small is given back: the next pass may get
        larger ones."""
        try:
            with voided_by_memory():
                yield
        except PassVoided as void:
            if void.cause is Cause.MEMORY:
                self._device.give_back(())
            raise

    @property
    def touched(self) -> bool:
        """May the gradient arena hold something of the latest training pass, or lack some of the
        one before?"""
        return self._gate.touched or self._before.failure is not None

    def landed(self) -> None:
        """Returns when the gradient arena holds all of the passes that have returned. Between two
        passes. Raises: what kept some of it from landing; then the arena is to be zeroed."""
        self._device.drain()
        if self._gate.failure is not None:
            raise self._gate.failure

    @property
    def lands(self) -> list[int]:
        """The sub-models that add something to the gradient arena."""
        return self._gradients.landing

    def break_off(self) -> None:
        """Nothing of the latest pass counts, for another engine of the group has failed. Between
        two passes."""
        self._let_land()
        self._gate.failure = None

    def forget(self) -> BaseException | None:
        """What has not landed never will: whoever counts passes knows which. Returns what kept it
        from that, if anything did. Between two passes."""
        self._let_land()
        failure = self._before.failure or self._gate.failure
        self._before, self._gate = Gate(), Gate()
        return failure

    @property
    def leaving(self) -> bool:
        """Have gradients of the latest training pass been sent to the arena?"""
        return self._gate.expects

    def loaded(self) -> list[int]:
        """Sub-models whose slot holds their current parameters."""
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
        """Forgets an interrupted pass. The failure that interrupted it is the one to report."""
        self._slots.tags.clear()
        for batch in current.batches:
            batch.clear()
        for part in self._bound.values():
            for parameter in part.parameters.values():
                parameter.grad = None
        self._let_land()
        if current.gate is not None:
            current.gate.failure = None  # nothing of it counts

    def _let_land(self) -> None:
        with suppress(Exception):  # another failure is being raised, and gates keep their own
            self._device.drain()

    def _begin(
        self,
        micro_batches: Sequence[Mapping[str, Tensor]],
        seeds: Sequence[int],
        gate: Gate | None,
        handoff: Handoff | None,
    ) -> RunningPass:
        """Checks the batches and brings them to the device. Raises: ValueError."""
        if not micro_batches or len(micro_batches) != len(seeds):
            raise ValueError(f"{len(micro_batches)} micro-batches, {len(seeds)} seeds")
        if self._shape.crossings and len(micro_batches) > self._slots.boundary.micro_batches:
            raise ValueError(
                f"{len(micro_batches)} micro-batches, and host memory for the values of "
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
            sequences = entries[self._program.batch_inputs[0]].shape[0]
            batches.append(MicroBatch(values, sequences, self._device.seed(seed)))
        shape = replace(self._shape, micro_batches=len(batches))
        return RunningPass(batches, shape, self.loss_scale, gate, handoff=handoff or Handoff())

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
                with self._timed(event):
                    self._computation.forward(part, current, micro_batch)
                self._neighbours.send_values(sub_model, micro_batch, current)
            case Backward(sub_model, micro_batch):
                part = self._bound[sub_model]
                self._device.wait_loaded(part.slot)
                if micro_batch == 0:
                    self._gradients.wait_for_slot(sub_model)
                self._traffic.arrive(event, current.batches[micro_batch])
                self._neighbours.receive_gradients(sub_model, micro_batch, current)
                with self._timed(event):
                    self._computation.backward(part, current, micro_batch, self._gradients)
                self._neighbours.send_gradients(sub_model, micro_batch, current)
            case GradientOut(sub_model):
                assert current.gate is not None, "only training schedules have it"
                gate, terms = current.gate, (current.first, current.seed)
                gate.expects = True
                reports = self._report(event), self._report(GradientSum(sub_model))
                self._gradients.send(sub_model, gate, *terms, *reports)
            case ValuesOut(_, micro_batch):
                self._traffic.send(event, current.batches[micro_batch], self._report(event))
            case ValuesIn():
                self._traffic.fetch(event, self._report(event))

    def _report(self, event: Observed) -> Report | None:
        return None if self.observer is None else partial(self.observer, event)

    def _timed(self, event: Event) -> AbstractContextManager[object]:
        report = self._report(event)
        return nullcontext() if report is None else self._device.timed(report)
