"""A schedule in time: predicted from durations, or recorded while the engine carries it out.

Four lanes work at once: the link into the device, the device, the link out of it, and the host,
which adds what has left. Each takes its work in the order of the schedule, one piece after the
other. What holds a piece back, as in the engine and its devices:

* a load: everything computed before it was issued (its slot may have been in use till then), and
  the step under way, until it has updated what is loaded;
* computing: the load of that sub-model; and for its first backward the gradient slot, whose last
  sums must have left;
* a gradient-out: the backward before it, and the addition of what landed where it will land;
* an addition: that gradient-out;
* values that leave, or come back: everything computed before. As a third leaves, computing waits
  until the first is out; a visit waits for what comes back for it.

Each device of a group has such lanes, and one that sends: what a sub-model makes for one on another
device leaves when it is computed, and computing there waits for it.

The links, the additions and the step share the host's memory: what comes first in the schedule
takes what it needs, what comes later gets the rest. A prediction leaves out what the host does
between events, and that what goes from device to device takes its share of their links.
"""

import math
from collections import defaultdict, deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from itertools import zip_longest
from typing import Literal

from atom.swap.crossing import OUTGOING, hops
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
    """Seconds per sub-model, in order; forward and backward for one micro-batch."""

    load_s: tuple[float, ...]
    forward_s: tuple[float, ...]
    """Also of the recomputation."""
    backward_s: tuple[float, ...]
    """Without recomputation."""
    gradient_out_s: tuple[float, ...]
    """For the sum over all micro-batches; also of its addition, if `sum_s` is empty."""
    value_in_s: float = 0.0
    """Per byte of a value that comes back from the host."""
    value_out_s: float = 0.0
    """Per byte of one that leaves."""
    ready_s: tuple[float, ...] = ()
    """When, from the beginning of the pass, a step under way has updated all that a sub-model
    loads. Empty: no step is under way."""
    sum_s: tuple[float, ...] = ()
    """For the addition on the host."""
    shares: "Shares" = field(default_factory=lambda: Shares())


@dataclass(frozen=True)
class Shares:
    """Of what the host's memory moves per second: what each lane takes while it is at work, were it
    alone; with the same lane of other devices more than all of it, maybe."""

    load: float = 0.0
    out: float = 0.0
    sum: float = 0.0
    step: float = 0.0


@dataclass(frozen=True)
class Span:
    """When an event was at work, in seconds from the beginning of the pass."""

    event: Observed
    start_s: float
    end_s: float
    device: int = 0
    """Of a group."""

    @property
    def lane(self) -> Lane:
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
        return self.event.sub_model

    @property
    def micro_batch(self) -> int | None:
        """None for what is done once for all micro-batches."""
        both = Forward | Backward | ValuesIn | ValuesOut
        return self.event.micro_batch if isinstance(self.event, both) else None

    @property
    def seconds(self) -> float:
        return self.end_s - self.start_s


@dataclass(frozen=True)
class Timeline:
    """One pass. Spans in the order in which they began; those of a lane of one device do not
    overlap."""

    spans: tuple[Span, ...]

    @property
    def seconds(self) -> float:
        """From the beginning of the pass to the end of whatever ends last."""
        return max((span.end_s for span in self.spans), default=0.0)

    @property
    def devices(self) -> int:
        return 1 + max((span.device for span in self.spans), default=0)

    def of_device(self, device: int) -> "Timeline":
        """Of a group: with the steps on the host that all wait for."""
        both = (s for s in self.spans if s.device == device or s.lane == "optimizer")
        return Timeline(tuple(both))

    @property
    def computing(self) -> float:
        """Share of the pass in which a device computes, recomputing included."""
        return self.busy_s("compute") / self.seconds if self.seconds else 0.0

    def busy_s(self, lane: Lane) -> float:
        """Of each device, in the mean."""
        return sum(span.seconds for span in self.lane(lane)) / self.devices

    def lane(self, lane: Lane) -> list[Span]:
        return [span for span in self.spans if span.lane == lane]

    @classmethod
    def of(cls, spans: Iterable[Span]) -> "Timeline":
        """Puts spans into order and lets the pass begin with the first of them."""
        ordered = sorted(spans, key=lambda span: (span.start_s, span.end_s))
        origin = ordered[0].start_s if ordered else 0.0
        return cls(
            tuple(replace(s, start_s=s.start_s - origin, end_s=s.end_s - origin) for s in ordered)
        )


