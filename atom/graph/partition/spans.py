"""Every sub-model that could fit: its figures, in flat arrays.

A *span* (i, j) is atoms [i, j). A longer span asks for no less of anything, so those that fit begin
at i and end at i+1 … `stop[i]`, and those that end at j begin at `first[j]` … j-1. Figures of span
(i, j) stand at index `base[i] + j`.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from atom.graph.partition.figures import Figures

Whole = NDArray[np.int64]


@dataclass(frozen=True)
class Spans:
    count: int
    """Atoms."""
    first: Whole
    stop: Whole
    base: Whole
    forward: Whole
    """Prefix sums over atoms, ticks."""
    again: Whole
    """Prefix sums of forward and backward."""
    compute: Whole
    """Ticks, unless the span is the last sub-model: forward, and all again for the backward."""
    elements: Whole
    activation_bytes: Whole
    out_units: Whole
    load: Whole
    """Ticks."""
    gradients: Whole

    def need_bytes(self, figures: Figures) -> Whole:
        """What slots and activations need where a span is the largest and the hungriest."""
        return np.asarray(figures.held_bytes * self.elements + self.activation_bytes)

    def ending_at(self, end: int) -> Whole:
        """Indices of the spans (first[end], end) … (end-1, end)."""
        return self.base[self.first[end] : end] + end

    def beginning_at(self, begin: int) -> slice:
        """Indices of the spans (begin, begin+1) … (begin, stop[begin])."""
        start = int(self.base[begin])
        return slice(start + begin + 1, start + int(self.stop[begin]) + 1)


@dataclass(frozen=True)
class _Column:
    """The spans that end at one position, by ascending begin."""

    elements: Whole
    activation_bytes: Whole
    out_units: Whole


def spans_of(figures: Figures) -> Spans | None:
    """None if some atom does not fit even alone."""
    count = len(figures.atoms)
    columns = _columns(figures)
    if columns is None:
        return None
    first = np.zeros(count + 1, dtype=np.int64)
    first[1:] = [end - len(c.elements) for end, c in enumerate(columns, start=1)]
    stop = np.searchsorted(first, np.arange(count), side="right") - 1
    width = stop - np.arange(count)
    base = np.concatenate([[0], np.cumsum(width)[:-1]]) - np.arange(count) - 1
    places = np.concatenate(
        [base[first[end] : end] + end for end in range(1, count + 1)], dtype=np.int64
    )
    elements = _placed(places, [c.elements for c in columns])
    forward = _prefix([a.forward_ticks for a in figures.atoms])
    again = _prefix([a.forward_ticks + a.backward_ticks for a in figures.atoms])
    both = forward + again
    compute = [both[end] - both[first[end] : end] for end in range(1, count + 1)]
    return Spans(
        count=count,
        first=first,
        stop=stop,
        base=base,
        forward=forward,
        again=again,
        compute=_placed(places, compute),
        elements=elements,
        activation_bytes=_placed(places, [c.activation_bytes for c in columns]),
        out_units=_placed(places, [c.out_units for c in columns]),
        load=np.rint(elements * figures.load_ticks).astype(np.int64),
        gradients=np.rint(elements * figures.gradient_ticks).astype(np.int64),
    )


def _prefix(ticks: list[int]) -> Whole:
    return np.concatenate([[0], np.cumsum(np.array(ticks, dtype=np.int64))])


def _placed(places: Whole, columns: list[Whole]) -> Whole:
    flat = np.empty(len(places), dtype=np.int64)
    flat[places] = np.concatenate(columns)
    return flat


def _columns(figures: Figures) -> list[_Column] | None:
    """Per end 1 … count the spans that fit by themselves, or None if one of one atom does not.

    Sweeping the end to the right, `new_elements[i]` holds the elements of atom i that no later
    atom of the span uses (a tied parameter counts where it is used last), `live[i]` the units that
    atom i made and that are used at or after the end.
    """
    count = len(figures.atoms)
    new_elements, live = np.zeros(count, dtype=np.int64), np.zeros(count, dtype=np.int64)
    working = np.array([a.working_bytes for a in figures.atoms], dtype=np.int64)
    transient = np.array([a.transient_bytes for a in figures.atoms], dtype=np.int64)
    last_use: dict[str, int] = {}
    ended = _units_ending(figures)
    made = _units_made(figures)
    columns, first = list[_Column](), 0
    for end in range(1, count + 1):
        atom = end - 1
        for name, elements in figures.atoms[atom].parameters.items():
            if name in last_use:
                new_elements[last_use[name]] -= elements
            last_use[name] = atom
            new_elements[atom] += elements
        for units, maker in ended[atom]:
            live[maker] -= units
        live[atom] += made[atom]
        elements_ = _sum_to_the_end(new_elements[first:end])
        activation = _sum_to_the_end(working[first:end])
        activation += np.maximum.accumulate(transient[first:end][::-1])[::-1]
        need = figures.held_bytes * elements_ + activation
        too_long = int(np.count_nonzero(need > figures.budget_bytes))
        if too_long == end - first:
            return None
        out = _sum_to_the_end(live[first:end])
        first += too_long
        columns.append(_Column(elements_[too_long:], activation[too_long:], out[too_long:]))
    return columns


def _sum_to_the_end(numbers: Whole) -> Whole:
    return np.cumsum(numbers[::-1])[::-1]


def _units_ending(figures: Figures) -> list[list[tuple[int, int]]]:
    ended: list[list[tuple[int, int]]] = [[] for _ in figures.atoms]
    for value in figures.values:
        ended[value.last_used_by].append((value.size_bytes, value.made_by))
    return ended


def _units_made(figures: Figures) -> list[int]:
    made = [0] * len(figures.atoms)
    for value in figures.values:
        made[value.made_by] += value.size_bytes
    return made
