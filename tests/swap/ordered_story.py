"""The story of one replica: passes and steps, with all that may come between them.

A `Case` says of which model, and how it is arranged. `told` tells the story as a CPU has it, where
hardly anything is under way; `on_gpu` on a GPU that is played, `on_cpu` on a CPU that is watched.
"""

import functools
import itertools
from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from crossing_models import MODELS, WIDTH, batch
from hand_written_program import initial_value
from played_gpu import HostedDevice, Machine, played
from torch import Tensor, nn
from torch.nn import functional

from atom.graph.ir import Program
from atom.graph.layers import layer_ends, layers_of
from atom.graph.program import build_program
from atom.graph.trace import trace
from atom.optim.adamw import AdamW
from atom.optim.clipping import gradient_norm
from atom.optim.rate import RateSettings
from atom.swap.device import CpuDevice, Device
from atom.swap.engine import PassCancelled
from atom.swap.host_memory import LEAST_REGISTERED_BYTES
from atom.swap.schedule import Arrangement
from atom.swap.timeline import Recording
from atom.swap.voided import PassVoided
from atom.training.replica.replica import Replica, ReplicaSettings
from tests.manual_clock import ManualClock

MICRO_BATCHES, WAIT_S = 2, 20.0
RATE = RateSettings(1e-2, 1e-3, warmup_rounds=2, decay="cosine", rounds=10)
NARROW, CANCELLED = torch.bfloat16, (0.0, 0.4, 0.8)
"""Shares of a pass after which one is cancelled."""
Told = list[object]


