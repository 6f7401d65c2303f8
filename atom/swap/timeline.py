"""Times of a schedule's events: estimated from durations, or recorded while the engine runs.

Four lanes work at the same time: the link into the device, the device, the link out of it, and the
host, which adds the gradients that have left. Each lane does its work in the order of the schedule,
one piece after the other. A piece waits, as in the engine and its devices:

* a load: for everything computed before it was issued (its slot may have been in use until then),
  and for a running optimizer step, until the parameters to be loaded are updated;
* computing: for the load of its sub-model, and before its first backward for the gradient slot,
  whose last sums must have left;
* a gradient-out: for the backward before it, and for the addition of the previous gradients in the
  same staging memory;
* an addition: for its gradient-out;
* values that leave or come back: for everything computed before. When a third copy is to leave,
  computing waits until the first has left. A visit waits for the values that come back for it.

Each device of a group has such lanes, and one more that sends: a value for a sub-model on another
device leaves when it is computed, and computing there waits for it.

Links, additions and the optimizer step share the bandwidth of the host's memory: an event that
comes first in the schedule takes as much as it needs, later ones share the remainder. An estimate
leaves out the host's work between events, and the share of a link that transfers between devices
take.
"""

import math
from collections import defaultdict, deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from itertools import zip_longest
from typing import Literal

from atom.swap.crossing import MOST_OUTGOING, hops
from atom.swap.schedule import (
    GRADIENT_SLOTS,
    Backward,
    Event,
    Forward,
    GradientOut,
    GradientSum,
    Load,
    Observed,
    OptimizerStep,
    Shape,
    ValuesIn,
    ValuesOut,
    training_pass,
)

Lane = Literal["load", "compute", "gradients", "sums", "optimizer"]


@dataclass(frozen=True)
class Durations:
    """Seconds per sub-model, in order; forward and backward are for one micro-batch."""

    load_s: tuple[float, ...]
    forward_s: tuple[float, ...]
    """Seconds of a forward, and of a recomputation."""
    backward_s: tuple[float, ...]
    """Seconds of a backward without recomputation."""
    gradient_out_s: tuple[float, ...]
    """Seconds to copy the sum over all micro-batches, and to add it if `sum_s` is empty."""
    value_in_s: float = 0.0
    """Seconds per byte of a value that comes back from the host."""
    value_out_s: float = 0.0
    """Seconds per byte of a value that leaves for the host."""
    ready_s: tuple[float, ...] = ()
    """Seconds from the pass's beginning until a running step has updated the parameters.

    Empty: no step is running.
    """
    sum_s: tuple[float, ...] = ()
    """Seconds of the addition on the host."""
    load_share: float = 0.0
    """Fraction of the host's memory bandwidth that loads take while they work alone.

    Together with the same lane of other devices, this fraction and the next ones may exceed 1.
    """
    out_share: float = 0.0
    sum_share: float = 0.0
    step_share: float = 0.0


@dataclass(frozen=True)
class Span:
    """Time of an event, in seconds from the beginning of the pass."""

    event: Observed
    start_s: float
    end_s: float
    device: int = 0
    """Index of the device in its group."""

    @property
    def lane(self) -> Lane:
        """Lane that does the event's work."""
        match self.event:
            case Load() | ValuesIn():
                return "load"
            case GradientOut() | ValuesOut():
                return "gradients"
            case GradientSum():
                return "sums"
            case OptimizerStep():
                return "optimizer"
        return "compute"

    @property
    def sub_model(self) -> int:
        """Index of the event's sub-model."""
        return self.event.sub_model

    @property
    def micro_batch(self) -> int | None:
        """Micro-batch of the event; None: the event concerns all micro-batches."""
        kinds = Forward | Backward | ValuesIn | ValuesOut
        return self.event.micro_batch if isinstance(self.event, kinds) else None

    @property
    def seconds(self) -> float:
        """Duration of the event."""
        return self.end_s - self.start_s


