"""The problem in whole numbers: what a solver reads of a chain, a machine and terms.

Sums of floating-point seconds depend on their order, and two plans that cost the same would differ
in the last bit; then "least time, then least cut bytes" never reaches the bytes. So time is counted
in ticks: a nanosecond, or more if a pass is so long that 59 bits would not hold its price. Bytes at
a cut are counted in units of their greatest common divisor, and a plan's price is the one integer
`ticks · 2^bits + units`. Seconds are rounded operation by operation, so equal layers stay equal.

Operations that no cut may part are merged into an *atom*; every position between two atoms is then
a legal cut. Also merged, without loss of optimality, is an operation that costs nothing (a view)
into the atom before it, if cutting after it is never worse than cutting before it.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import accumulate

from atom.graph.partition.chain import Chain, Machine, Operation, Terms, Value

GRADIENT_ELEMENT_BYTES = 4
_TICK_S = 1e-9
_PRICE_BITS = 59


@dataclass(frozen=True)
class Atom:
    """Consecutive operations that stay together. Ticks are those of all micro-batches."""

    begin: int
    """Its first operation."""
    forward_ticks: int
    backward_ticks: int
    parameters: dict[str, int]
    working_bytes: int
    transient_bytes: int


@dataclass(frozen=True)
class Figures:
    """A problem as the solvers see it. Positions, makers and users count atoms."""

    atoms: tuple[Atom, ...]
    values: tuple[Value, ...]
    """Those that some cut can part from a user; sizes in `unit_bytes`."""
    unit_bytes: int
    tick_s: float
    cut_bits: int
    """`2^cut_bits` units are more than all values together."""
    load_ticks: float
    """Per parameter element."""
    gradient_ticks: float
    held_bytes: int
    """Of device memory, per element of the largest sub-model: all slots, and one gradient."""
    boundary_bytes: int
    """Of device memory, per unit kept between sub-models."""
    budget_bytes: int
    """What is there for slots, activations and boundary values."""
    slots: int
    operations: int

    def ends(self, positions: Sequence[int]) -> tuple[int, ...]:
        """Positions between atoms, up to the last → positions between operations."""
        return (*(self.atoms[p].begin for p in positions[:-1]), self.operations)


def figures_of(chain: Chain, machine: Machine, terms: Terms, merge: bool = True) -> Figures:
    """`merge`: also merge operations that cost nothing. Raises: ValueError for an empty chain."""
    count = len(chain.operations)
    if not count:
        raise ValueError("a chain without operations cannot be cut")
    begins = [p for p in range(count) if p == 0 or p not in chain.forbidden]
    if merge:
        begins = _without_free_riders(chain, begins)
    atom_of = _atom_of(begins, count)
    crossing = [
        Value(value.size_bytes, atom_of[value.made_by], atom_of[value.last_used_by])
        for value in chain.values
        if value.made_by >= 0 and not value.shared
        if atom_of[value.made_by] < atom_of[value.last_used_by]
    ]
    unit = math.gcd(*(value.size_bytes for value in crossing)) or 1
    bits = (sum(value.size_bytes for value in crossing) // unit + 1).bit_length()
    tick_s = _tick_s(chain, machine, terms, bits)
    batch_bytes = sum(value.size_bytes for value in chain.values if value.made_by < 0)
    constant_bytes = terms.reserved_bytes + shared_bytes(chain)
    forward = _ticks((o.forward_s for o in chain.operations), terms.micro_batches, tick_s)
    backward = _ticks((o.backward_s for o in chain.operations), terms.micro_batches, tick_s)
    return Figures(
        atoms=tuple(
            _atom(chain.operations[a:b], a, forward[b] - forward[a], backward[b] - backward[a])
            for a, b in zip(begins, [*begins[1:], count], strict=True)
        ),
        values=tuple(Value(v.size_bytes // unit, v.made_by, v.last_used_by) for v in crossing),
        unit_bytes=unit,
        tick_s=tick_s,
        cut_bits=bits,
        load_ticks=terms.element_bytes / machine.load_bytes_per_s / tick_s,
        gradient_ticks=GRADIENT_ELEMENT_BYTES / machine.gradient_bytes_per_s / tick_s,
        held_bytes=held_bytes(terms),
        boundary_bytes=terms.micro_batches * unit,
        budget_bytes=terms.device_bytes - constant_bytes - terms.micro_batches * batch_bytes,
        slots=terms.slots,
        operations=count,
    )


def shared_bytes(chain: Chain) -> int:
    """Of values that are held once for all micro-batches, wherever the cuts are."""
    return sum(value.size_bytes for value in chain.values if value.shared)


def held_bytes(terms: Terms) -> int:
    """Per parameter element of the largest sub-model: all slots, and the gradient that autograd
    holds in the parameter's own precision until it is added to the slot's."""
    slots = terms.slots * terms.element_bytes + terms.gradient_slots * GRADIENT_ELEMENT_BYTES
    return slots + terms.element_bytes


def _ticks(seconds: Iterable[float], micro_batches: int, tick_s: float) -> list[int]:
    """Of all operations before each position."""
    rounded = (round(micro_batches * one / tick_s) for one in seconds)
    return list(accumulate(rounded, initial=0))


def _atom(operations: Sequence[Operation], begin: int, forward: int, backward: int) -> Atom:
    parameters: dict[str, int] = {}
    for operation in operations:
        parameters.update(operation.parameters)
    return Atom(
        begin=begin,
        forward_ticks=forward,
        backward_ticks=backward,
        parameters=parameters,
        working_bytes=sum(o.working_bytes for o in operations),
        transient_bytes=max(o.transient_bytes for o in operations),
    )


def _atom_of(begins: Sequence[int], count: int) -> list[int]:
    atom_of, atom = [], -1
    starts = set(begins)
    for operation in range(count):
        atom += operation in starts
        atom_of.append(atom)
    return atom_of


def _tick_s(chain: Chain, machine: Machine, terms: Terms, cut_bits: int) -> float:
    """Long enough, too, to keep every price below 2^59."""
    compute_s = sum(2 * o.forward_s + o.backward_s for o in chain.operations)
    elements = sum(sum(o.parameters.values()) for o in chain.operations)
    per_element_s = (
        2 * terms.element_bytes / machine.load_bytes_per_s
        + GRADIENT_ELEMENT_BYTES / machine.gradient_bytes_per_s
    )
    most_s = 2 * (terms.micro_batches * compute_s + elements * per_element_s) + 1e-6
    room = _PRICE_BITS - cut_bits
    return max(_TICK_S, most_s / 2.0**room)


def _without_free_riders(chain: Chain, begins: list[int]) -> list[int]:
    """Drops each position before a run that costs nothing, where the next position is as good.

    Moving a cut from `begin` to the next position changes neither sub-model's parameters, seconds
    or activations. It stops counting what is made since the last kept position and used no later
    than the run, and counts what the run itself makes for later.
    """
    count = len(chain.operations)
    ended, made = _bytes_ending(chain), _bytes_made(chain)
    kept = [0]
    largest = chain.operations[0].transient_bytes
    for position, begin in enumerate(begins[1:], start=1):
        stop = begins[position + 1] if position + 1 < len(begins) else count
        previous = begins[position - 1]
        for operation in range(previous, begin):
            largest = max(largest, chain.operations[operation].transient_bytes)
        run = range(begin, stop)
        free = all(_costs_nothing(chain.operations[o], largest) for o in run)
        saved = sum(size for o in run for size, maker in ended[o] if kept[-1] <= maker < begin)
        spent = sum(size for o in run for size, last in made[o] if last >= stop)
        if free and spent <= saved and stop < count:
            continue
        kept.append(begin)
        largest = 0
    return kept


def _costs_nothing(operation: Operation, transient_bytes: int) -> bool:
    return (
        not operation.parameters
        and operation.forward_s == operation.backward_s == 0
        and operation.working_bytes == 0
        and operation.transient_bytes <= transient_bytes
    )


def _bytes_ending(chain: Chain) -> list[list[tuple[int, int]]]:
    """Per operation (size, maker) of the values it is the last to use."""
    ended: list[list[tuple[int, int]]] = [[] for _ in chain.operations]
    for value in chain.values:
        if value.made_by >= 0:
            ended[value.last_used_by].append((value.size_bytes, value.made_by))
    return ended


def _bytes_made(chain: Chain) -> list[list[tuple[int, int]]]:
    """Per operation (size, last user) of the values it makes."""
    made: list[list[tuple[int, int]]] = [[] for _ in chain.operations]
    for value in chain.values:
        if value.made_by >= 0:
            made[value.made_by].append((value.size_bytes, value.last_used_by))
    return made