@dataclass
class Recording:
    """An engine's observer. Called from several threads: appending to a list needs no lock."""

    spans: list[Span] = field(default_factory=list)

    def __call__(self, event: Observed, start_s: float, end_s: float, device: int = 0) -> None:
        self.spans.append(Span(event, start_s, end_s, device))

    def take(self) -> Timeline:
        """The pass recorded since the last call. Call between passes."""
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
    """When all is computed and has landed of the first passes of a round.

    `squares_s`: per sub-model, of what the host does besides with what lands in the last one.
    `adds_first`: the first one is added to what other devices bring; else it replaces what was
    there, and nothing is added. It alone is held back by the step.
    """
    group = _Group(shape, durations if adds_first else replace(durations, sum_s=()), on)
    for number, schedule in enumerate(schedules, start=1):
        now = group.durations
        if squares_s and number == len(schedules):
            both = zip_longest(now.sum_s, squares_s, fillvalue=0.0)
            group.take_durations(replace(now, sum_s=tuple(map(sum, both))))
        for event in schedule:
            group.take(event)
        group.take_durations(replace(durations, ready_s=()))
    return max(max(each.device_s, each.link_out_s, each.host_s) for each in group.lanes)


def simulate(
    schedule: Iterable[Event], shape: Shape, durations: Durations, on: Sequence[int] = ()
) -> Timeline:
    """When each event of a pass would be at work.

    The schedule must be sound. What it finds loaded costs nothing. `on`: per sub-model, its device
    in a group; then the schedule is a `group_pass`.
    """
    group = _Group(shape, durations, on)
    spans = [span for event in schedule for span in group.take(event)]
    return Timeline(tuple(sorted(spans, key=lambda span: (span.start_s, span.end_s))))


def group_pass(shape: Shape, on: Sequence[int], loaded: Iterable[int] = ()) -> list[Event]:
    """What all devices of a group do in a training pass, each in its own order, and a visit after
    those that it waits for. `on`: per sub-model, its device; empty: there is one."""
    if not on:
        return training_pass(shape, loaded)
    turn, parts = shape.sub_models - 1, list[tuple[int, Event]]()
    for device in sorted(set(on)):
        own = training_pass(_own(shape, on, device), [s for s in loaded if on[s] == device])
        visit = 2 * turn
        for event in reversed(own):  # what is no visit belongs to the one before which it stands
            match event:
                case Forward(s):
                    visit = s
                case Backward(s) | GradientOut(s):
                    visit = 2 * turn - s
            parts.append((visit, event))
    parts.reverse()
    return [event for _, event in sorted(parts, key=lambda part: part[0])]


class _Group:
    """The lanes of each device, and what goes from one to another."""

    def __init__(self, shape: Shape, durations: Durations, on: Sequence[int]) -> None:
        self._on = on or (0,) * shape.sub_models
        self.lanes = [
            _Lanes(_own(shape, on, device), durations, device) for device in sorted(set(self._on))
        ]
        byte_s = max(durations.value_in_s, durations.value_out_s)
        values, gradients = hops(shape.crossings if on else (), self._on)
        self._forward = defaultdict[int, list[tuple[float, int]]](list)
        """Per sub-model, seconds of what it sends when it is computed, and to which one."""
        self._backward = defaultdict[int, list[tuple[float, int]]](list)
        for (start, end), what in values.items():
            self._forward[start].append((sum(each.value_bytes for each in what) * byte_s, end))
        for (start, end), what in gradients.items():
            self._backward[start].append((sum(each.gradient_bytes for each in what) * byte_s, end))

    @property
    def durations(self) -> Durations:
        return self.lanes[0].durations

    def take_durations(self, durations: Durations) -> None:
        for each in self.lanes:
            each.durations = durations

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