class Scaling(nn.Module):
    """Four sub-models. The first and the last share parameters, the others read a constant."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(WIDTH, WIDTH)
        self.layers = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(2))
        self.bias = nn.Parameter(torch.rand(WIDTH))
        self.register_buffer("scale", torch.rand(WIDTH))

    def forward(self, tokens: Tensor, targets: Tensor) -> Tensor:
        hidden = self.embed(tokens) + self.bias
        for layer in self.layers:
            hidden = functional.dropout(torch.tanh(layer(hidden)) * self.scale, 0.2)
        logits = functional.linear(hidden, self.embed.weight, self.bias)
        return functional.cross_entropy(logits.flatten(0, 1), targets.flatten())


TRACED = {**MODELS, "scaling": Scaling}


@dataclass(frozen=True)
class Case:
    model: str
    """One of `TRACED`."""
    arrangement: Arrangement
    precision: torch.dtype = torch.float32
    """Dtype of weights and gradients."""
    sub_models: int | None = None
    """Number of sub-models; None: one for each layer."""
    observed: bool = False
    devices: int = 1

    def __str__(self) -> str:
        a = self.arrangement
        stay = f"{sorted(a.resident)} resident, {sorted(a.kept)} kept, {sorted(a.trained)} trained"
        cut = f" in {self.sub_models}" if self.sub_models else ""
        away = ", offloaded" if a.offloaded else ""
        on = f", on {self.devices} devices" if self.devices > 1 else ""
        on += f" in groups of {a.devices}" if a.devices > 1 else ""
        return f"{self.model}{cut}, {self.precision}, {a.slots} slots, {stay}{away}{on}"

    @property
    def passes(self) -> int:
        """Number of passes that run at the same time."""
        return self.devices // self.arrangement.devices

    @functools.cached_property
    def program(self) -> Program:
        return traced(self.model, self.precision, self.sub_models)

    @functools.cached_property
    def told(self) -> Told:
        return Story(self, CpuDevice).told()

    def on_gpu(self, machine: Machine) -> Told:
        with played(machine):
            return Story(self, functools.partial(HostedDevice, machine), machine).told()

    def on_cpu(self, machine: Machine) -> Told:
        with played(machine):
            return Story(self, CpuDevice, machine).told()


@functools.cache
def traced(model: str, precision: torch.dtype, sub_models: int | None) -> Program:
    torch.manual_seed(0)
    graph = trace(TRACED[model]().to(precision), batch(0))
    ends = layer_ends(layers_of(graph))
    if sub_models is not None:
        ends = [ends[len(ends) * (n + 1) // sub_models - 1] for n in range(sub_models)]
    return build_program(graph, ends)


def offloading(model: str, *kept: int) -> Case:
    stay, every = frozenset(kept), range(len(traced(model, torch.float32, None).sub_models))
    return Case(model, Arrangement(2, stay, stay, frozenset(every), least_offloaded_bytes=0))


class Story:
    def __init__(
        self, case: Case, opened: Callable[[], Device], machine: Machine | None = None
    ) -> None:
        self._case, self._machine, program = case, machine, case.program
        self._devices = [opened() for _ in range(case.devices)]
        self._device, *beside = self._devices
        if isinstance(self._device, HostedDevice) and machine is not None:
            constants = {name: _moved(machine, each) for name, each in program.constants.items()}
            program = replace(program, constants=constants)
        settings = ReplicaSettings(
            rate=RATE,
            optimizer=AdamW(seed=3),
            clip_norm=0.5,
            precision=case.precision,
            arrangement=case.arrangement,
            micro_batches=MICRO_BATCHES,
            gradients=case.precision,
        )
        observer = Recording() if case.observed else None
        self._replica = Replica(
            program, None, settings, self._device, ManualClock(), observer, extra_devices=beside
        )
        self._replica.initialise(initial_value)
        self._passes = itertools.count()
        self._events = 0
        """Number of events of the last pass."""
        self._told: Told = []

    def told(self) -> Told:
        try:
            self._tell()
            return self._told
        finally:
            self._replica.drop_contribution()
            for device in self._devices:
                device.close()

    def _tell(self) -> None:
        """Every round leaves its step under way."""
        self._train()
        self._train()
        self._replica.reset_gradients()  # while they land
        self._train()
        self._train()
        self._step()
        self._train()
        self._told.append(self._replica.evaluate([batch(50)]))
        self._train()
        self._pause()
        self._step()
        self._pause()
        self._train()
        self._step_of_all()
        for share in CANCELLED:
            if self._case.devices == 1:  # of several it is chance what a call is broken off at
                self._cancel(share)
            self._train()
            self._step()
        for _ in range(2):
            self._fail()
            self._train()
        self._step()
        self._replica.finish_step()
        state = self._replica.state_arenas().values()
        self._told.append(torch.cat([arena.float() for arena in state]).tolist())
        self._load()

    def _train(self, should_stop: Callable[[], bool] = lambda: False) -> None:
        number, self._events = next(self._passes), 0

        def stops() -> bool:
            self._events += 1
            return should_stop()

        batches = [batch(number + n) for n in range(MICRO_BATCHES * self._case.passes)]
        sequences = self._replica.run_pass(batches, stops)
        self._told += [self._replica.loss_sum, sequences]

    def _step(self) -> None:
        """Begin a step on the same arena that the next pass writes."""
        self._replica.begin_own_step()
        self._replica.reset_gradients()

    def _step_of_all(self) -> None:
        """Begin a step as in a swarm, on a mean in separate memory."""
        self._told.append(self._replica.gradient_sums().clone().tolist())
        mean = self._replica.contribution().part(0, self._replica.elements) / 4
        self._replica.begin_step(mean, gradient_norm(mean), self._replica.step_count + 1)

    def _pause(self) -> None:
        assert self._replica.engines.preempt(WAIT_S)
        self._replica.engines.resume()

    def _cancel(self, share: float) -> None:
        """A pass that ends after this share of the events of the last one."""
        last = 1 + int(share * (self._events - 2 * len(self._replica.engines.training.loaded())))
        asked = itertools.count()
        try:
            self._train(lambda: next(asked) >= last)
        except PassCancelled:
            return
        raise AssertionError("the pass was not cancelled")

    def _fail(self) -> None:
        """A pass of weights that are infinite, which come from elsewhere and go again."""
        self._replica.finish_step()
        state, number = self._replica.state_arenas(), self._replica.step_count
        whole = {name: arena.clone() for name, arena in state.items()}
        torn = {name: torch.full_like(arena, torch.inf) for name, arena in state.items()}
        self._replica.load_state(torn, number)
        try:
            self._train()
            raise AssertionError("the pass went through")
        except PassVoided:
            self._replica.load_state(whole, number)

    def _load(self) -> None:
        """Issue a load that may be under way when the device is closed."""
        memory = self._device.host_memory(LEAST_REGISTERED_BYTES, torch.uint8)
        with self._device.computing():
            slot = self._device.slot_memory(LEAST_REGISTERED_BYTES, torch.uint8)
            self._device.load(-1, [(slot, memory)], None)
            self._device.wait_loaded(-1)


def _moved(machine: Machine, constant: Tensor) -> Tensor:
    """Start copying a constant to the device on the current stream."""
    with machine.on_device():
        there = torch.empty(constant.shape, dtype=constant.dtype)
    return there.copy_(constant, non_blocking=True)


EVERY, FIRST = frozenset(range(4)), frozenset({1})
TELLING = [
    Case("scaling", Arrangement(), sub_models=2),
    Case("scaling", Arrangement(2, FIRST, offloaded=EVERY, least_offloaded_bytes=0), NARROW),
    Case("scaling", Arrangement(2, EVERY, trained=EVERY)),
    offloading("viewing"),
    Case("scaling", Arrangement(), observed=True),
    Case("scaling", Arrangement(devices=2), devices=2),
]
"""Cases that together use every method of a device; the second one uses most of them."""
