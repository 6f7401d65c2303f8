"""The reference: recursive exhaustive search over every legal cut, after the paper's Algorithm 1.

The first sub-model grows operation by operation for as long as it fits the device; for each of its
sizes the rest is searched in the same way, and the best complete partition is kept. The paper
refuses a partition in which computing does not cover a load; here what is not covered is charged
as the time it takes, so that a slow link still has a best answer. Exponential in operations: for
graphs of some twenty legal cuts.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from atom.graph.partition.figures import Figures


@dataclass(frozen=True)
class _Piece:
    """A sub-model: ticks of computing, loading and sending gradients; bytes it asks for."""

    forward: int
    backward: int
    load: int
    gradients: int
    elements: int
    activation_bytes: int
    out_units: int


def search(figures: Figures) -> tuple[int, ...] | None:
    """Positions at which the sub-models of a best partition end, or None if none fits."""
    best: tuple[int, tuple[int, ...]] | None = None
    for positions, pieces in _partitions(figures, 0, (), ()):
        price = _price(figures, pieces)
        if best is None or (price, positions) < best:
            best = (price, positions)
    return best[1] if best else None


def _partitions(
    figures: Figures, begin: int, positions: tuple[int, ...], pieces: tuple[_Piece, ...]
) -> Iterator[tuple[tuple[int, ...], tuple[_Piece, ...]]]:
    """Every completion of `pieces` that fits."""
    if begin == len(figures.atoms):
        yield positions, pieces
        return
    for end in range(begin + 1, len(figures.atoms) + 1):
        longer = (*pieces, _piece(figures, begin, end))
        if _fits(figures, longer):
            yield from _partitions(figures, end, (*positions, end), longer)


def _piece(figures: Figures, begin: int, end: int) -> _Piece:
    atoms = figures.atoms[begin:end]
    held: dict[str, int] = {}
    for atom in atoms:
        held.update(atom.parameters)
    elements = sum(held.values())
    working = sum(atom.working_bytes for atom in atoms)
    return _Piece(
        forward=sum(atom.forward_ticks for atom in atoms),
        backward=sum(atom.backward_ticks for atom in atoms),
        load=round(elements * figures.load_ticks),
        gradients=round(elements * figures.gradient_ticks),
        elements=elements,
        activation_bytes=working + max(atom.transient_bytes for atom in atoms),
        out_units=sum(
            v.size_bytes for v in figures.values if begin <= v.made_by < end <= v.last_used_by
        ),
    )


def _fits(figures: Figures, pieces: tuple[_Piece, ...]) -> bool:
    slots = figures.held_bytes * max(piece.elements for piece in pieces)
    activations = max(piece.activation_bytes for piece in pieces)
    boundary = figures.boundary_bytes * sum(piece.out_units for piece in pieces)
    return slots + activations + boundary <= figures.budget_bytes


def _price(figures: Figures, pieces: tuple[_Piece, ...]) -> int:
    last = len(pieces) - 1
    again = [piece.forward + piece.backward for piece in pieces]
    ticks = pieces[0].load + again[last] + pieces[0].gradients
    for s in range(last):
        here, following = pieces[s], pieces[s + 1]
        ticks += here.forward + again[s]
        ticks += max(0, following.load - here.forward)
        ticks += max(0, following.gradients - again[s])
        if s <= last - figures.slots:
            ticks += max(0, here.load - again[s + 1])
    return (ticks << figures.cut_bits) + sum(piece.out_units for piece in pieces)
