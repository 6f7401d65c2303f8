"""Equal pieces of work shared out among devices of unequal speed; one that fails is left out."""

import heapq
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from dataclasses import dataclass
from typing import TypeVar

import torch

from atom.base.clock import Clock
from atom.base.errors import AtomError, DeviceError
from atom.swap.voided import Cause, PassVoided, is_out_of_memory

FIRST_WAIT_S, LONGEST_WAIT_S = 10.0, 600.0
"""A device that failed is tried again after the first. If it fails again soon, twice as long as
before is waited."""

_Result = TypeVar("_Result")
Job = Callable[[int, int, Callable[[], bool]], tuple[_Result, float]]
"""(device, piece, whether to stop in the middle) → what the piece gives, and how long the device
was kept waiting by others."""


def shared_out(pieces: int, seconds: Sequence[float]) -> list[int]:
    """Which device takes each piece, if a piece takes so many seconds on each, above 0. Pieces are
    in the order in which they end: those of one device, too."""
    ends = [(each, device) for device, each in enumerate(seconds)]
    heapq.heapify(ends)
    found = []
    for _ in range(pieces):
        end, device = ends[0]
        found.append(device)
        heapq.heapreplace(ends, (end + seconds[device], device))
    return found


@dataclass(frozen=True)
class LeftOut:
    """A device that failed."""

    why: str
    wait_s: float
    again_at: float
    """On the clock; from then on it may be tried."""


def left_out(failure: BaseException, before: LeftOut | None, now: float) -> LeftOut:
    """`before`: what was said of its last failure."""
    again = before is not None and now < before.again_at + before.wait_s
    wait_s = min(2 * before.wait_s, LONGEST_WAIT_S) if before and again else FIRST_WAIT_S
    said = failure.detail if isinstance(failure, PassVoided) else str(failure)
    why = said.partition("\n")[0] or type(failure).__name__
    return LeftOut(why, wait_s, now + wait_s)


def is_the_devices(failure: BaseException) -> bool:
    """Might another device do better? PyTorch tells what goes wrong on one by a RuntimeError."""
    if isinstance(failure, PassVoided):
        return failure.cause is Cause.MEMORY
    if isinstance(failure, AtomError):
        return isinstance(failure, DeviceError)
    return isinstance(failure, RuntimeError) or is_out_of_memory(failure)


class WorkSharing:
    """A thread for each device, and how fast each is. Used by one thread at a time."""

    def __init__(self, devices: int, clock: Clock) -> None:
        self._clock = clock
        self._seconds = [0.0] * devices
        """Of a piece; 0: not known yet."""
        self._pool = ThreadPoolExecutor(devices, "atom-device")

    def run(
        self,
        devices: Sequence[int],
        pieces: Sequence[int],
        job: Job[_Result],
        stop: Callable[[], None] = lambda: None,
    ) -> tuple[dict[int, _Result], dict[int, BaseException]]:
        """What the pieces give, and how devices failed. After a failure those of the others that
        have not ended are asked to stop, `stop` being called first, and those that did end at its
        asking have failed as well. Returns when no thread is at work."""
        known = [self._seconds[device] for device in devices if self._seconds[device]]
        usual = sum(known) / len(known) if known else 1.0
        taken = shared_out(len(pieces), [self._seconds[device] or usual for device in devices])
        results, failures = dict[int, _Result](), dict[int, BaseException]()
        broken, threads = threading.Event(), torch.get_num_threads()

        def work(place: int) -> None:
            device = devices[place]
            if torch.get_num_threads() != threads:
                torch.set_num_threads(threads)  # PyTorch counts them per thread
            try:
                for piece in [p for p, who in zip(pieces, taken, strict=True) if who == place]:
                    started = self._clock.now()
                    results[piece], waited_s = job(device, piece, broken.is_set)
                    took_s = self._clock.now() - started
                    self._seconds[device] = max(took_s - waited_s, took_s / 4)
            except BaseException as failure:  # noqa: BLE001 - handed to whoever asked for the work
                failures[device] = failure
                broken.set()
                stop()

        outside = torch.get_rng_state()
        wait([self._pool.submit(work, place) for place in range(len(devices))])
        torch.set_rng_state(outside)  # one for all threads: they left there what they liked
        return results, failures
