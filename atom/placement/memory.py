"""A cut as numbers: what its sub-models weigh and take, and the memory that all of it needs.

Device memory of a cut and an arrangement is reckoned here alone, as the engine allocates it.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

from atom.graph.chain import ADDED, Chain, Machine, Operation, Value
from atom.graph.matrix_parts import Parts
from atom.swap.arrangement import Arrangement, device_of
from atom.swap.crossing import Crossing, held_bytes
from atom.swap.device_slots import FLOAT32_BYTES, gradient_slot_bytes
from atom.swap.schedule import Shape
from atom.swap.timeline import Durations, Shares

PLANNED_SHARE = 0.9
"""Of what PyTorch may take of a GPU, that a plan fills. The rest is for the libraries' workspaces
and for gaps between what is allocated."""


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
    """What it takes besides at its peak."""
    batch_bytes: int = 0
    """Batch entries that no later sub-model takes."""
    crossings: tuple[Crossing, ...] = ()
    """What it makes and later sub-models take, of each micro-batch."""
    shared_bytes: int = 0
    """What it makes for later ones, the same for all micro-batches."""
    frozen: frozenset[str] = frozenset()
    """Of its parameters, those without gradient."""

    @cached_property
    def elements(self) -> int:
        return sum(self.parameters.values())

    @cached_property
    def gradient_elements(self) -> int:
        return sum(n for name, n in self.parameters.items() if name not in self.frozen)

    @property
    def out_bytes(self) -> int:
        """Values it makes that later sub-models take."""
        return self.shared_bytes + sum(crossing.value_bytes for crossing in self.crossings)

    @property
    def activation_bytes(self) -> int:
        """On the device while its backward recomputes it, its inputs aside."""
        return self.working_bytes + self.transient_bytes


def pieces_of(chain: Chain, ends: Sequence[int]) -> tuple[Piece, ...]:
    """One piece per end; piece s is operations [ends[s-1], ends[s])."""
    spans = list(zip((0, *ends[:-1]), ends, strict=True))
    piece_at = [s for s, (start, end) in enumerate(spans) for _ in range(start, end)]
    batch_bytes, shared_bytes = [0] * len(spans), [0] * len(spans)
    crossings = [list[Crossing]() for _ in spans]
    for value in chain.values:
        maker = piece_at[value.made_by] if value.made_by >= 0 else -1
        last = piece_at[value.last_used_by]
        if maker < 0:
            batch_bytes[last] += value.size_bytes
        elif last > maker and value.shared:
            shared_bytes[maker] += value.size_bytes
        elif last > maker:
            crossings[maker].append(_crossing(value, maker, piece_at))
    return tuple(
        replace(
            piece_of(chain.operations[start:end]),
            batch_bytes=batch_bytes[s],
            crossings=tuple(crossings[s]),
            shared_bytes=shared_bytes[s],
        )
        for s, (start, end) in enumerate(spans)
    )


def _crossing(value: Value, maker: int, piece_at: Sequence[int]) -> Crossing:
    users = {piece_at[user] for user in (*value.used_by, value.last_used_by)}
    gradient_bytes = value.size_bytes if value.has_gradient else 0
    return Crossing(maker, tuple(sorted(users - {maker})), value.size_bytes, gradient_bytes)


def piece_of(operations: Sequence[Operation]) -> Piece:
    """Without what lies between it and others."""
    parameters: dict[str, int] = {}
    working = peak = 0
    for operation in operations:
        parameters.update(operation.parameters)
        working += operation.working_bytes
        peak = max(peak, working + operation.transient_bytes)
    return Piece(
        parameters=parameters,
        forward_s=sum(operation.forward_s for operation in operations),
        backward_s=sum(operation.backward_s for operation in operations),
        working_bytes=working,
        transient_bytes=peak - working,
        frozen=frozenset().union(*(operation.frozen for operation in operations)),
    )


@dataclass(frozen=True)
class Limits:
    """What the devices and the run allow."""

    device_bytes: int
    element_bytes: int
    """Of a parameter on the device: 2 in 16-bit formats."""
    micro_batches: int
    """The most that one pass may accumulate."""
    host_bytes: int | None = None
    """Host memory for values between sub-models. None: as much as it takes."""
    gradient_element_bytes: int = FLOAT32_BYTES
    """In which gradients leave."""
    trained_element_bytes: int = 0
    """Of a parameter that is trained on the device, beside its slot. 0: none may be."""
    devices: int = 1
    """That work at once, each over a link of its own: the host's memory is all of theirs. In groups
    of as many as the arrangement says."""


@dataclass(frozen=True)
class DeviceMemory:
    """Bytes at the peak, by what holds them."""

    slot_bytes: int
    """Weight slots that sub-models share."""
    resident_bytes: int
    """Weights that stay."""
    gradient_bytes: int
    """The slots of the largest sub-model, and in float32 the sums of what several sub-models
    use."""
    activation_bytes: int
    """Of the sub-model at work that takes most, its parameters' gradients included, which autograd
    holds in the parameters' precision until they are added to the float32 slot."""
    kept_bytes: int
    """Activations that stay from forward to backward, of all micro-batches."""
    boundary_bytes: int = 0
    """Values between sub-models, their gradients, and the batch's entries, of all micro-batches.
    Of those that wait on the host, what is here at a time, and the ring."""
    trained_bytes: int = 0
    """State and gradient sums of what is trained on the device."""

    @property
    def total_bytes(self) -> int:
        return sum(vars(self).values())