@dataclass(frozen=True)
class Timeline:
    """Spans of one pass, in the order in which they began.

    Spans of one lane of a device do not overlap.
    """

    spans: tuple[Span, ...]

    @property
    def seconds(self) -> float:
        """Seconds from the beginning of the pass to the end of its last span."""
        return max((span.end_s for span in self.spans), default=0.0)

    @property
    def devices(self) -> int:
        """Number of devices: one more than the highest index of a span's device."""
        return 1 + max((span.device for span in self.spans), default=0)

    def of_device(self, device: int) -> "Timeline":
        """Return the spans of one device of a group, and of steps on the host, which all share."""
        spans = (s for s in self.spans if s.device == device or s.lane == "optimizer")
        return Timeline(tuple(spans))

    @property
    def computing(self) -> float:
        """Fraction of the pass in which a device computes, including recomputation."""
        return self.busy_s("compute") / self.seconds if self.seconds else 0.0

    def busy_s(self, lane: Lane) -> float:
        """Return the seconds that a lane works, averaged over the devices."""
        return sum(span.seconds for span in self.lane(lane)) / self.devices

    def lane(self, lane: Lane) -> list[Span]:
        """Return the spans of one lane."""
        return [span for span in self.spans if span.lane == lane]

    @classmethod
    def of(cls, spans: Iterable[Span]) -> "Timeline":
        """Sort spans into a timeline that begins with the first of them."""
        ordered = sorted(spans, key=lambda span: (span.start_s, span.end_s))
        origin = ordered[0].start_s if ordered else 0.0
        return cls(
            tuple(replace(s, start_s=s.start_s - origin, end_s=s.end_s - origin) for s in ordered)
        )


@dataclass
class Recording:
    """Observer that records spans. Thread-safe, because appending to a list needs no lock."""

    spans: list[Span] = field(default_factory=list)

    def __call__(self, event: Observed, device: int, start_s: float, end_s: float) -> None:
        self.spans.append(Span(event, start_s, end_s, device))

    def take(self) -> Timeline:
        """Return the spans recorded since the last call as one pass. Call it between passes."""
        spans, self.spans = self.spans, []
        return Timeline.of(spans)


def landed_s(
    schedules: Sequence[Iterable[Event]],
    shape: Shape,
    durations: Durations,
    squares_s: Sequence[float] = (),
    adds_first: bool = False,
    on: Sequence[int] = (),
) -> float:
    """Return the seconds until the gradients of a round's first passes are computed and added.

    Args:
        schedules: Events of each pass.
        shape: Shape of the passes.
        durations: Durations of the events; only the first pass is delayed by a running step.
        squares_s: Seconds per sub-model of additional work on the host for gradients of the last
            pass.
        adds_first: True if the first pass is added to the sums of other devices. Otherwise it
            replaces the arena's content, and nothing is added.
        on: Device of each sub-model in a group; empty: a single device.
    """
    group = _Group(shape, durations, on)
    now = durations if adds_first else replace(durations, sum_s=())
    for number, schedule in enumerate(schedules, start=1):
        if squares_s and number == len(schedules):
            pairs = zip_longest(now.sum_s, squares_s, fillvalue=0.0)
            now = replace(now, sum_s=tuple(map(sum, pairs)))
        for lanes in group.lanes:
            lanes.durations = now
        for event in schedule:
            group.take(event)
        now = replace(durations, ready_s=())
    return max(max(each.device_s, each.link_out_s, each.host_s) for each in group.lanes)


def simulate(
    schedule: Iterable[Event], shape: Shape, durations: Durations, on: Sequence[int] = ()
) -> Timeline:
    """Return the estimated time of each event of a pass.

    Args:
        schedule: Valid events; sub-models that are loaded already have no load.
        shape: Shape of the pass.
        durations: Durations of the events.
        on: Device of each sub-model in a group, whose schedule is a `group_pass`; empty: a single
            device.
    """
    group = _Group(shape, durations, on)
    spans = [span for event in schedule for span in group.take(event)]
    return Timeline(tuple(sorted(spans, key=lambda span: (span.start_s, span.end_s))))


