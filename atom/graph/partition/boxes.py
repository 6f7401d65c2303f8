"""Ranges of what the largest and the hungriest sub-model of a partition ask for."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from atom.graph.partition.figures import Figures
from atom.graph.partition.spans import Spans


@dataclass(frozen=True)
class Box:
    """Ranges of max P and max A, as ranks among the values that spans have."""

    low_elements: int
    high_elements: int
    low_activation: int
    high_activation: int

    def split(self, elements: int, activation: int, by_elements: bool) -> "tuple[Box, Box]":
        """Halves the part of a range that lies between its low and a plan's rank."""
        if by_elements:
            middle = _between(self.low_elements, elements)
            below = Box(self.low_elements, middle, self.low_activation, self.high_activation)
            above = Box(middle + 1, self.high_elements, self.low_activation, self.high_activation)
            return below, above
        middle = _between(self.low_activation, activation)
        below = Box(self.low_elements, self.high_elements, self.low_activation, middle)
        above = Box(self.low_elements, self.high_elements, middle + 1, self.high_activation)
        return below, above


def _between(low: int, rank: int) -> int:
    """Nearer to the plan: it tends to be as large as it should."""
    return low + 7 * (rank - 1 - low) // 8


class Ranks:
    """The distinct values of P and of A among spans, ascending."""

    def __init__(self, spans: Spans) -> None:
        self.elements = np.unique(spans.elements)
        self.activation_bytes = np.unique(spans.activation_bytes)
        alone = [spans.beginning_at(begin).start for begin in range(spans.count)]
        self.root = Box(
            self.rank_elements(int(spans.elements[alone].max())),
            len(self.elements) - 1,
            self.rank_activation(int(spans.activation_bytes[alone].max())),
            len(self.activation_bytes) - 1,
        )

    def rank_elements(self, elements: int) -> int:
        return int(np.searchsorted(self.elements, elements))

    def rank_activation(self, activation_bytes: int) -> int:
        return int(np.searchsorted(self.activation_bytes, activation_bytes))

    def lows(self, box: Box) -> tuple[int, int]:
        """Elements and activation bytes: the least that max P and max A are."""
        elements = int(self.elements[box.low_elements])
        return elements, int(self.activation_bytes[box.low_activation])

    def lows_bytes(self, figures: Figures, box: Box) -> int:
        """What slots and activations take at least."""
        elements, activation_bytes = self.lows(box)
        return figures.held_bytes * elements + activation_bytes

    def room_units(self, figures: Figures, rank_elements: int, rank_activation: int) -> int:
        """What may be kept between sub-models beside such slots and activations."""
        slots = figures.held_bytes * int(self.elements[rank_elements])
        left = figures.budget_bytes - slots - int(self.activation_bytes[rank_activation])
        return min(left // figures.boundary_bytes, 1 << figures.cut_bits)

    def allowed(self, spans: Spans, box: Box) -> NDArray[np.bool_]:
        return np.asarray(
            (spans.elements <= self.elements[box.high_elements])
            & (spans.activation_bytes <= self.activation_bytes[box.high_activation])
        )

    def children(
        self, figures: Figures, box: Box, elements: int, activation_bytes: int
    ) -> tuple[Box, Box] | None:
        """Parts of a box, split where a plan of these extents lies furthest above its lows; None
        if it does not."""
        p, a = self.rank_elements(elements), self.rank_activation(activation_bytes)
        slots = figures.held_bytes * (elements - int(self.elements[box.low_elements]))
        activation = activation_bytes - int(self.activation_bytes[box.low_activation])
        if slots <= 0 and activation <= 0:
            return None
        return box.split(p, a, by_elements=slots >= activation)
