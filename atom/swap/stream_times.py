"""When work on CUDA streams began and ended, on the clock, without making anybody wait.

Pairs of events are recorded around the work, and read when the device has been drained. They count
from one origin, recorded when the first of them is wanted, whose time on the clock is known because
the device is idle then.
"""

from collections.abc import Iterator
from contextlib import contextmanager

import torch

from atom.base.clock import Clock
from atom.swap.device import Report


class StreamTimes:
    """Seconds on the clock of what happens on streams, from one drain of the device to the next."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._origin: torch.cuda.Event | None = None
        self._origin_s = 0.0
        self._pending: list[tuple[torch.cuda.Event, torch.cuda.Event, Report]] = []

    def begin(self, stream: torch.cuda.Stream) -> None:
        """Sets the origin unless there is one. Call from the engine's thread."""
        if self._origin is None:
            stream.synchronize()
            self._origin_s = self._clock.now()
            self._origin = self.mark(stream)

    def mark(self, stream: torch.cuda.Stream) -> torch.cuda.Event:
        event = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
        event.record(stream)
        return event

    @contextmanager
    def around(self, stream: torch.cuda.Stream, report: Report | None) -> Iterator[None]:
        if report is None:
            yield
            return
        started = self.mark(stream)
        yield
        self._pending.append((started, self.mark(stream), report))

    def report_until_now(self, started: torch.cuda.Event, report: Report) -> None:
        """For work that a host thread ends; `started` has passed."""
        report(self._at(started), self._clock.now())

    def end(self, tell: bool) -> None:
        """Reports what is pending and forgets the origin. The device is idle."""
        pending, self._pending = self._pending, []
        if tell:
            for started, ended, report in pending:
                report(self._at(started), self._at(ended))
        self._origin = None

    def _at(self, event: torch.cuda.Event) -> float:
        assert self._origin is not None
        after_ms = float(self._origin.elapsed_time(event))
        return self._origin_s + after_ms / 1e3