def device_memory(
    pieces: Mapping[int, Piece],
    limits: Limits,
    arrangement: Arrangement,
    carried_elements: int = 0,
    trained_elements: int = 0,
) -> DeviceMemory:
    """But for what lies between sub-models. `pieces`: those of one device. `carried_elements`: of
    sums that go on from one to the next."""
    element_bytes = limits.element_bytes
    swapped = [p.elements for s, p in pieces.items() if s not in arrangement.resident]
    resident = [p.elements for s, p in pieces.items() if s in arrangement.resident]
    largest = max(piece.gradient_elements for piece in pieces.values())
    working = [
        piece.gradient_elements * element_bytes
        + (piece.transient_bytes if s in arrangement.kept else piece.activation_bytes)
        for s, piece in pieces.items()
    ]
    kept = sum(piece.working_bytes for s, piece in pieces.items() if s in arrangement.kept)
    return DeviceMemory(
        slot_bytes=arrangement.slots * max(swapped, default=0) * element_bytes,
        resident_bytes=sum(resident) * element_bytes,
        gradient_bytes=gradient_slot_bytes(largest) + carried_elements * FLOAT32_BYTES,
        activation_bytes=max(working),
        kept_bytes=limits.micro_batches * kept,
        trained_bytes=limits.trained_element_bytes * trained_elements,
    )


def trained_parameters(pieces: Sequence[Piece], arrangement: Arrangement) -> dict[str, int]:
    """The parameters that live on the device, with their elements."""
    trained = arrangement.trained
    others = {n for s, piece in enumerate(pieces) if s not in trained for n in piece.parameters}
    return {
        name: elements
        for s in trained
        for name, elements in pieces[s].parameters.items()
        if name not in others and name not in pieces[s].frozen
    }


def alone_bytes(piece: Piece, limits: Limits) -> int:
    """Device memory for a sub-model that is swapped, were it the largest."""
    return device_memory({0: piece}, limits, Arrangement()).total_bytes


