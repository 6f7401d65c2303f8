"""A cut as numbers: what each sub-model weighs, moves and takes, for one micro-batch."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from atom.graph.chain import Chain, Operation, Value
from atom.swap.crossing import Crossing


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
    in_bytes: int = 0
    """Values it takes from earlier sub-models or the batch."""
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
    taken: Counter[int] = Counter()
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
        if last > maker:
            taken[last] += value.size_bytes
    return tuple(
        replace(
            piece_of(chain.operations[start:end]),
            in_bytes=taken[s],
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
