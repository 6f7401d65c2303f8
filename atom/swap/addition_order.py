"""Order in which passes of several devices are added to one arena, so the sums are reproducible.

Passes have numbers. The gradients of each sub-model are added in the order of the numbers, so the
bits do not depend on the device or the speed of a pass. The order remembers which gradients were
added: a pass that is interrupted and computed again, on any device, adds only the remaining ones.
"""

import math
import threading
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager

from atom.base.clock import Clock
from atom.base.errors import AtomError


class AdditionStopped(AtomError):
    """Error of gradients that waited for their turn when the passes were interrupted."""


class AdditionOrder:
    """Order of additions to one arena. Thread-safe."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._changed = threading.Condition()
        self._next = defaultdict[int, int](int)
        """Number of the pass whose gradients are next, by sub-model."""
        self.is_torn = False
        """True if an addition failed since the last `go_on`, so an unknown part of it was made."""
        self._stopped_at = math.inf
        """First pass whose gradients are no longer added; the same holds for later passes."""
        self.failure: BaseException | None = None
        """First error since the last `go_on` that kept gradients from being added."""
        self._waited_s: defaultdict[int, float] = defaultdict(float)

    def waited_s(self, number: int) -> float:
        """Return and clear the seconds that gradients of a pass have waited for their turns."""
        return self._waited_s.pop(number, 0.0)

    def is_added(self, sub_model: int, number: int) -> bool:
        """Return True if the pass's gradients of this sub-model have been added."""
        with self._changed:
            return self._next[sub_model] > number

    @contextmanager
    def turn(self, sub_model: int, number: int) -> Iterator[None]:
        """Wrap the addition of a pass's gradients, and first wait for its turn.

        Raises:
            AdditionStopped: The passes were interrupted.
        """
        began = self._clock.now()
        with self._changed:
            self._changed.wait_for(
                lambda: number >= self._stopped_at or number <= self._next[sub_model]
            )
            if number >= self._stopped_at:
                raise AdditionStopped("another device failed") from self.failure
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
        """Stop additions of this and later passes until `go_on`.

        Waiting threads get LandingStopped.

        Args:
            number: Number of the pass.
            failure: Error that interrupted the pass.
        """
        with self._changed:
            self._stopped_at = min(number, self._stopped_at)
            if not isinstance(failure, AdditionStopped):
                self.failure = self.failure or failure
            self._changed.notify_all()

    def go_on(self, number: int | None = None) -> None:
        """Allow additions again after `stop`. Call it while no work is under way.

        Args:
            number: Pass that is next, if all earlier ones were added or never will be; None: no
                change.
        """
        with self._changed:
            self._stopped_at, self.failure, self.is_torn = math.inf, None, False
            self._waited_s.clear()
            if number is not None:
                self._next = defaultdict[int, int](lambda: number)
