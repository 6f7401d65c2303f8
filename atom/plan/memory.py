"""Sizes and seconds of the sub-models of a cut, and the memory that a cut needs.

This is the only place that computes the device memory of a cut and an arrangement. The result must
agree with the memory that the engine allocates.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

from atom.graph.chain import ADDED, Chain, Machine, Operation, Value
from atom.graph.matrix_parts import Parts
from atom.swap.crossing import Crossing, held_bytes
from atom.swap.device_slots import FLOAT32_BYTES, gradient_slot_bytes
from atom.swap.schedule import Arrangement, Shape, device_of
from atom.swap.timeline import Durations

PLANNED_SHARE = 0.9
"""Fraction that a plan fills of the GPU memory that PyTorch may take.

The remainder is for workspaces of libraries and for gaps between allocations.
"""


@dataclass(frozen=True)
class Piece:
    """Costs of one sub-model. Seconds and bytes are for one micro-batch."""

    parameters: Mapping[str, int]
    """Name in the layout → elements in a weight slot, including padding."""
    forward_s: float
    backward_s: float
    """Seconds of a backward without recomputation."""
    working_bytes: int
    """Bytes that its forward keeps for its backward."""
    transient_bytes: int
    """Peak bytes in addition to `working_bytes`."""
    batch_bytes: int = 0
    """Bytes of the batch entries of which this sub-model is the last user."""
    crossings: tuple[Crossing, ...] = ()
    """Values that it makes for later sub-models, different in each micro-batch."""
    shared_bytes: int = 0
    """Bytes of values that it makes for later sub-models, the same in all micro-batches."""
    frozen: frozenset[str] = frozenset()
    """Names of its parameters that take no gradient."""

    @cached_property
    def elements(self) -> int:
        """Number of elements of its parameters."""
        return sum(self.parameters.values())

    @cached_property
    def gradient_elements(self) -> int:
        """Number of elements of its parameters that take a gradient."""
        return sum(n for name, n in self.parameters.items() if name not in self.frozen)

    @property
    def out_bytes(self) -> int:
        """Bytes of all values that it makes for later sub-models."""
        return self.shared_bytes + sum(crossing.value_bytes for crossing in self.crossings)

    @property
    def activation_bytes(self) -> int:
        """Peak bytes of its recomputation and backward, without its inputs."""
        return self.working_bytes + self.transient_bytes


def pieces_of(chain: Chain, ends: Sequence[int]) -> tuple[Piece, ...]:
    """Return one piece per end; piece s has the operations [ends[s-1], ends[s])."""
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
    """Return the operations as one piece, without the values between it and other pieces."""
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
    """Limits that the machine and the run set for a cut and its passes."""

    device_bytes: int
    """Memory that may be used on each device."""
    element_bytes: int
    """Bytes of a parameter's element on the device: 2 in 16-bit formats."""
    micro_batches: int
    """Most micro-batches of one pass. The passes of a `Cut` have exactly this number."""
    host_bytes: int | None = None
    """Most host memory for values between sub-models of one group. None: unlimited."""
    gradient_element_bytes: int = FLOAT32_BYTES
    """Bytes of a gradient's element on the copy to the host."""
    trained_element_bytes: int = 0
    """Device memory per element that is trained on the device, in addition to its weight slot.

    0: no parameter may be trained on the device.
    """
    devices: int = 1
    """Number of devices of all groups together.

    They work at the same time. Each has its own link, and all share the bandwidth of the host's
    memory. `Arrangement.devices` is the size of a group.
    """


@dataclass(frozen=True)
class DeviceMemory:
    """Device memory at the peak of a training pass, by purpose."""

    slot_bytes: int
    """Bytes of the weight slots that swapped sub-models share."""
    resident_bytes: int
    """Bytes of the weight slots of resident sub-models."""
    gradient_bytes: int
    """Bytes of the gradient slots, which fit the largest sub-model, and of carried sums.

    Carried sums are gradient sums that one sub-model hands to another, as `Cut` describes.
    """
    activation_bytes: int
    """Most bytes that a sub-model takes while it computes.

    They include the gradients of its parameters, which autograd holds in the precision of the
    parameters until they are added to the float32 gradient slot.
    """
    kept_bytes: int
    """Bytes of activations that stay from forward to backward, for all micro-batches."""
    boundary_bytes: int = 0
    """Bytes of values between sub-models, their gradients, and batch entries, of all micro-batches.

    Offloaded values count only while they are on the device or in the ring.
    """
    trained_bytes: int = 0
    """Bytes of optimizer state, weights and gradient sums of parameters trained on the device."""

    @property
    def total_bytes(self) -> int:
        """Bytes for all purposes together."""
        return sum(vars(self).values())


def device_memory(
    pieces: Mapping[int, Piece],
    limits: Limits,
    arrangement: Arrangement,
    carried_elements: int = 0,
    trained_elements: int = 0,
) -> DeviceMemory:
    """Return the memory of one device, with `boundary_bytes` left at 0.

    Args:
        pieces: Sub-models of the device, by index.
        limits: Sizes of elements, and micro-batches of a pass.
        arrangement: Sub-models that stay on the device.
        carried_elements: Elements of gradient sums that one sub-model hands to another.
        trained_elements: Elements of the parameters that are trained on the device.
    """
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
    """Return the parameters that are trained on the device: name → elements.

    A parameter is trained on the device only if all sub-models that use it are trained there.
    """
    trained = arrangement.trained
    others = {n for s, piece in enumerate(pieces) if s not in trained for n in piece.parameters}
    return {
        name: elements
        for s in trained
        for name, elements in pieces[s].parameters.items()
        if name not in others and name not in pieces[s].frozen
    }


