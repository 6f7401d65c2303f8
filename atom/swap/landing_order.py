"""Passes of several devices land in one arena, and the sums are those of one device after another.

Passes have numbers. Of each sub-model their gradients are added in the order of the numbers, so
the bits do not depend on which device ran which pass, or how fast. What has been added is known: a
pass that was broken off and is computed again, on whatever device, adds only the rest.
"""

import math
import threading
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager

from atom.base.clock import Clock
from atom.base.errors import AtomError


class LandingStopped(AtomError):
    """Gradients that waited for their turn will not get it: the passes are broken off."""


class LandingOrder:
    """Of one arena. From any thread."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._changed = threading.Condition()
        self._next = defaultdict[int, int](int)
        """Per sub-model, the pass whose gradients are to be added next."""
        self.is_torn = False
        """An addition broke off since the last `go_on`: nobody knows how much of it was made."""
        self._stopped_at = math.inf
        """Of this pass and those after it nothing lands any more."""
        self.failure: BaseException | None = None
        """The first that kept gradients from landing, since the last `go_on`."""
        self._waited_s: defaultdict[int, float] = defaultdict(float)

    def waited_s(self, number: int) -> float:
        """How long gradients of a pass have waited for their turns."""
        return self._waited_s.pop(number, 0.0)

    def has_landed(self, sub_model: int, number: int) -> bool:
        with self._changed:
            return self._next[sub_model] > number

    @contextmanager
    def turn(self, sub_model: int, number: int) -> Iterator[None]:
        """Wraps the addition of a pass's gradients: waits for those of the pass before. Raises:
        LandingStopped."""
        began = self._clock.now()
        with self._changed:
            self._changed.wait_for(
                lambda: number >= self._stopped_at or number <= self._next[sub_model]
            )
            if number >= self._stopped_at:
                raise LandingStopped("another device failed") from self.failure
            self._waited_s[number] += self._clock.now() - began
        try:
            yield
        except BaseException:
            self.is_torn = True
            raise
        with self._changed:
            self._next[sub_model] = max(self._next[sub_model], number + 1)
            self._changed.notify_all()

    def stop(self, number: int, failure: BaseException | None = None) -> None:
        """Nothing of this pass and those after it lands, until `go_on`; whoever waits, or comes to
        wait, is told so."""
        with self._changed:
            self._stopped_at = min(number, self._stopped_at)
            if not isinstance(failure, LandingStopped):
                self.failure = self.failure or failure
            self._changed.notify_all()

    def go_on(self, number: int | None = None) -> None:
        """After `stop`, when nothing is under way. `number`: of the pass that is next, if those
        before it have landed or never will."""
        with self._changed:
            self._stopped_at, self.failure, self.is_torn = math.inf, None, False
            self._waited_s.clear()
            if number is not None:
                self._next = defaultdict[int, int](lambda: number)
