"""Device memory of a cut, an arrangement and an accumulation: as the engine allocates it."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property

from atom.placement.pieces import Piece, crossings_of
from atom.swap.arrangement import Arrangement
from atom.swap.crossing import Crossing, held_bytes, host_bytes
from atom.swap.device_slots import FLOAT32_BYTES, gradient_slot_bytes
from atom.swap.schedule import Shape


@dataclass(frozen=True)
class Limits:
    """What the device and the run allow."""

    device_bytes: int
    element_bytes: int
    """Of a parameter on the device: 2 in 16-bit formats."""
    micro_batches: int
    """The most that one pass may accumulate."""
    host_bytes: int | None = None
    """Host memory for values between sub-models. None: as much as it takes."""
    gradient_element_bytes: int = FLOAT32_BYTES
    """In which gradients leave."""


@dataclass(frozen=True)
class DeviceMemory:
    """Bytes at the peak, by what holds them."""

    slot_bytes: int
    """Weight slots that sub-models share."""
    resident_bytes: int
    """Weights that stay."""
    gradient_bytes: int
    """Two float32 slots of the largest sub-model, and what they are rounded in on their way out."""
    activation_bytes: int
    """Of the sub-model at work that takes most, its parameters' gradients included, which autograd
    holds in the parameters' precision until they are added to the float32 slot."""
    kept_bytes: int
    """Activations that stay from forward to backward, of all micro-batches."""
    boundary_bytes: int
    """Values between sub-models, their gradients, and the batch's entries, of all micro-batches.
    Of those that wait on the host, what is here at a time, and the ring."""

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


@dataclass
class Reckoning:
    """Of one cut, for many arrangements."""

    pieces: Sequence[Piece]
    micro_batches: int
    element_bytes: int
    gradient_element_bytes: int = FLOAT32_BYTES
    """In which they leave."""
    _held: dict[frozenset[int], int] = field(default_factory=dict)

    @classmethod
    def of(cls, pieces: Sequence[Piece], limits: Limits) -> "Reckoning":
        each = limits.element_bytes, limits.gradient_element_bytes
        return cls(pieces, limits.micro_batches, *each)

    def takes(self, arrangement: Arrangement, limits: Limits) -> bool:
        """Whether device and host have room for it."""
        if not self.fits(arrangement, limits.device_bytes):
            return False
        return limits.host_bytes is None or self.host_bytes(arrangement) <= limits.host_bytes

    def fits(self, arrangement: Arrangement, most_bytes: int) -> bool:
        """Asks for what lies between sub-models only if it can matter: that takes longest."""
        beside = self.bytes_at_work(arrangement)
        return beside <= most_bytes and beside + self._boundary_bytes(arrangement) <= most_bytes

    def bytes_at_work(self, arrangement: Arrangement) -> int:
        """Without what lies between sub-models."""
        return self._memory(arrangement, boundary_bytes=0).total_bytes

    def memory(self, arrangement: Arrangement) -> DeviceMemory:
        return self._memory(arrangement, self._boundary_bytes(arrangement))

    def _memory(self, arrangement: Arrangement, boundary_bytes: int) -> DeviceMemory:
        pieces, element_bytes = self.pieces, self.element_bytes
        swapped = [p.elements for s, p in enumerate(pieces) if s not in arrangement.resident]
        resident = [p.elements for s, p in enumerate(pieces) if s in arrangement.resident]
        working = [
            piece.elements * element_bytes
            + (piece.transient_bytes if s in arrangement.kept else piece.activation_bytes)
            for s, piece in enumerate(pieces)
        ]
        kept = sum(pieces[s].working_bytes for s in arrangement.kept)
        return DeviceMemory(
            slot_bytes=arrangement.slots * max(swapped, default=0) * element_bytes,
            resident_bytes=sum(resident) * element_bytes,
            gradient_bytes=gradient_slot_bytes(
                max(p.elements for p in pieces), self.gradient_element_bytes
            ),
            activation_bytes=max(working),
            kept_bytes=self.micro_batches * kept,
            boundary_bytes=boundary_bytes,
        )

    def _boundary_bytes(self, arrangement: Arrangement) -> int:
        once = sum(piece.shared_bytes for piece in self.pieces)
        batch = self.micro_batches * sum(piece.batch_bytes for piece in self.pieces)
        return once + batch + self._held_bytes(self.shape(arrangement))

    def _held_bytes(self, shape: Shape) -> int:
        if shape.moving not in self._held:
            self._held[shape.moving] = held_bytes(
                shape.crossings, shape.moving, shape.sub_models, shape.micro_batches
            )
        return self._held[shape.moving]

    def host_bytes(self, arrangement: Arrangement) -> int:
        """Of values that wait on the host."""
        shape = self.shape(arrangement)
        return host_bytes(shape.crossings, shape.training_stops, self.micro_batches)

    def shape(self, arrangement: Arrangement) -> Shape:
        count = len(self.pieces)
        return Shape(count, self.micro_batches, arrangement, self._crossings)

    @cached_property
    def _crossings(self) -> tuple[Crossing, ...]:
        return crossings_of(self.pieces)