def alone_bytes(piece: Piece, limits: Limits) -> int:
    """Return the device memory for swapping if this piece were the largest sub-model."""
    return device_memory({0: piece}, limits, Arrangement()).total_bytes


@dataclass(frozen=True)
class Cut:
    """Sub-models of a model on a machine; several arrangements may be tried with the same cut."""

    ends: tuple[int, ...]
    """Position in the chain's operations at which each sub-model ends, ascending."""
    pieces: tuple[Piece, ...]
    machine: Machine
    limits: Limits
    """Limits of the machine and the run. A pass has `limits.micro_batches` micro-batches."""
    remembers: bool = False
    """True if the recomputation that the model itself requests is left out."""
    matrix_parts: Parts = field(default_factory=dict)
    """Matrices that are split, with their number of parts."""
    _held: dict[tuple[frozenset[int], int, int], int] = field(
        default_factory=dict, init=False, compare=False
    )
    _on: dict[int, tuple[int, ...]] = field(default_factory=dict, init=False, compare=False)

    @classmethod
    def of(cls, chain: Chain, machine: Machine, limits: Limits, ends: Sequence[int]) -> "Cut":
        """Cut a chain into sub-models.

        Args:
            chain: Operations and values of the model.
            machine: Rates of the devices and the link.
            limits: Limits of machine and run.
            ends: Positions in the chain at which sub-models end, ascending.
        """
        return cls(tuple(ends), pieces_of(chain, ends), machine, limits)

    def fits(self, arrangement: Arrangement) -> bool:
        """Return True if the host and each device have enough memory for the arrangement."""
        room = [self.limits.device_bytes - m.total_bytes for m in self._at_work(arrangement)]
        # The memory for values between sub-models takes longest to compute, so it comes last.
        if min(room) < 0 or any(
            self._boundary_bytes(arrangement, device) > left for device, left in enumerate(room)
        ):
            return False
        most_bytes = self.limits.host_bytes
        return most_bytes is None or self.shape(arrangement).host_bytes <= most_bytes

    def memory(self, arrangement: Arrangement) -> DeviceMemory:
        """Return the memory of the device that needs most."""
        each = (
            replace(memory, boundary_bytes=self._boundary_bytes(arrangement, device))
            for device, memory in enumerate(self._at_work(arrangement))
        )
        return max(each, key=lambda memory: memory.total_bytes)

    def on(self, arrangement: Arrangement) -> tuple[int, ...]:
        """Return the device of each sub-model in a group; empty: every device runs all of them."""
        devices = arrangement.devices
        if devices == 1:
            return ()
        if devices not in self._on:
            self._on[devices] = device_of([piece.parameters for piece in self.pieces], devices)
        return self._on[devices]

    def shape(self, arrangement: Arrangement) -> Shape:
        """Return the shape of passes with this arrangement, which simulations of a pass take."""
        return Shape(len(self.pieces), self.limits.micro_batches, arrangement, self._crossings)

    @cached_property
    def durations(self) -> Durations:
        """Seconds of each event of a pass, if nothing is trained on the device."""
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
            load_share=limits.devices * machine.share(machine.load_bytes_per_s),
            out_share=limits.devices * machine.share(machine.gradient_bytes_per_s),
            sum_share=limits.devices * machine.share(machine.sum_bytes_per_s)
            if machine.adds_apart
            else 0.0,
        )

    def durations_in(self, arrangement: Arrangement) -> Durations:
        """Return the durations with the arrangement's sub-models trained on the device.

        Parameters that are trained there, and their gradients, are not copied.
        """
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
        """Parameters with gradient that no earlier sub-model has: name → elements, by sub-model."""
        seen, found = set[str](), list[dict[str, int]]()
        for piece in self.pieces:
            seen |= piece.frozen
            found.append({name: n for name, n in piece.parameters.items() if name not in seen})
            seen |= piece.parameters.keys()
        return found

    @property
    def _carries(self) -> bool:
        """True if sub-models hand the gradient sums of shared parameters on, on the device.

        That is so if parameters are float32. Then such a sum leaves for the host once.
        """
        return self.limits.element_bytes == FLOAT32_BYTES

    @cached_property
    def _carried(self) -> list[dict[str, int]]:
        """Parameters whose sums go on to an earlier sub-model: name → elements, by sub-model."""
        if not self._carries:
            return [{} for _ in self.pieces]
        both = zip(self.pieces, self.first_uses, strict=True)
        return [
            {n: p.parameters[n] for n in p.parameters.keys() - new.keys() - p.frozen}
            for p, new in both
        ]

    def _at_work(self, arrangement: Arrangement) -> list[DeviceMemory]:
        """Return the memory of each device of a group, without the values between sub-models."""
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
        """Return the `DeviceMemory.boundary_bytes` of one device of a group.

        Batch entries, and values that are the same in every micro-batch, are on all devices.
        """
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
        """Values between sub-models, in the order in which they are made."""
        return tuple(crossing for piece in self.pieces for crossing in piece.crossings)
