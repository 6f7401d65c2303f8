"""The device's share of the optimizer's step: which pieces it updates, beside the host."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from atom.optim.conveyor import Conveyor, Job
from atom.optim.step import Piece

LEAST_ELEMENTS = 2**16
"""A smaller piece is not worth its way: the host does it."""


@dataclass(frozen=True)
class DeviceShare:
    """For all steps of one store. Bits do not depend on it."""

    conveyor: Conveyor
    share: float
    """Of the parameters, from 0 to 1."""
    least_elements: int = LEAST_ELEMENTS

    def of(self, job: Job) -> "Streamed | None":
        """What the device does of a step. None: nothing."""
        if self.conveyor.broken:
            return None
        most = self.conveyor.elements
        return Streamed(job, self, streamed(job.pieces, self.share, self.least_elements, most))


@dataclass(frozen=True)
class Streamed:
    """Of one step; see `atom.optim.step.Beside`."""

    job: Job
    share: DeviceShare
    indices: Sequence[int]

    def work(
        self,
        turn: Callable[[], int | None],
        done: Callable[[int], None],
        leave: Callable[[int], None],
    ) -> None:
        self.share.conveyor.work(self.job, turn, done, leave)


def streamed(
    pieces: Sequence[Piece], share: float, least_elements: int, most_elements: int
) -> list[int]:
    """Which of the pieces are meant for the device: evenly among the others, so that both sides
    come to what is needed first, first. Pure."""
    owed, chosen = 0.0, list[int]()
    for index, piece in enumerate(pieces):
        elements = piece.stop - piece.start
        owed += share * elements
        fits = least_elements <= elements <= most_elements and not _crosses(piece)
        if fits and 2 * owed >= elements:
            chosen.append(index)
            owed -= elements
    return chosen


def _crosses(piece: Piece) -> bool:
    """Its elements' numbers differ in their upper 32 bits, and so do their keys of noise."""
    return piece.start >> 32 != piece.stop - 1 >> 32
