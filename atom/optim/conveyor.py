"""The optimizer's step on the device: pieces stream in, are updated, and stream back.

Three places take turns: one piece is on its way in, one is worked on, one is on its way back. A
piece is taken back only when its work is known to be done and sound. Until then it is on the host
as it was, and the host can take it over, whatever became of the device. While it is being written
back, the result is still on the device: a copy that fails is repeated, once. Only what fails again
is lost.
"""

import threading
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import astuple, dataclass
from functools import cached_property, partial

import torch
from torch import Tensor

from atom.optim.bucket import GRADIENT, Bucket, Scalars, bucket_bytes
from atom.optim.device_adamw import DeviceAdamW, scratch_bytes
from atom.optim.noise import key_of
from atom.optim.step import Piece, PiecesLost
from atom.swap.device import Device
from atom.swap.state_form import StateForm

PLACES = 3
_FLAGS = 2**16
"""More than there are places: smaller host memory is not registered with the driver."""

Told = Callable[[str], None]
"""Takes why the device updates nothing from now on; from any thread, once."""


@dataclass(frozen=True)
class Job:
    """One step, as a conveyor needs to know it."""

    pieces: Sequence[Piece]
    arenas: Mapping[str, Tensor]
    """On the host, whole, by the names of a bucket's. All but the gradient are changed."""
    decaying: Scalars
    staying: Scalars
    """The same for pieces that do not decay."""
    moves_far: bool
    """β₁ is a half or less."""
    noise_key: int

    @cached_property
    def numbers(self) -> Mapping[bool, Tensor]:
        """The scalars for pieces that decay, and that do not: [8] float32 each, on the host."""
        both = {True: self.decaying, False: self.staying}
        return {decays: torch.tensor(astuple(s), dtype=torch.float32) for decays, s in both.items()}


@dataclass(frozen=True)
class OnDevice:
    """What a conveyor has there."""

    buckets: Sequence[Bucket]
    adamw: DeviceAdamW
    bad: Tensor
    """[places] bool: verdicts of the updates."""

    @classmethod
    def allocate(
        cls, device: Device, elements: int, precision: torch.dtype, form: StateForm
    ) -> "OnDevice":
        memory = device.slot_memory
        buckets = [Bucket.allocate(elements, precision, form, memory) for _ in range(PLACES)]
        return cls(buckets, DeviceAdamW(elements, form, memory), memory(PLACES, torch.bool))


class Conveyor:
    """Buckets for pieces of up to `elements`, and the way there and back. One step at a time."""

    def __init__(
        self, device: Device, elements: int, precision: torch.dtype, form: StateForm, told: Told
    ) -> None:
        """Raises: what the device raises when it has too little memory."""
        self.elements = elements
        self.broken = False
        """The device has failed here and is not asked again."""
        self.updated_elements = 0
        """By the device, since the beginning."""
        self._lay_out = partial(OnDevice.allocate, device, elements, precision, form)
        self._there: OnDevice | None = self._lay_out()
        self._lock = threading.Lock()
        self._empty = threading.Event()
        self._empty.set()
        self._bad_on_host = device.host_memory(_FLAGS, torch.bool)
        self._bench = device.workbench()
        self._told = told

    def work(
        self,
        job: Job,
        turn: Callable[[], int | None],
        done: Callable[[int], None],
        leave: Callable[[int], None],
    ) -> None:
        """See `Beside.work`."""
        _Run(self, job, done, leave).take(turn)

    def give_back(self) -> None:
        """The device's memory is free, and the host takes over what is left of a step under way.
        Until `take_again`."""
        with self._lock:
            there, self._there = self._there, None
        self._empty.wait()
        del there

    def take_again(self) -> None:
        """Raises: what the device raises when it has too little memory."""
        if self._there is None and not self.broken:
            self._there = self._lay_out()

    def enter(self) -> "OnDevice | None":
        """To be called before each piece that is brought; None: the host is to update it."""
        with self._lock:
            if self._there is not None and not self.broken:
                self._empty.clear()
                return self._there
            return None

    def vacate(self) -> None:
        """Nothing of a step is on the device."""
        self._empty.set()

    def break_off(self, why: str) -> None:
        """The device updates nothing any more."""
        if not self.broken:
            self.broken = True
            self._told(why)
        try:
            self._bench.rest()
        except Exception:  # noqa: BLE001 - a consequence of what has been told
            return

    # --- one piece at one place: for the run alone

    def bring(self, there: OnDevice, job: Job, piece: Piece, place: int) -> None:
        """Starts the piece's way there, and its update."""
        bucket, elements = there.buckets[place], piece.stop - piece.start
        gradient = job.arenas[GRADIENT][_span(piece)]
        given = bucket.gradient(gradient.dtype, elements)
        pairs = [(bucket.numbers, job.numbers[piece.decays]), (given, gradient)]
        for name in bucket.read:
            pairs.append((bucket.arenas[name][:elements], job.arenas[name][_span(piece)]))
        noise = piece.start & 0xFFFFFFFF, key_of(job.noise_key, piece.start)
        bad, bad_on_host = there.bad[place], self._bad_on_host[place]

        def work() -> None:
            there.adamw.update(bucket, given, job.moves_far, noise, bad)
            bad_on_host.copy_(bad, non_blocking=True)

        self._bench.bring(place, pairs, work)

    def is_sound(self, place: int) -> bool:
        """Waits for the work there; is the result to be used?"""
        self._bench.wait_worked(place)
        return not bool(self._bad_on_host[place])

    def take_back(self, there: OnDevice, job: Job, piece: Piece, place: int) -> None:
        """Starts the result's way to the host."""
        bucket, elements = there.buckets[place], piece.stop - piece.start
        pairs = [
            (job.arenas[name][_span(piece)], bucket.arenas[name][:elements])
            for name in bucket.written
        ]
        self._bench.take_back(place, pairs)

    def wait_back(self, piece: Piece, place: int) -> None:
        """Returns when the host has it."""
        self._bench.wait_back(place)
        self.updated_elements += piece.stop - piece.start

    def rest(self) -> None:
        self._bench.rest()


