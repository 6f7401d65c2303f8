"""Looks at a pass now and then, and at the next one when somebody asks.

Timing every event of every pass would cost a little all the time, and nobody could read it all. So
one pass in LOOK_S is recorded, for the figures that a daemon shows, and whichever is asked for.
"""

import threading
from collections import deque
from collections.abc import Sequence
from typing import Any

from atom.base.clock import Clock
from atom.swap.chrome_trace import chrome_trace
from atom.swap.engine import Observer
from atom.swap.pass_shares import PassShares
from atom.swap.schedule import Observed
from atom.swap.timeline import Recording, Span, Timeline

LOOK_S = 30.0
_STEP_SPANS = 4096
"""Of the optimizer's latest work, at most."""


class PassWatch:
    """`begin` and `end` around each pass, on the thread that trains; the rest from any thread."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._recording: Recording | None = None
        self._steps: deque[Span] = deque(maxlen=_STEP_SPANS)
        self._due = float("-inf")
        self._begun = 0
        self._latest: tuple[int, Timeline, Sequence[str]] | None = None
        """The number of the pass looked at last, what it did, and its sub-models' names."""

    def begin(self) -> Observer | None:
        """Who is to be told of the pass that begins now; None: nobody. After one that was not sound
        it is looked at the next."""
        with self._lock:
            self._begun += 1
            looks = self._recording is not None or self._clock.now() >= self._due
            if looks:
                self._due = self._clock.now() + LOOK_S
            self._recording = Recording() if looks else None
            return self._recording

    def end(self, names: Sequence[str]) -> None:
        """The pass that began last was sound. `names`: of its sub-models, in order."""
        if self._recording is not None:
            self._latest = self._begun, self._with_steps(self._recording.spans), names
            self._recording = None

    def stepped(self, event: Observed, start_s: float, end_s: float) -> None:
        """The optimizer's observer: its work may fall into a pass."""
        self._steps.append(Span(event, start_s, end_s))

    def ask(self) -> int:
        """The next pass to begin shall be recorded. Returns its ticket for `trace`."""
        with self._lock:
            self._due = float("-inf")
            return self._begun + 1

    def trace(self, ticket: int, title: str) -> tuple[str, str]:
        """Chrome trace and one line of figures of the pass of that ticket, or of a later one; empty
        if none of them has ended yet."""
        number, timeline, names = self._latest or (-1, Timeline(()), ())
        if number < ticket:
            return "", ""
        return chrome_trace(timeline, names, title), PassShares.of(timeline).text()

    def figures(self) -> dict[str, Any] | None:
        """Of the latest pass looked at, as `PassShares.to_json` has them; None: none yet."""
        latest = self._latest
        return None if latest is None else PassShares.of(latest[1]).to_json()

    def _with_steps(self, spans: list[Span]) -> Timeline:
        began = min((span.start_s for span in spans), default=0.0)
        return Timeline.of([*(s for s in list(self._steps) if s.end_s > began), *spans])
