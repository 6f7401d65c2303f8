"""One choice, run by the engine: seconds of the pass and of each event."""

import time
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import mean

import torch
from torch import Tensor

from atom.graph.traced import Graph
from atom.optim.rate import RateSettings
from atom.plan.choice import Choice
from atom.swap.device import CpuDevice, Device
from atom.swap.schedule import Backward, Forward, GradientOut, Load, Observed, Shape, training_pass
from atom.swap.timeline import Durations, simulate
from atom.training.replica.replica import Replica, ReplicaSettings

STANDARD_DEVIATION = 0.02


@dataclass(frozen=True)
class Played:
    """One pass."""

    seconds: float
    replayed_s: float
    """Seconds by the timeline, from the wall time of the pass's own events."""
    own_s: float | None
    """Seconds by the timeline, from processor time of the working threads; None if unknown."""


class Stand:
    """Replica of a model, built for one choice; the caller closes it."""

    def __init__(self, graph: Graph, choice: Choice, device: torch.device) -> None:
        precision = graph.parameter_dtype
        rate = RateSettings(1e-4, 1e-4, 0, "constant", None)
        settings = ReplicaSettings(
            rate=rate,
            clip_norm=1.0,
            precision=precision,
            arrangement=choice.arrangement,
            micro_batches=choice.micro_batches,
        )
        self._shape = choice.shape
        self._events = _Events()
        self._device = _device(device, precision)
        program = choice.program(graph)
        self._replica = Replica(program, None, settings, self._device, observer=self._events)
        self._replica.initialise(_first_value)

    def play(self, batches: Sequence[Mapping[str, Tensor]]) -> Played:
        """Run one pass as after an optimizer step: all loaded weights are stale."""
        self._replica.load_state(self._replica.state_arenas(), self._replica.step_count)
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
        )

    def close(self) -> None:
        self._device.close()

    def _replayed(self, seconds: Mapping[Observed, list[float]]) -> float:
        took = _durations(self._shape, seconds)
        return simulate(training_pass(self._shape), self._shape, took).seconds


class Instant(float):
    """Seconds of wall time, with the thread's processor time beside."""

    own_s: float


class TwoClocks:
    """Clock that reads wall time and thread time at once."""

    def now(self) -> Instant:
        instant = Instant(time.perf_counter())
        instant.own_s = time.thread_time()
        return instant


def thread_seconds(device: torch.device) -> float:
    """Return the processor time of this thread: a stopwatch that ignores other programs."""
    return time.thread_time()


class _Events:
    """Observer of an engine. A pass may load a sub-model twice."""

    def __init__(self) -> None:
        self.clear()

    def clear(self) -> None:
        self.seconds: defaultdict[Observed, list[float]] = defaultdict(list)
        self.own_seconds: defaultdict[Observed, list[float]] = defaultdict(list)

    def __call__(self, event: Observed, device: int, start_s: float, end_s: float) -> None:
        self.seconds[event].append(end_s - start_s)
        if isinstance(start_s, Instant) and isinstance(end_s, Instant):
            self.own_seconds[event].append(end_s.own_s - start_s.own_s)


def _durations(shape: Shape, seconds: Mapping[Observed, list[float]]) -> Durations:
    """Return means over micro-batches, so that sums stay as measured."""
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
    """Return norms near one and small weights; denormal numbers would slow a CPU down."""
    if len(shape) == 1:
        return torch.ones(shape) if name.endswith("weight") else torch.zeros(shape)
    return torch.empty(shape).normal_(0.0, STANDARD_DEVIATION)
