"""The optimizer's step on the device: pieces stream in, are updated, and stream back.

Three places take turns: one piece is on its way in, one is worked on, one is on its way back. A
piece is taken back only when its work is known to be done and sound. Until then it is on the host
as it was, and the host can take it over, whatever became of the device. While it is being written
back, the result is still on the device: a copy that fails is repeated, once. Only what fails again
is lost.
"""

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import astuple, dataclass
from functools import cached_property

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
        memory = device.slot_memory
        self._buckets = [Bucket.allocate(elements, precision, form, memory) for _ in range(PLACES)]
        self._adamw = DeviceAdamW(elements, form, memory)
        self._bad = memory(PLACES, torch.bool)
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

    def bring(self, job: Job, piece: Piece, place: int) -> None:
        """Starts the piece's way there, and its update."""
        bucket, elements = self._buckets[place], piece.stop - piece.start
        gradient = job.arenas[GRADIENT][_span(piece)]
        given = bucket.gradient(gradient.dtype, elements)
        pairs = [(bucket.numbers, job.numbers[piece.decays]), (given, gradient)]
        for name in bucket.read:
            pairs.append((bucket.arenas[name][:elements], job.arenas[name][_span(piece)]))
        noise = piece.start & 0xFFFFFFFF, key_of(job.noise_key, piece.start)
        bad, bad_on_host = self._bad[place], self._bad_on_host[place]

        def work() -> None:
            self._adamw.update(bucket, given, job.moves_far, noise, bad)
            bad_on_host.copy_(bad, non_blocking=True)

        self._bench.bring(place, pairs, work)

    def is_sound(self, place: int) -> bool:
        """Waits for the work there; is the result to be used?"""
        self._bench.wait_worked(place)
        return not bool(self._bad_on_host[place])

    def take_back(self, job: Job, piece: Piece, place: int) -> None:
        """Starts the result's way to the host."""
        bucket, elements = self._buckets[place], piece.stop - piece.start
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

    def take(self, turn: Callable[[], int | None]) -> None:
        """Nothing is under way any more when it returns, or raises."""
        try:
            self._take(turn)
        finally:  # or a step that is repeated would go over what arrives late
            while self._leaving:
                self._arrive()
            if self._brought and not self._conveyor.broken:
                self._conveyor.rest()

    def _take(self, turn: Callable[[], int | None]) -> None:
        while (index := turn()) is not None:
            if self._conveyor.broken:
                self._leave(index)
                continue
            self._bring(index)
            if len(self._brought) > 1:
                self._take_back()
            if len(self._leaving) > 1:
                self._arrive()
        while self._brought:
            self._take_back()

    def _bring(self, index: int) -> None:
        place = self._free.popleft()
        self._brought.append((index, place))
        try:
            self._conveyor.bring(self._job, self._job.pieces[index], place)
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
            self._conveyor.take_back(self._job, self._job.pieces[index], place)
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
            self._conveyor.take_back(self._job, piece, place)
            self._conveyor.wait_back(piece, place)
        except Exception as again:  # noqa: BLE001 - it is raised, as what it means
            try:
                self._conveyor.break_off(_why(failure))
            finally:  # whoever could not be told: the step must not be repeated
                raise PiecesLost(f"the device broke off while it wrote: {_why(again)}") from again
        self._end(index, place)
        self._break_off(failure)

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
