"""A cut as numbers: what its sub-models weigh and take, and the memory that all of it needs.

Device memory of a cut, an arrangement and an accumulation is reckoned as the engine allocates it.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

from atom.graph.chain import Chain, Operation, Value
from atom.swap.arrangement import Arrangement
from atom.swap.crossing import Crossing
from atom.swap.device_slots import FLOAT32_BYTES, gradient_slot_bytes
from atom.swap.schedule import Shape


@dataclass(frozen=True)
class Piece:
    """One sub-model. Seconds and bytes are of one micro-batch."""

    parameters: Mapping[str, int]
    """Name in the layout → elements, as a slot holds them."""
    forward_s: float
    backward_s: float
    """Without the recomputed forward."""
    working_bytes: int
    """What its forward keeps for its backward."""
    transient_bytes: int
    """The most that an operation of it takes besides."""
    out_bytes: int = 0
    """Values it makes that later sub-models take."""
    batch_bytes: int = 0
    """Batch entries that no later sub-model takes."""
    crossings: tuple[Crossing, ...] = ()
    """What it makes and later sub-models take, of each micro-batch."""
    shared_bytes: int = 0
    """What it makes for later ones, the same for all micro-batches."""

    @cached_property
    def elements(self) -> int:
        return sum(self.parameters.values())

    @property
    def activation_bytes(self) -> int:
        """On the device while its backward recomputes it, its inputs aside."""
        return self.working_bytes + self.transient_bytes


def pieces_of(chain: Chain, ends: Sequence[int]) -> tuple[Piece, ...]:
    """One piece per end; piece s is operations [ends[s-1], ends[s])."""
    starts = [0, *ends[:-1]]
    made: Counter[int] = Counter()
    batch: Counter[int] = Counter()
    spans = enumerate(zip(starts, ends, strict=True))
    piece_at = [s for s, (start, end) in spans for _ in range(start, end)]
    crossings = [list[Crossing]() for _ in ends]
    shared: Counter[int] = Counter()
    for value in chain.values:
        maker = piece_at[value.made_by] if value.made_by >= 0 else -1
        last = piece_at[value.last_used_by]
        if maker < 0:
            batch[last] += value.size_bytes
        elif last > maker:
            made[maker] += value.size_bytes
            if value.shared:
                shared[maker] += value.size_bytes
            else:
                crossings[maker].append(_crossing(value, maker, piece_at))
    return tuple(
        replace(
            piece_of(chain.operations[start:end]),
            out_bytes=made[s],
            batch_bytes=batch[s],
            crossings=tuple(crossings[s]),
            shared_bytes=shared[s],
        )
        for s, (start, end) in enumerate(zip(starts, ends, strict=True))
    )


def crossings_of(pieces: Sequence[Piece]) -> tuple[Crossing, ...]:
    """All that lies between sub-models, in the order in which it is made."""
    return tuple(crossing for piece in pieces for crossing in piece.crossings)


def _crossing(value: Value, maker: int, piece_at: Sequence[int]) -> Crossing:
    users = {piece_at[user] for user in (*value.used_by, value.last_used_by)}
    gradient_bytes = value.size_bytes if value.has_gradient else 0
    return Crossing(maker, tuple(sorted(users - {maker})), value.size_bytes, gradient_bytes)


def piece_of(operations: Sequence[Operation]) -> Piece:
    """Without what lies between it and others."""
    parameters: dict[str, int] = {}
    for operation in operations:
        parameters.update(operation.parameters)
    return Piece(
        parameters=parameters,
        forward_s=sum(operation.forward_s for operation in operations),
        backward_s=sum(operation.backward_s for operation in operations),
        working_bytes=sum(operation.working_bytes for operation in operations),
        transient_bytes=max((o.transient_bytes for o in operations), default=0),
    )


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
    """Two float32 slots of the largest sub-model, what they are rounded in on their way out, and in
    float32 the sums of what several sub-models use."""
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
        return sum(vars(self).values())


@dataclass
class Reckoning:
    """Of one cut, for many arrangements."""

    pieces: Sequence[Piece]
    limits: Limits
    """A pass has as many micro-batches as they allow."""
    _held: dict[frozenset[int], int] = field(default_factory=dict)

    def takes(self, arrangement: Arrangement) -> bool:
        """Whether device and host have room for it."""
        room = self.limits.device_bytes - self.bytes_at_work(arrangement)
        # What lies between sub-models takes longest to find: only if it can matter.
        if room < 0 or self._boundary_bytes(arrangement) > room:
            return False
        most_bytes = self.limits.host_bytes
        return most_bytes is None or self.host_bytes(arrangement) <= most_bytes

    def bytes_at_work(self, arrangement: Arrangement) -> int:
        """Without what lies between sub-models."""
        return self._memory(arrangement, boundary_bytes=0).total_bytes

    def memory(self, arrangement: Arrangement) -> DeviceMemory:
        return self._memory(arrangement, self._boundary_bytes(arrangement))

    def _memory(self, arrangement: Arrangement, boundary_bytes: int) -> DeviceMemory:
        pieces, element_bytes = self.pieces, self.limits.element_bytes
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
            gradient_bytes=self._carried_bytes
            + gradient_slot_bytes(
                max(p.elements for p in pieces), self.limits.gradient_element_bytes
            ),
            activation_bytes=max(working),
            kept_bytes=self.limits.micro_batches * kept,
            boundary_bytes=boundary_bytes,
        )

    @cached_property
    def _carried_bytes(self) -> int:
        """Of sums that go on from one sub-model to the next: of what several use, in float32."""
        if self.limits.element_bytes != FLOAT32_BYTES:
            return 0
        uses = Counter(name for piece in self.pieces for name in piece.parameters)
        sizes = {name: n for piece in self.pieces for name, n in piece.parameters.items()}
        return sum(sizes[name] for name, count in uses.items() if count > 1) * FLOAT32_BYTES

    def _boundary_bytes(self, arrangement: Arrangement) -> int:
        once = sum(piece.shared_bytes for piece in self.pieces)
        batch = self.limits.micro_batches * sum(piece.batch_bytes for piece in self.pieces)
        shape = self.shape(arrangement)
        if shape.moving not in self._held:
            self._held[shape.moving] = shape.held_bytes
        return once + batch + self._held[shape.moving]

    def host_bytes(self, arrangement: Arrangement) -> int:
        """Of values that wait on the host."""
        return self.shape(arrangement).host_bytes

    def shape(self, arrangement: Arrangement) -> Shape:
        count = len(self.pieces)
        return Shape(count, self.limits.micro_batches, arrangement, self._crossings)

    @cached_property
    def _crossings(self) -> tuple[Crossing, ...]:
        return crossings_of(self.pieces)
