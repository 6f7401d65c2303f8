"""Parts of the arenas that a running step has already rewritten; readers wait for their parts.

The optimizer marks pieces as it finishes them. Threads that copy to the device wait for the pieces
of their copy. So a forward begins when its own parameters are ready, before the whole step is done,
and no half-written parameter is copied.
"""

import threading
from bisect import bisect_left, bisect_right
from collections.abc import Sequence

from atom.base.errors import AtomError


class StepFailed(AtomError):
    """Error of an optimizer step that ended early: only some parameters are updated."""

    def __init__(self, failure: BaseException | None) -> None:
        """Describe the failure. Each waiting thread raises a separate exception.

        Args:
            failure: Exception of the thread that ran the step.
        """
        why = f": {type(failure).__name__}: {failure}" if failure is not None else ""
        super().__init__(f"the optimizer's step failed{why}")
        self.__cause__ = failure


class Readiness:
    """State of the pieces of one step, all unfinished at first. Thread-safe."""

    def __init__(self, pieces: Sequence[tuple[int, int]]) -> None:
        """Start with no piece finished.

        Args:
            pieces: Arena elements [start, stop), ascending and disjoint. Elements between them are
                not rewritten, so no reader waits for them.
        """
        self._starts = [start for start, _ in pieces]
        self._stops = [stop for _, stop in pieces]
        self._done = bytearray(len(pieces))
        self._failure: BaseException | None = None
        self._changed = threading.Condition()

    def finish(self, piece: int) -> None:
        """Mark the piece with this index as readable."""
        with self._changed:
            self._done[piece] = True
            self._changed.notify_all()

    def fail(self, failure: BaseException) -> None:
        """Give up the unfinished pieces: present and future waits for them raise StepFailed."""
        with self._changed:
            self._failure = failure
            self._changed.notify_all()

    def wait(self, start: int, stop: int) -> None:
        """Wait until elements [start, stop) may be read.

        Raises:
            StepFailed: The step failed before.
        """
        first, end = bisect_right(self._stops, start), bisect_left(self._starts, stop)
        with self._changed:
            while self._done.find(0, first, end) >= 0:
                if self._failure is not None:
                    raise StepFailed(self._failure)
                self._changed.wait()