def group_pass(shape: Shape, on: Sequence[int], loaded: Iterable[int] = ()) -> list[Event]:
    """Return the events of all devices of a group in a training pass.

    Each device keeps its own order, and a visit follows the visits that it waits for.

    Args:
        shape: Shape of the pass.
        on: Device of each sub-model; empty: a single device.
        loaded: Sub-models that are already in their slots.
    """
    if not on:
        return training_pass(shape, loaded)
    turn, parts = shape.sub_models - 1, list[tuple[int, Event]]()
    for device in sorted(set(on)):
        own = training_pass(_local(shape, on, device), [s for s in loaded if on[s] == device])
        visit = 2 * turn
        for event in reversed(own):  # other events belong to the visit after them
            match event:
                case Forward(s):
                    visit = s
                case Backward(s) | GradientOut(s):
                    visit = 2 * turn - s
            parts.append((visit, event))
    parts.reverse()
    return [event for _, event in sorted(parts, key=lambda part: part[0])]


class _Group:
    """Lanes of each device, and the transfers between devices."""

    def __init__(self, shape: Shape, durations: Durations, on: Sequence[int]) -> None:
        self._on = on or (0,) * shape.sub_models
        self.lanes = [
            _Lanes(_local(shape, on, device), durations, device) for device in sorted(set(self._on))
        ]
        byte_s = max(durations.value_in_s, durations.value_out_s)
        values, gradients = hops(shape.crossings if on else (), self._on)
        self._forward = defaultdict[int, list[tuple[float, int]]](list)
        """Transfers after a sub-model's forward: seconds and receiving sub-model."""
        self._backward = defaultdict[int, list[tuple[float, int]]](list)
        for (start, end), sent in values.items():
            self._forward[start].append((sum(each.value_bytes for each in sent) * byte_s, end))
        for (start, end), sent in gradients.items():
            self._backward[start].append((sum(each.gradient_bytes for each in sent) * byte_s, end))

    def take(self, event: Event) -> list[Span]:
        sender = self.lanes[self._on[event.sub_model]]
        spans = sender.take(event)
        match event:
            case Forward(s, c):
                for seconds, user in self._forward[s]:
                    self._send(sender, seconds, Forward(user, c))
            case Backward(s, c):
                for seconds, user in self._backward[s]:
                    self._send(sender, seconds, Backward(user, c))
        return spans

    def _send(self, sender: "_Lanes", seconds: float, waiting: Event) -> None:
        there_s = sender.device_s
        if seconds:
            there_s = sender.sent_s = max(sender.sent_s, there_s) + seconds
        arrived_s = self.lanes[self._on[waiting.sub_model]].arrived_s
        arrived_s[waiting] = max(arrived_s.get(waiting, 0.0), there_s)


def _local(shape: Shape, on: Sequence[int], device: int) -> Shape:
    """Return the shape with only the sub-models of one device of a group."""
    if not on:
        return shape
    return replace(shape, visited=tuple(s for s, owner in enumerate(on) if owner == device))


