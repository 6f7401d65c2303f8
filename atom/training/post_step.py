"""What follows a step while training goes on: one job at a time, on a thread of its own."""

import threading
from collections.abc import Callable


class PostStepTask:
    """The worker's thread starts a job and, before it changes what the job reads, waits for it."""

    def __init__(self, on_failure: Callable[[], None]) -> None:
        """`on_failure` is called on the job's thread; `wait` then says what happened."""
        self._on_failure = on_failure
        self._thread: threading.Thread | None = None
        self._failure: BaseException | None = None

    def start(self, job: Callable[[], None]) -> None:
        """Runs `job` in the background. The one before must have been waited for."""
        assert self._thread is None
        self._thread = threading.Thread(target=self._run, args=(job,), name="post-step")
        self._thread.start()

    def wait(self) -> None:
        """Returns when no job is under way. Raises: what the job failed with, every time."""
        self.rest()
        if self._failure is not None:
            raise self._failure

    def rest(self) -> None:
        """Returns when no job is under way, whatever became of it."""
        if self._thread is not None:
            self._thread.join()
            self._thread = None

    def _run(self, job: Callable[[], None]) -> None:
        try:
            job()
        except BaseException as failure:  # noqa: BLE001 - the worker's supervisor hears of it
            self._failure = failure
            self._on_failure()
