"""A thread for a device's work in the background."""

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor, wait

import torch


class Lane:
    """One background thread, started when first used, with at most one job per slot to wait for."""

    def __init__(self, name: str) -> None:
        self._executor = ThreadPoolExecutor(1, name)
        self._jobs: dict[int, Future[None]] = {}

    def submit(self, slot: int, job: Callable[[], None]) -> None:
        self.wait(slot)
        self._jobs[slot] = self._executor.submit(_with_threads, torch.get_num_threads(), job)

    def wait(self, slot: int) -> None:
        """Returns once the slot's last job is done. Raises: what the job raised."""
        job = self._jobs.pop(slot, None)
        if job is not None:
            job.result()

    def drain(self) -> None:
        """Waits for every job. Raises: what the first failed one raised."""
        jobs, self._jobs = list(self._jobs.values()), {}
        wait(jobs)
        for job in jobs:
            job.result()

    def close(self) -> None:
        self._executor.shutdown(wait=True, cancel_futures=True)


def _with_threads(threads: int, job: Callable[[], None]) -> None:
    """With as many arithmetic threads as its sender has: PyTorch counts them per thread."""
    if torch.get_num_threads() != threads:
        torch.set_num_threads(threads)
    job()
