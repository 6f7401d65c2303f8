"""Device memory of a cut, an arrangement and an accumulation: as the engine allocates it."""

from collections.abc import Sequence
from dataclasses import dataclass

from atom.plan.pieces import Piece
from atom.swap.arrangement import Arrangement
from atom.swap.device_slots import GRADIENT_SLOTS

GRADIENT_BYTES = 4


@dataclass(frozen=True)
class DeviceMemory:
    """Bytes at the peak, by what holds them."""

    slot_bytes: int
    """Weight slots that sub-models share."""
    resident_bytes: int
    """Weights that stay."""
    gradient_bytes: int
    """Two float32 slots of the largest sub-model."""
    activation_bytes: int
    """Of the sub-model at work that takes most, its parameters' gradients included, which autograd
    holds in the parameters' precision until they are added to the float32 slot."""
    kept_bytes: int
    """Activations that stay from forward to backward, of all micro-batches."""
    boundary_bytes: int
    """Values between sub-models and the batch's entries, of all micro-batches."""

    @property
    def total_bytes(self) -> int:
        return (
            self.slot_bytes
            + self.resident_bytes
            + self.gradient_bytes
            + self.activation_bytes
            + self.kept_bytes
            + self.boundary_bytes
        )


def device_memory(
    pieces: Sequence[Piece], arrangement: Arrangement, micro_batches: int, element_bytes: int
) -> DeviceMemory:
    """`element_bytes`: of a parameter on the device (2 in 16-bit formats)."""
    swapped = [p.elements for s, p in enumerate(pieces) if s not in arrangement.resident]
    resident = [p.elements for s, p in enumerate(pieces) if s in arrangement.resident]
    working = [
        piece.elements * element_bytes
        + (piece.transient_bytes if s in arrangement.kept else piece.activation_bytes)
        for s, piece in enumerate(pieces)
    ]
    return DeviceMemory(
        slot_bytes=arrangement.slots * max(swapped, default=0) * element_bytes,
        resident_bytes=sum(resident) * element_bytes,
        gradient_bytes=GRADIENT_SLOTS * max(p.elements for p in pieces) * GRADIENT_BYTES,
        activation_bytes=max(working),
        kept_bytes=micro_batches * sum(pieces[s].working_bytes for s in arrangement.kept),
        boundary_bytes=micro_batches * sum(p.out_bytes + p.batch_bytes for p in pieces),
    )
