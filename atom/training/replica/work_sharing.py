"""Distribution of equal pieces of work among devices of unequal speed, with failures reported."""

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
"""Seconds until a failed device is tried again: the first wait, and the longest.

The wait doubles if the device soon fails again.
"""

_Result = TypeVar("_Result")
Job = Callable[[int, int, Callable[[], bool]], tuple[_Result, float]]
"""Function (device, piece, should_stop) → (result, seconds that the device waited for others)."""


def shared_out(pieces: int, seconds: Sequence[float]) -> list[int]:
    """Assign pieces to devices; return the device of each piece.

    The pieces are numbered in the order in which they are expected to end.

    Args:
        pieces: Number of pieces.
        seconds: Duration of one piece on each device, above 0.
    """
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
    """Exclusion of a device that failed."""

    why: str
    wait_s: float
    again_at: float
    """Time from which the device may be tried again."""


def left_out(failure: BaseException, before: LeftOut | None, now: float) -> LeftOut:
    """Return the exclusion of a device after a failure.

    Args:
        failure: Error of the device.
        before: Exclusion after its previous failure, if any.
        now: Current time.
    """
    again = before is not None and now < before.again_at + before.wait_s
    wait_s = min(2 * before.wait_s, LONGEST_WAIT_S) if before and again else FIRST_WAIT_S
    said = failure.detail if isinstance(failure, PassVoided) else str(failure)
    why = said.partition("\n")[0] or type(failure).__name__
    return LeftOut(why, wait_s, now + wait_s)


def is_the_devices(failure: BaseException) -> bool:
    """Return True if another device might succeed: the device failed, or its memory ran out.

    PyTorch reports failures of a device as RuntimeError.
    """
    if isinstance(failure, PassVoided):
        return failure.cause is Cause.MEMORY
    if isinstance(failure, AtomError):
        return isinstance(failure, DeviceError)
    return isinstance(failure, RuntimeError) or is_out_of_memory(failure)


class WorkSharing:
    """Threads for devices, one for each, and the measured speed of each device.

    One thread at a time may call the methods.
    """

    def __init__(self, devices: int, clock: Clock) -> None:
        self._clock = clock
        self._seconds = [0.0] * devices
        """Seconds for one piece on each device; 0: not measured yet."""
        self._pool = ThreadPoolExecutor(devices, "atom-device")

    def run(
        self,
        devices: Sequence[int],
        pieces: Sequence[int],
        job: Job[_Result],
        stop: Callable[[], None] = lambda: None,
    ) -> tuple[dict[int, _Result], dict[int, BaseException]]:
        """Run all pieces on the devices, and wait until no thread is running.

        After a failure the other devices are asked to stop.

        Args:
            devices: Numbers of the devices to use.
            pieces: Numbers of the pieces.
            job: Runs one piece on one device.
            stop: Called after each failure, from the failed device's thread.

        Returns:
            Results by piece, and errors by device. A device that stopped because another one
            failed is among the errors, too.
        """
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
            except BaseException as failure:  # noqa: BLE001 - handed to the caller of `run`
                failures[device] = failure
                broken.set()
                stop()

        outside = torch.get_rng_state()
        wait([self._pool.submit(work, place) for place in range(len(devices))])
        torch.set_rng_state(outside)  # all threads share one generator, and the jobs have used it
        return results, failures
