"""The engine carries out a choice, and tells how long that took and each event of it."""

import time
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import mean

import torch
from torch import Tensor

from atom.graph.traced import Graph
from atom.optim.adamw import AdamW
from atom.optim.rate import RateSettings
from atom.plan.choice import Choice
from atom.swap.device import CpuDevice, Device
from atom.swap.schedule import (
    Backward,
    Forward,
    GradientOut,
    Load,
    Observed,
    Shape,
    training_pass,
)
from atom.swap.timeline import Durations, Span, Timeline, simulate
from atom.training.replica.replica import Replica, ReplicaSettings

STANDARD_DEVIATION = 0.02


@dataclass(frozen=True)
class Played:
    """One pass."""

    seconds: float
    replayed_s: float
    """The pass as the timeline would have it, from the wall time of its own events."""
    own_s: float | None
    """Likewise, from what the working threads themselves took; None where that is not known."""
    computing: float


class Stand:
    """A replica of a model, made for one choice. `close` it."""

    def __init__(self, graph: Graph, choice: Choice, device: torch.device) -> None:
        precision = graph.parameter_dtype
        rate = RateSettings(1e-4, 1e-4, 0, "constant", None)
        settings = ReplicaSettings(
            rate, AdamW(), 1.0, precision, choice.arrangement, choice.micro_batches
        )
        self._shape = choice.shape
        self._events = _Events()
        self._device = _device(device, precision)
        program = choice.program(graph)
        self._replica = Replica(program, None, settings, self._device, observer=self._events)
        self._replica.initialise(_first_value)

    def play(self, batches: Sequence[Mapping[str, Tensor]]) -> Played:
        """A pass right after a step: what had been loaded is stale."""
        self._replica.load_state(self._replica.state_arenas(), self._replica.round)
        self._replica.reset_gradients()
        self._events.clear()
        began = time.perf_counter()
        self._replica.run_pass(batches)
        seconds = time.perf_counter() - began
        events = self._events
        return Played(
            seconds,
            self._replayed(events.seconds),
            self._replayed(events.own_seconds) if events.own_seconds else None,
            Timeline.of(events.spans).computing,
        )

    def close(self) -> None:
        self._device.close()

    def _replayed(self, seconds: Mapping[Observed, list[float]]) -> float:
        took = _durations(self._shape, seconds)
        return simulate(training_pass(self._shape), self._shape, took).seconds


class Instant(float):
    """Seconds on the wall, which also know the thread's own."""

    own_s: float


class TwoClocks:
    """Wall and thread, read at once."""

    def now(self) -> Instant:
        instant = Instant(time.perf_counter())
        instant.own_s = time.thread_time()
        return instant


def thread_seconds(device: torch.device) -> float:
    """A stopwatch for profiles on a CPU that leaves out what others took of it."""
    return time.thread_time()


class _Events:
    """An engine's observer. A pass may load a sub-model twice."""

    def __init__(self) -> None:
        self.clear()

    def clear(self) -> None:
        self.spans: list[Span] = []
        self.seconds: defaultdict[Observed, list[float]] = defaultdict(list)
        self.own_seconds: defaultdict[Observed, list[float]] = defaultdict(list)

    def __call__(self, event: Observed, start_s: float, end_s: float) -> None:
        self.spans.append(Span(event, float(start_s), float(end_s)))
        self.seconds[event].append(end_s - start_s)
        if isinstance(start_s, Instant) and isinstance(end_s, Instant):
            self.own_seconds[event].append(end_s.own_s - start_s.own_s)


def _durations(shape: Shape, seconds: Mapping[Observed, list[float]]) -> Durations:
    """Means over micro-batches, so that sums come out as they were."""
    sub_models, micro_batches = range(shape.sub_models), range(shape.micro_batches)
    forward = [mean(mean(seconds[Forward(s, c)]) for c in micro_batches) for s in sub_models]
    whole = [mean(mean(seconds[Backward(s, c)]) for c in micro_batches) for s in sub_models]
    again = [0.0 if shape.keeps_graph(s) else forward[s] for s in sub_models]
    return Durations(
        load_s=tuple(mean(seconds[Load(s, shape.slot_of(s))]) for s in sub_models),
        forward_s=tuple(forward),
        backward_s=tuple(max(w - a, 0.0) for w, a in zip(whole, again, strict=True)),
        gradient_out_s=tuple(mean(seconds[GradientOut(s)]) for s in sub_models),
    )


def _device(device: torch.device, precision: torch.dtype) -> Device:
    if device.type == "cpu":
        return CpuDevice(TwoClocks())
    from atom.swap.streams import CudaDevice

    return CudaDevice(device.index or 0, precision)


def _first_value(name: str, shape: tuple[int, ...]) -> Tensor:
    """Norms near one, everything else small: no number is so small that a CPU slows down."""
    if len(shape) == 1:
        return torch.ones(shape) if name.endswith("weight") else torch.zeros(shape)
    return torch.empty(shape).normal_(0.0, STANDARD_DEVIATION)