def _own(shape: Shape, on: Sequence[int], device: int) -> Shape:
    if not on:
        return shape
    return replace(shape, visited=tuple(s for s, its in enumerate(on) if its == device))


@dataclass
class _Lanes:
    """Until when each lane of a device is busy, and what has become available when."""

    shape: Shape
    durations: Durations
    device: int = 0
    link_in_s: float = 0.0
    device_s: float = 0.0
    link_out_s: float = 0.0
    host_s: float = 0.0
    sent_s: float = 0.0
    arrived_s: dict[Event, float] = field(default_factory=dict)
    """When all that other devices made for it so far is there."""
    loaded_s: dict[int, float] = field(default_factory=dict)
    gradient_slots_s: list[float] = field(default_factory=lambda: [0.0] * GRADIENT_SLOTS)
    outgoing_s: deque[float] = field(default_factory=deque)
    left_s: dict[tuple[int, int], float] = field(default_factory=dict)
    """Per sub-model and micro-batch, when what leaves behind it is on the host."""
    back_s: dict[tuple[int, int], float] = field(default_factory=dict)
    """Likewise, when that is there again."""
    staging_s: list[float] = field(default_factory=lambda: [0.0] * GRADIENT_SLOTS)
    """When the host has added what lies in each."""
    traffic: list[tuple[float, float, float]] = field(default_factory=list)
    """What takes a share of the host's memory: (from, until, share)."""

    def __post_init__(self) -> None:
        if self.durations.ready_s:
            self.traffic.append((0.0, max(self.durations.ready_s), self.durations.shares.step))

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
        """When work is done that would take so many seconds alone, and that share of the memory."""
        if not share:
            return start_s + seconds
        self.traffic = [each for each in self.traffic if each[1] > self.device_s]
        others, at_s = list(self.traffic), start_s
        while seconds > 0:
            left = 1.0 - sum(taken for since, until, taken in others if since <= at_s < until)
            speed = min(1.0, max(left, 0.0) / share)
            changes = (s for since, until, _ in others for s in (since, until) if s > at_s)
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
        self.link_in_s = self._moved_s(start, seconds, self.durations.shares.load)
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
        s, shares = event.sub_model, self.durations.shares
        slot = self.shape.gradient_slot_of(s)
        start = max(self.link_out_s, self.device_s, self.staging_s[slot])
        self.link_out_s = self._moved_s(start, self.durations.gradient_out_s[s], shares.out)
        self.gradient_slots_s[slot] = self.link_out_s
        spans = [Span(event, start, self.link_out_s, self.device)]
        if self.durations.sum_s:
            start = max(self.host_s, self.link_out_s)
            self.host_s = self._moved_s(start, self.durations.sum_s[s], shares.sum)
            self.staging_s[slot] = self.host_s
            spans.append(Span(GradientSum(s), start, self.host_s, self.device))
        return spans

    def _values_out(self, event: ValuesOut) -> Span:
        if len(self.outgoing_s) == OUTGOING:
            self.device_s = max(self.device_s, self.outgoing_s.popleft())
        start, s = max(self.link_out_s, self.device_s), event.sub_model
        seconds = self.shape.away_bytes(s) * self.durations.value_out_s
        self.link_out_s = self._moved_s(start, seconds, self.durations.shares.out)
        self.outgoing_s.append(self.link_out_s)
        self.left_s[s, event.micro_batch] = self.link_out_s
        return Span(event, start, self.link_out_s, self.device)

    def _values_in(self, event: ValuesIn) -> Span:
        s = event.sub_model
        self.device_s = max(self.device_s, self.left_s[s, event.micro_batch])
        start = max(self.link_in_s, self.device_s)
        seconds = self.shape.away_bytes(s) * self.durations.value_in_s
        self.link_in_s = self._moved_s(start, seconds, self.durations.shares.load)
        self.back_s[s, event.micro_batch] = self.link_in_s
        return Span(event, start, self.link_in_s, self.device)