class _Run:
    """One step's use of a conveyor."""

    def __init__(
        self,
        conveyor: Conveyor,
        job: Job,
        done: Callable[[int], None],
        leave: Callable[[int], None],
    ) -> None:
        self._conveyor, self._job, self._done, self._leave = conveyor, job, done, leave
        self._free = deque(range(PLACES))
        self._brought = deque[tuple[int, int]]()
        """(index, place): on the host as they were before."""
        self._leaving = deque[tuple[int, int]]()
        self._there: OnDevice | None = None

    def take(self, turn: Callable[[], int | None]) -> None:
        """Nothing is under way any more when it returns, or raises."""
        try:
            self._take(turn)
        finally:  # or a step that is repeated would go over what arrives late
            try:
                while self._leaving:
                    self._arrive()
                if self._brought and not self._conveyor.broken:
                    self._conveyor.rest()
            finally:
                self._vacate()

    def _take(self, turn: Callable[[], int | None]) -> None:
        while (index := turn()) is not None:
            there = self._conveyor.enter()
            if there is None:
                self._come_home()
                self._leave(index)
                continue
            self._there = there
            self._bring(there, index)
            if len(self._brought) > 1:
                self._take_back()
            if len(self._leaving) > 1:
                self._arrive()
        while self._brought:
            self._take_back()

    def _come_home(self) -> None:
        """Nothing is on the device any more."""
        while self._brought:
            self._take_back()
        while self._leaving:
            self._arrive()
        self._vacate()

    def _vacate(self) -> None:
        self._there = None
        self._conveyor.vacate()

    def _bring(self, there: OnDevice, index: int) -> None:
        place = self._free.popleft()
        self._brought.append((index, place))
        try:
            self._conveyor.bring(there, self._job, self._job.pieces[index], place)
        except Exception as failure:  # noqa: BLE001 - whatever it is, the host can do it
            self._break_off(failure)

    def _take_back(self) -> None:
        index, place = self._brought[0]
        try:
            sound = self._conveyor.is_sound(place)
        except Exception as failure:  # noqa: BLE001 - as above
            self._break_off(failure)
            return
        self._brought.popleft()
        if not sound:
            self._free.append(place)
            self._leave(index)
            return
        self._leaving.append((index, place))
        try:
            self._conveyor.take_back(self._on_device, self._job, self._job.pieces[index], place)
        except Exception as failure:  # noqa: BLE001 - the result is still there
            self._leaving.pop()
            self._repeat(index, place, failure)

    def _arrive(self) -> None:
        index, place = self._leaving.popleft()
        try:
            self._conveyor.wait_back(self._job.pieces[index], place)
        except Exception as failure:  # noqa: BLE001 - the result is still there
            self._repeat(index, place, failure)
            return
        self._end(index, place)

    def _repeat(self, index: int, place: int, failure: Exception) -> None:
        """A piece on the host is half old, half new. Raises: PiecesLost."""
        piece = self._job.pieces[index]
        try:
            self._conveyor.rest()
            self._conveyor.take_back(self._on_device, self._job, piece, place)
            self._conveyor.wait_back(piece, place)
        except Exception as again:  # noqa: BLE001 - it is raised, as what it means
            try:
                self._conveyor.break_off(_why(failure))
            finally:  # whoever could not be told: the step must not be repeated
                raise PiecesLost(f"the device broke off while it wrote: {_why(again)}") from again
        self._end(index, place)
        self._break_off(failure)

    @property
    def _on_device(self) -> OnDevice:
        assert self._there is not None, "there is a piece of ours"
        return self._there

    def _end(self, index: int, place: int) -> None:
        self._free.append(place)
        self._done(index)

    def _break_off(self, failure: Exception) -> None:
        """Leaves to the host what the device has not begun to write back."""
        self._conveyor.break_off(_why(failure))
        while self._brought:
            index, place = self._brought.popleft()
            self._free.append(place)
            self._leave(index)


def conveyor_bytes(elements: int, precision: torch.dtype, form: StateForm) -> int:
    """What a `Conveyor` takes on the device, but for a few bytes."""
    return PLACES * bucket_bytes(elements, precision, form) + scratch_bytes(elements)


def _span(piece: Piece) -> slice:
    return slice(piece.start, piece.stop)


def _why(failure: Exception) -> str:
    return str(failure).partition("\n")[0] or type(failure).__name__
