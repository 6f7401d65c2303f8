"""Which parts of the arenas a step under way has rewritten: who reads a part waits for that part.

The optimizer marks pieces as it finishes them; the threads that copy to the device wait for the
pieces of what they copy. So a forward begins when its own parameters are ready, not when all are,
and nothing half-made is ever copied.
"""

import threading
from bisect import bisect_left, bisect_right
from collections.abc import Sequence

from atom.base.errors import AtomError


class StepFailed(AtomError):
    """The optimizer's step broke off: some parameters are updated, others are not."""

    def __init__(self, failure: BaseException | None) -> None:
        """`failure`: of the thread that stepped. Each who waits raises an exception of its own."""
        why = f": {type(failure).__name__}: {failure}" if failure is not None else ""
        super().__init__(f"the optimizer's step broke off{why}")
        self.__cause__ = failure


class Readiness:
    """The pieces of one step, none of them done at first. Thread-safe."""

    def __init__(self, pieces: Sequence[tuple[int, int]]) -> None:
        """`pieces`: arena elements [start, stop), ascending and disjoint. What lies between them
        is not rewritten, so nobody waits for it."""
        self._starts = [start for start, _ in pieces]
        self._stops = [stop for _, stop in pieces]
        self._done = bytearray(len(pieces))
        self._failure: BaseException | None = None
        self._changed = threading.Condition()

    def finish(self, piece: int) -> None:
        """Says that the piece of this index may be read."""
        with self._changed:
            self._done[piece] = True
            self._changed.notify_all()

    def fail(self, failure: BaseException) -> None:
        """Says that no further piece will be finished, and why: nobody waits for one any more."""
        with self._changed:
            self._failure = failure
            self._changed.notify_all()

    def wait(self, start: int, stop: int) -> None:
        """Returns when elements [start, stop) may be read. Raises: StepFailed."""
        first, end = bisect_right(self._stops, start), bisect_left(self._starts, stop)
        with self._changed:
            while self._done.find(0, first, end) >= 0:
                if self._failure is not None:
                    raise StepFailed(self._failure)
                self._changed.wait()
