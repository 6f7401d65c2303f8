"""Holds the owner's wishes against what is seen of the machine, every few seconds."""

import math
import threading
import time
from collections.abc import Callable
from datetime import datetime

from atom.base.clock import Clock
from atom.config.peer_file import Schedule
from atom.daemon.owner.battery import on_battery
from atom.daemon.owner.gpu import Gpu, Neighbours
from atom.daemon.owner.machine_use import MachineUse
from atom.daemon.owner.permit import Observations, may_work

LOOK_S = 2.0


class Observer:
    """Looks at no more than the wishes ask for. From one thread."""

    def __init__(self, gpu: Gpu, clock: Clock, neighbours: Neighbours = lambda: ()) -> None:
        self._gpu, self._clock, self._neighbours = gpu, clock, neighbours
        self._gpu_used_at_s, self._gpu_user = -math.inf, ""
        self._use: MachineUse | None = None

    def look(self, wishes: Schedule) -> Observations:
        wants_idle = wishes.idle_for_s is not None
        self._use = (self._use or MachineUse(self._neighbours)) if wants_idle else None
        if wishes.pause_for_gpu_programs and (user := self._gpu.other_user()):
            self._gpu_used_at_s, self._gpu_user = self._clock.now(), user
        return Observations(
            on_battery=wishes.pause_on_battery and on_battery(),
            idle_s=self._use.idle_s() if self._use is not None else math.inf,
            gpu_idle_s=self._clock.now() - self._gpu_used_at_s,
            gpu_user=self._gpu_user,
        )


def wall_clock() -> datetime:
    """What the clock on the wall shows, without a time zone; of the zone as it is set now."""
    time.tzset()
    return datetime.now()  # naive on purpose: see `atom.config.hours.next_opening`


class Steward:
    """A thread that looks; `told` hears why the peer is to stand still, empty: it is not."""

    def __init__(
        self,
        wishes: Schedule,
        look: Callable[[Schedule], Observations],
        told: Callable[[str], None],
        failed: Callable[[BaseException], None],
        wall: Callable[[], datetime] = wall_clock,
    ) -> None:
        self._wishes, self._see, self._told, self._wall = wishes, look, told, wall
        self._failed = failed
        self._lock = threading.Lock()
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._run, name="steward", daemon=True)

    def start(self) -> None:
        """Looks for the first time before it returns."""
        self.look()
        self._thread.start()

    def wish(self, wishes: Schedule) -> None:
        """Holds from now on. From any thread."""
        self._wishes = wishes
        self.look()

    def look(self) -> None:
        with self._lock:
            now, wishes = self._wall(), self._wishes
            refusal = may_work(now, wishes, self._see(wishes))
            self._told("" if refusal is None else refusal.text(now))

    def close(self) -> None:
        self._closing.set()
        if self._thread.is_alive():
            self._thread.join()

    def _run(self) -> None:
        try:
            while not self._closing.wait(LOOK_S):
                self.look()
        except BaseException as failure:  # noqa: BLE001 - the supervisor: the daemon decides
            self._failed(failure)
