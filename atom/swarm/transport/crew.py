"""The threads of one owner: started under a name, watched, joined."""

import errno
import threading
import time
import traceback
from collections.abc import Callable

from atom.base.events import EventSink


class Crew:
    """Starts threads and remembers the living. A thread's exception is an event, not a crash."""

    def __init__(self, events: EventSink) -> None:
        self._events = events
        self._lock = threading.Lock()
        self._living: set[threading.Thread] = set()

    def start(self, name: str, work: Callable[[], None]) -> None:
        """Runs `work` in a thread of its own. Raises: OSError when the system has none to give."""
        thread = threading.Thread(target=self._run, args=(work,), name=name, daemon=True)
        with self._lock:
            self._living.add(thread)
        try:
            thread.start()
        except RuntimeError as problem:
            with self._lock:
                self._living.discard(thread)
            raise OSError(errno.EAGAIN, f"no thread for {name}: {problem}") from problem

    def join(self, timeout_s: float) -> bool:
        """Waits for all but the calling thread; whether they ended in time."""
        deadline = time.monotonic() + timeout_s
        with self._lock:
            waiting = [
                thread for thread in self._living if thread is not threading.current_thread()
            ]
        for thread in waiting:
            thread.join(max(deadline - time.monotonic(), 0.0))
        return not any(thread.is_alive() for thread in waiting)

    def _run(self, work: Callable[[], None]) -> None:
        try:
            work()
        except Exception:  # noqa: BLE001 - supervisor: one connection must not take all along
            self._events.emit("thread-failed", traceback=traceback.format_exc(limit=8))
        finally:
            with self._lock:
                self._living.discard(threading.current_thread())