@dataclass
class _Lanes:
    """Times until which each lane of a device is busy, and at which data is available."""

    shape: Shape
    durations: Durations
    device: int = 0
    link_in_s: float = 0.0
    device_s: float = 0.0
    link_out_s: float = 0.0
    host_s: float = 0.0
    sent_s: float = 0.0
    arrived_s: dict[Event, float] = field(default_factory=dict)
    """Time at which all data from other devices for an event has arrived."""
    loaded_s: dict[int, float] = field(default_factory=dict)
    gradient_slots_s: list[float] = field(default_factory=lambda: [0.0] * GRADIENT_SLOTS)
    outgoing_s: deque[float] = field(default_factory=deque)
    left_s: dict[tuple[int, int], float] = field(default_factory=dict)
    """Time at which a sub-model's leaving values are on the host, by micro-batch."""
    back_s: dict[tuple[int, int], float] = field(default_factory=dict)
    """Time at which the same values are back on the device."""
    staging_s: list[float] = field(default_factory=lambda: [0.0] * GRADIENT_SLOTS)
    """Time at which the host has added the content of each staging memory."""
    traffic: list[tuple[float, float, float]] = field(default_factory=list)
    """Uses of the host's memory bandwidth: (from, until, fraction)."""

    def __post_init__(self) -> None:
        if self.durations.ready_s:
            self.traffic.append((0.0, max(self.durations.ready_s), self.durations.step_share))

    def take(self, event: Event) -> list[Span]:
        match event:
            case Load():
                return [self._load(event)]
            case Forward() | Backward():
                return [self._compute(event)]
            case GradientOut():
                return self._gradient_out(event)
            case ValuesOut():
                return [self._values_out(event)]
            case ValuesIn():
                return [self._values_in(event)]

    def _moved_s(self, start_s: float, seconds: float, share: float) -> float:
        """Return the time at which work ends that shares the host's memory bandwidth.

        Args:
            start_s: Begin.
            seconds: Duration if the work were alone.
            share: Fraction of the bandwidth that it takes alone.
        """
        if not share:
            return start_s + seconds
        self.traffic = [each for each in self.traffic if each[1] > self.device_s]
        other_uses, at_s = list(self.traffic), start_s
        while seconds > 0:
            left = 1.0 - sum(taken for since, until, taken in other_uses if since <= at_s < until)
            speed = min(1.0, max(left, 0.0) / share)
            changes = (s for since, until, _ in other_uses for s in (since, until) if s > at_s)
            ends_s = at_s + seconds / speed if speed else math.inf
            until_s = min(changes, default=ends_s)
            if until_s >= ends_s:
                until_s, seconds = ends_s, 0.0
            seconds -= (until_s - at_s) * speed
            self.traffic.append((at_s, until_s, share * speed))
            at_s = until_s
        return at_s

    def _load(self, event: Load) -> Span:
        ready_s = self.durations.ready_s[event.sub_model] if self.durations.ready_s else 0.0
        start = max(self.link_in_s, self.device_s, ready_s)
        seconds = self.durations.load_s[event.sub_model]
        self.link_in_s = self._moved_s(start, seconds, self.durations.load_share)
        self.loaded_s[event.sub_model] = self.link_in_s
        return Span(event, start, self.link_in_s, self.device)

    def _compute(self, event: Forward | Backward) -> Span:
        s = event.sub_model
        start = max(self.device_s, self.loaded_s.get(s, 0.0), self.arrived_s.pop(event, 0.0))
        seconds = self.durations.forward_s[s]
        if isinstance(event, Backward):
            again = 0.0 if self.shape.keeps_graph(s) else seconds
            seconds = again + self.durations.backward_s[s]
            start = max(start, self.back_s.pop((s, event.micro_batch), 0.0))
            if event.micro_batch == 0:
                start = max(start, self.gradient_slots_s[self.shape.gradient_slot_of(s)])
        self.device_s = start + seconds
        return Span(event, start, self.device_s, self.device)

    def _gradient_out(self, event: GradientOut) -> list[Span]:
        s, known = event.sub_model, self.durations
        slot = self.shape.gradient_slot_of(s)
        start = max(self.link_out_s, self.device_s, self.staging_s[slot])
        self.link_out_s = self._moved_s(start, known.gradient_out_s[s], known.out_share)
        self.gradient_slots_s[slot] = self.link_out_s
        spans = [Span(event, start, self.link_out_s, self.device)]
        if known.sum_s:
            start = max(self.host_s, self.link_out_s)
            self.host_s = self._moved_s(start, known.sum_s[s], known.sum_share)
            self.staging_s[slot] = self.host_s
            spans.append(Span(GradientSum(s), start, self.host_s, self.device))
        return spans

    def _values_out(self, event: ValuesOut) -> Span:
        if len(self.outgoing_s) == MOST_OUTGOING:
            self.device_s = max(self.device_s, self.outgoing_s.popleft())
        start, s = max(self.link_out_s, self.device_s), event.sub_model
        seconds = self.shape.offloaded_bytes(s) * self.durations.value_out_s
        self.link_out_s = self._moved_s(start, seconds, self.durations.out_share)
        self.outgoing_s.append(self.link_out_s)
        self.left_s[s, event.micro_batch] = self.link_out_s
        return Span(event, start, self.link_out_s, self.device)

    def _values_in(self, event: ValuesIn) -> Span:
        s = event.sub_model
        self.device_s = max(self.device_s, self.left_s[s, event.micro_batch])
        start = max(self.link_in_s, self.device_s)
        seconds = self.shape.offloaded_bytes(s) * self.durations.value_in_s
        self.link_in_s = self._moved_s(start, seconds, self.durations.load_share)
        self.back_s[s, event.micro_batch] = self.link_in_s
        return Span(event, start, self.link_in_s, self.device)
