"""The caps of device and host memory, changed while the worker trains."""

from collections.abc import Callable
from concurrent.futures import CancelledError, Future
from typing import Protocol

from atom.base.errors import DeviceError
from atom.config.peer_file import PeerFile
from atom.daemon.fitting.building import Built

PATIENCE_S = 60.0
"""For the pass under way, where it cannot be broken off, and what else the worker is at."""
_NOT_SO_LITTLE = (
    "nothing was changed; allow more, or all that is free: leave out [device] and [host] memory"
)


class Submits(Protocol):
    """The part of `atom.training.replica.worker.Worker` that is needed here."""

    def submit_soon(self, command: Callable[[], None]) -> None: ...


class MemoryCaps:
    """Plans anew on the caller's thread, and rearranges on the worker's. One caller at a time."""

    def __init__(self, built: Built, worker: Submits, patience_s: float = PATIENCE_S) -> None:
        self._built, self._worker, self._patience_s = built, worker, patience_s
        self._errand: Future[None] | None = None
        self._closed = False

    def change(self, peer: PeerFile) -> None:
        """What `peer` allows is in force from the next pass on.

        Raises: DeviceError if the model does not fit it in any way, or if the worker does not come
        to it; ShortageError if other programs have the memory. Then nothing is changed.
        """
        try:
            cut = self._built.cutter.cut(peer)
        except DeviceError as problem:
            raise DeviceError(problem.message, _NOT_SO_LITTLE) from problem
        self._errand = errand = Future[None]()
        self._worker.submit_soon(lambda: _run(errand, lambda: self._built.rearrange(cut)))
        if self._closed:
            errand.cancel()
        try:
            errand.result(self._patience_s)
        except (CancelledError, TimeoutError):
            if not errand.cancel():  # it has begun
                return errand.result()
            raise DeviceError(
                "the peer is busy with what cannot be broken off, and keeps the caps it has",
                "try again in a minute",
            ) from None

    def close(self) -> None:
        """Nobody waits any more. From any thread."""
        self._closed = True
        if self._errand is not None:
            self._errand.cancel()


def _run(errand: "Future[None]", act: Callable[[], None]) -> None:
    """On the worker's thread, unless nobody waits for it any more."""
    if not errand.set_running_or_notify_cancel():
        return
    try:
        act()
    except Exception as failure:  # noqa: BLE001 - whoever waits for it hears of it
        errand.set_exception(failure)
    else:
        errand.set_result(None)