@dataclass(frozen=True)
class Cut:
    """Sub-models on a machine, for many arrangements."""

    ends: tuple[int, ...]
    pieces: tuple[Piece, ...]
    machine: Machine
    limits: Limits
    """A pass has as many micro-batches as they allow."""
    remembers: bool = False
    """Whether the model's own checkpoints are left out: there is memory enough without them."""
    matrix_parts: Parts = field(default_factory=dict)
    """Matrices that fit in no other way."""
    _held: dict[tuple[frozenset[int], int, int], int] = field(
        default_factory=dict, init=False, compare=False
    )
    _on: dict[int, tuple[int, ...]] = field(default_factory=dict, init=False, compare=False)

    @classmethod
    def of(cls, chain: Chain, machine: Machine, limits: Limits, ends: Sequence[int]) -> "Cut":
        return cls(tuple(ends), pieces_of(chain, ends), machine, limits)

    def fits(self, arrangement: Arrangement) -> bool:
        """Whether the host and each device have room for it."""
        room = [self.limits.device_bytes - m.total_bytes for m in self._at_work(arrangement)]
        # What lies between sub-models takes longest to find: only if it can matter.
        if min(room) < 0 or any(
            self._boundary_bytes(arrangement, device) > left for device, left in enumerate(room)
        ):
            return False
        most_bytes = self.limits.host_bytes
        return most_bytes is None or self.shape(arrangement).host_bytes <= most_bytes

    def memory(self, arrangement: Arrangement) -> DeviceMemory:
        """Of the device that needs most."""
        each = (
            replace(memory, boundary_bytes=self._boundary_bytes(arrangement, device))
            for device, memory in enumerate(self._at_work(arrangement))
        )
        return max(each, key=lambda memory: memory.total_bytes)

    def on(self, arrangement: Arrangement) -> tuple[int, ...]:
        """Per sub-model, its device in a group; empty: each device has all of them."""
        devices = arrangement.devices
        if devices == 1:
            return ()
        if devices not in self._on:
            self._on[devices] = device_of([piece.parameters for piece in self.pieces], devices)
        return self._on[devices]

    def shape(self, arrangement: Arrangement) -> Shape:
        return Shape(len(self.pieces), self.limits.micro_batches, arrangement, self._crossings)

    @cached_property
    def durations(self) -> Durations:
        """What each event of a pass takes."""
        pieces, limits, machine = self.pieces, self.limits, self.machine
        leaving = [piece.gradient_elements for piece in pieces]
        if self._carries:
            leaving = [sum(new.values()) for new in self.first_uses]
        parameter_bytes, gradient_bytes = limits.element_bytes, limits.gradient_element_bytes
        return Durations(
            load_s=tuple(p.elements * parameter_bytes / machine.load_bytes_per_s for p in pieces),
            forward_s=tuple(piece.forward_s for piece in pieces),
            backward_s=tuple(piece.backward_s for piece in pieces),
            gradient_out_s=tuple(
                n * gradient_bytes / machine.gradient_bytes_per_s for n in leaving
            ),
            value_in_s=1 / machine.load_bytes_per_s,
            value_out_s=1 / machine.load_bytes_per_s,
            sum_s=tuple(ADDED * n * gradient_bytes / machine.sum_bytes_per_s for n in leaving)
            if machine.adds_apart
            else (),
            shares=Shares(
                load=limits.devices * machine.share(machine.load_bytes_per_s),
                out=limits.devices * machine.share(machine.gradient_bytes_per_s),
                sum=limits.devices * machine.share(machine.sum_bytes_per_s)
                if machine.adds_apart
                else 0.0,
            ),
        )

    def durations_in(self, arrangement: Arrangement) -> Durations:
        """The same where some of it is trained on the device: nothing of that takes the link."""
        trained = trained_parameters(self.pieces, arrangement)
        if not trained:
            return self.durations
        moves = [
            1 - sum(trained.get(name, 0) for name in piece.parameters) / max(piece.elements, 1)
            for piece in self.pieces
        ]
        whole = self.durations
        load_s, gradient_out_s, sum_s = (
            tuple(s * share for s, share in zip(of, moves, strict=False))
            for of in (whole.load_s, whole.gradient_out_s, whole.sum_s)
        )
        return replace(whole, load_s=load_s, gradient_out_s=gradient_out_s, sum_s=sum_s)

    @cached_property
    def first_uses(self) -> list[dict[str, int]]:
        """Per sub-model, its trained parameters that none before has."""
        seen, found = set[str](), list[dict[str, int]]()
        for piece in self.pieces:
            seen |= piece.frozen
            found.append({name: n for name, n in piece.parameters.items() if name not in seen})
            seen |= piece.parameters.keys()
        return found

    @property
    def _carries(self) -> bool:
        """In float32 the sum of what several use goes on from one to the next, on the device."""
        return self.limits.element_bytes == FLOAT32_BYTES

    @cached_property
    def _carried(self) -> list[dict[str, int]]:
        """Per sub-model, its parameters that one before has, if their sums go on to it."""
        if not self._carries:
            return [{} for _ in self.pieces]
        both = zip(self.pieces, self.first_uses, strict=True)
        return [
            {n: p.parameters[n] for n in p.parameters.keys() - new.keys() - p.frozen}
            for p, new in both
        ]

    def _at_work(self, arrangement: Arrangement) -> list[DeviceMemory]:
        """Of each device of a group."""
        on = self.on(arrangement) or (0,) * len(self.pieces)
        pieces: list[dict[int, Piece]] = [{} for _ in range(arrangement.devices)]
        carried: list[dict[str, int]] = [{} for _ in pieces]
        for s, device in enumerate(on):
            pieces[device][s] = self.pieces[s]
            carried[device] |= self._carried[s]
        trained = sum(trained_parameters(self.pieces, arrangement).values())
        return [
            device_memory(own, self.limits, arrangement, sum(again.values()), trained)
            for own, again in zip(pieces, carried, strict=True)
        ]

    def _boundary_bytes(self, arrangement: Arrangement, device: int) -> int:
        """Batch entries, and what is the same in every micro-batch, are on all devices."""
        once = sum(piece.shared_bytes for piece in self.pieces)
        batch = self.limits.micro_batches * sum(piece.batch_bytes for piece in self.pieces)
        shape, devices = self.shape(arrangement), arrangement.devices
        key = shape.moving, devices, device
        if key not in self._held:
            sizes = shape.crossings, shape.moving, shape.sub_models, shape.micro_batches
            on = self.on(arrangement)
            self._held[key] = held_bytes(*sizes, on, device) if on else shape.held_bytes
        return once + batch + self._held[key]

    @cached_property
    def _crossings(self) -> tuple[Crossing, ...]:
        """All that lies between sub-models, in the order in which it is made."""
        return tuple(crossing for piece in self.pieces for crossing in piece.crossings)
