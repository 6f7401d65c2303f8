"""The caps of device and host memory, changed while the worker trains."""

import threading
from collections.abc import Callable
from typing import Protocol

from atom.base.errors import DeviceError
from atom.config.peer_file import PeerFile
from atom.daemon.fitting.building import Built

PATIENCE_S = 60.0
"""For the pass under way, where it cannot be broken off, and what else the worker is at."""
_NOT_SO_LITTLE = (
    "nothing was changed; allow more, or all that is free: `atom set device.memory= host.memory=`"
)


class Submits(Protocol):
    """The part of `atom.training.replica.worker.Worker` that is needed here."""

    def submit_soon(self, command: Callable[[], None]) -> None: ...


class MemoryCaps:
    """Plans anew on the caller's thread, and rearranges on the worker's. One caller at a time."""

    def __init__(self, built: Built, worker: Submits, patience_s: float = PATIENCE_S) -> None:
        self._built, self._worker, self._patience_s = built, worker, patience_s
        self._errand: _Errand | None = None
        self._closed = False
        self.doing = ""
        """What `change` is at, for who asks meanwhile; empty: nothing."""

    def change(self, peer: PeerFile) -> None:
        """What `peer` allows is in force from the next pass on.

        Raises: DeviceError if the model does not fit it in any way, or if the worker does not come
        to it; ShortageError if other programs have the memory. Then nothing is changed.
        """
        try:
            self._change(peer)
        finally:
            self.doing = ""

    def _change(self, peer: PeerFile) -> None:
        self.doing = "planning how the model is cut"
        try:
            cut = self._built.cutter.cut(peer)
        except DeviceError as problem:
            raise DeviceError(problem.message, _NOT_SO_LITTLE) from problem

        def rearrange() -> None:
            self.doing = "arranging the model's memory anew"
            self._built.rearrange(cut)

        self.doing = "waiting until the pass under way can be left"
        self._errand = errand = _Errand(rearrange)
        self._worker.submit_soon(errand.run)
        if self._closed:
            errand.withdraw()
        if not errand.done(self._patience_s):
            raise DeviceError(
                "the peer is busy with what cannot be broken off, and keeps the caps it has",
                "try again in a minute",
            )

    def close(self) -> None:
        """Nobody waits any more. From any thread."""
        self._closed = True
        if self._errand is not None:
            self._errand.withdraw()


class _Errand:
    """Run by another thread, once, unless it was withdrawn before it was begun."""

    def __init__(self, act: Callable[[], None]) -> None:
        self._act = act
        self._lock = threading.Lock()
        self._begun = self._withdrawn = False
        self._failure: Exception | None = None
        self._over = threading.Event()

    def run(self) -> None:
        with self._lock:
            if self._withdrawn:
                return
            self._begun = True
        try:
            self._act()
        except Exception as failure:  # noqa: BLE001 - whoever waits for it hears of it
            self._failure = failure
        self._over.set()

    def withdraw(self) -> None:
        """It is not begun any more, and whoever waits for it goes on; but not in its middle."""
        with self._lock:
            if not self._begun:
                self._withdrawn = True
                self._over.set()

    def done(self, patience_s: float) -> bool:
        """Waits for it; withdraws it if it has not begun by then. Raises: what it failed with."""
        if not self._over.wait(patience_s):
            self.withdraw()
            self._over.wait()
        if self._failure is not None:
            raise self._failure
        return not self._withdrawn
