"""A thread that writes, so that a terminal which takes nothing holds up nobody else.

Ctrl-S, or a pager that shows its first page, stops a write for as long as it likes. Whoever trains,
votes or leaves has no time for that.
"""

import queue
import threading
import time
from collections.abc import Callable

Act = Callable[[], None]


class WriterThread:
    """Does what it is given, in order. `give` and `finish` may be called from any thread; the own
    one begins with the first act, and never keeps the process alive."""

    def __init__(self, most_waiting: int) -> None:
        self._waiting: queue.Queue[Act] = queue.Queue(most_waiting)
        self._thread: threading.Thread | None = None
        self._starting = threading.Lock()

    def give(self, act: Act) -> bool:
        """Never waits. False: too much waits already, and this is not going to be done."""
        self._begin()
        try:
            self._waiting.put_nowait(act)
        except queue.Full:
            return False
        return True

    def finish(self, last: Act, patience_s: float) -> bool:
        """Waits until everything given is done, and then `last`. False: it is not by now."""
        self._begin()
        done, deadline = threading.Event(), time.monotonic() + patience_s

        def finish() -> None:
            last()
            done.set()

        try:
            self._waiting.put(finish, timeout=patience_s)
        except queue.Full:
            return False
        return done.wait(max(deadline - time.monotonic(), 0.0))

    @property
    def has_caught_up(self) -> bool:
        """Whether nothing waits behind what is being done."""
        return self._waiting.empty()

    def _begin(self) -> None:
        with self._starting:
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="writer", daemon=True)
                self._thread.start()

    def _run(self) -> None:
        while True:
            self._waiting.get()()
