"""Chooses how a model goes through a device: cut, accumulation, slots, what stays.

The partitioner finds the best cut for given terms. Around it this search varies what nobody should
have to set: how many micro-batches a pass accumulates, and how much of the device is left for
weights and activations that stay. Every candidate's schedule is timed event by event, as the
engine would carry it out; the one with most micro-batches per second wins, and among equals the
shortest pass.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from atom.base.errors import DeviceError
from atom.graph.partition import (
    Chain,
    Machine,
    Terms,
    cost_of,
    find_partition,
    refusal,
    smallest_device_bytes,
)
from atom.plan.memory import DeviceMemory, Reckoning
from atom.plan.offloading import (
    can_offload,
    least_offloaded_bytes,
    offloaded,
    offloaded_cuts,
    waiting,
)
from atom.plan.pieces import Piece, crossings_of, pieces_of
from atom.plan.residency import Budget, arrangements
from atom.swap.arrangement import Arrangement
from atom.swap.device_slots import FLOAT32_BYTES, GRADIENT_SLOTS, bounce_bytes
from atom.swap.schedule import Shape, training_pass
from atom.swap.timeline import Durations, Timeline, simulate

STEP = 2**0.5
MOST_STEPS = 12
"""From the least memory in which a model can be cut at all, in steps of this factor, or in as many
larger ones, to what takes it whole: for so much a cut is asked for. Finer cuts leave room for what
stays."""
MUCH = 0.1
"""Of the device, for values between sub-models: from there on they may wait on the host."""
NEARLY = 0.01
"""A pass that is this much slower per micro-batch, but shorter, is preferred."""


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
class Choice:
    """How the model goes through the device, and what that is expected to take."""

    ends: tuple[int, ...]
    pieces: tuple[Piece, ...]
    arrangement: Arrangement
    micro_batches: int
    memory: DeviceMemory
    timeline: Timeline
    """Of a pass right after an optimizer step: nothing is loaded yet."""
    durations: Durations
    """Of its events."""
    host_bytes: int = 0
    """Host memory that values between sub-models take while they wait there."""
    remembers: bool = False
    """Whether the model's own checkpoints are left out: there is memory enough without them."""

    @property
    def waiting(self) -> list[int]:
        """Sub-models whose values wait on the host while nobody needs them."""
        return waiting(self._shape)

    @property
    def seconds_per_micro_batch(self) -> float:
        return self.timeline.seconds / self.micro_batches

    def seconds_under_step(self, elements_per_s: float) -> float:
        """Of a pass that begins with the optimizer's step: each load waits until its own parameters
        are updated, in the order of their first use."""
        durations = replace(self.durations, ready_s=_ready_s(self.pieces, elements_per_s))
        return simulate(training_pass(self._shape), self._shape, durations).seconds

    @property
    def _shape(self) -> Shape:
        crossings = crossings_of(self.pieces)
        return Shape(len(self.pieces), self.micro_batches, self.arrangement, crossings)


def choose(
    chain: Chain, machine: Machine, limits: Limits, layer_ends: Sequence[int] = ()
) -> Choice:
    """The fastest way that fits.

    With `layer_ends`, positions where layers end, cuts fall there, and only there, if one of that
    kind fits: every other position makes the search longer and the plan hardly better. A model
    whose layers do not fit the device is cut between any two operations.

    What the model itself checkpoints is computed again only where that pays: the chain that
    remembers is tried as well.

    Where values between sub-models take much of the device, letting them wait on the host is tried
    as well: it makes a plan possible, or leaves room for more micro-batches and weights.

    Raises: DeviceError naming the operation that fits in no way, and the smallest budget that does.
    """
    if layer_ends:
        by_layers = _cut_only_at(chain, layer_ends)
        terms = _terms(chain, limits)
        if _fits_somehow(by_layers, machine, terms):
            chain = by_layers
    candidates = list(_candidates(chain, machine, limits))
    if chain.remembering is not None:
        remembering = _candidates(chain.remembering, machine, limits)
        candidates += [replace(candidate, remembers=True) for candidate in remembering]
    if _is_short(chain, limits, candidates):
        candidates += _offloaded_candidates(chain, machine, limits)
    if not candidates:
        raise _refusal(chain, machine, limits)
    return _best(candidates)


def _best(candidates: Sequence[Choice]) -> Choice:
    fastest = min(c.seconds_per_micro_batch for c in candidates)
    good = [c for c in candidates if c.seconds_per_micro_batch <= (1 + NEARLY) * fastest]
    return min(good, key=lambda c: (c.timeline.seconds, c.host_bytes, c.memory.total_bytes))


def _fits_somehow(chain: Chain, machine: Machine, terms: Terms) -> bool:
    if find_partition(chain, machine, terms) is not None:
        return True
    return can_offload(chain) and any(offloaded_cuts(chain, machine, terms))


def _is_short(chain: Chain, limits: Limits, candidates: Sequence[Choice]) -> bool:
    """Is there too little room for values between sub-models, or will there be?"""
    if not can_offload(chain):
        return False
    if not candidates:
        return True
    best = _best(candidates)
    each = sum(piece.out_bytes for piece in best.pieces)
    return limits.micro_batches * each > MUCH * limits.device_bytes


def _refusal(chain: Chain, machine: Machine, limits: Limits) -> DeviceError:
    """With what the way that needs less would need."""
    terms = _terms(chain, limits)
    least = replace(terms, device_bytes=smallest_device_bytes(chain, machine, terms))
    cut = find_partition(chain, machine, least)
    assert cut is not None, "the least is enough"
    pieces = pieces_of(chain, cut.ends)
    beside = limits.device_bytes - terms.device_bytes
    each = limits.element_bytes, limits.gradient_element_bytes
    need = Reckoning(pieces, 1, *each).memory(Arrangement()).total_bytes
    least_bytes = max(least.device_bytes + beside, need)
    if can_offload(chain):
        offloaded_bytes = least_offloaded_bytes(chain, machine, terms) + beside
        least_bytes = min(least_bytes, offloaded_bytes)
    return refusal(chain, machine, replace(terms, device_bytes=limits.device_bytes), least_bytes)


def _terms(chain: Chain, limits: Limits, micro_batches: int = 1) -> Terms:
    """What the partitioner may reckon with: it knows nothing of what gradients are rounded in."""
    sizes = {name: n for each in chain.operations for name, n in each.parameters.items()}
    beside = bounce_bytes(limits.gradient_element_bytes, sum(sizes.values()))
    return Terms(limits.device_bytes - beside, micro_batches, limits.element_bytes)


def _cut_only_at(chain: Chain, positions: Sequence[int]) -> Chain:
    elsewhere = set(range(1, len(chain.operations))) - set(positions)
    remembering = chain.remembering and _cut_only_at(chain.remembering, positions)
    return replace(chain, forbidden=chain.forbidden | elsewhere, remembering=remembering)


def timed(
    chain: Chain,
    machine: Machine,
    ends: Sequence[int],
    arrangement: Arrangement,
    micro_batches: int,
    element_bytes: int,
    gradient_element_bytes: int = FLOAT32_BYTES,
) -> Choice:
    """A way through the device that was decided elsewhere, with its memory and its timeline."""
    pieces = pieces_of(chain, ends)
    shape = Shape(len(pieces), micro_batches, arrangement, crossings_of(pieces))
    took = durations(pieces, machine, element_bytes, gradient_element_bytes)
    reckoning = Reckoning(pieces, micro_batches, element_bytes, gradient_element_bytes)
    return Choice(
        ends=tuple(ends),
        pieces=pieces,
        arrangement=arrangement,
        micro_batches=micro_batches,
        memory=reckoning.memory(arrangement),
        timeline=simulate(training_pass(shape), shape, took),
        durations=took,
        host_bytes=reckoning.host_bytes(arrangement),
    )


def durations(
    pieces: Sequence[Piece],
    machine: Machine,
    element_bytes: int,
    gradient_element_bytes: int = FLOAT32_BYTES,
) -> Durations:
    """What each event of a schedule takes."""
    return Durations(
        load_s=tuple(p.elements * element_bytes / machine.load_bytes_per_s for p in pieces),
        forward_s=tuple(p.forward_s for p in pieces),
        backward_s=tuple(p.backward_s for p in pieces),
        gradient_out_s=tuple(
            p.elements * gradient_element_bytes / machine.gradient_bytes_per_s for p in pieces
        ),
        carrying=_carrying(pieces) if element_bytes == FLOAT32_BYTES else frozenset(),
        value_in_s=1 / machine.load_bytes_per_s,
        value_out_s=1 / machine.load_bytes_per_s,
    )


def _ready_s(pieces: Sequence[Piece], elements_per_s: float) -> tuple[float, ...]:
    """Per piece, when all of its parameters are updated; each is, with those that no piece before
    has."""
    updated_s: dict[str, float] = {}
    ready_s, elements = list[float](), 0
    for piece in pieces:
        new = piece.parameters.keys() - updated_s.keys()
        elements += sum(piece.parameters[name] for name in new)
        updated_s.update(dict.fromkeys(new, elements / elements_per_s))
        ready_s.append(max((updated_s[name] for name in piece.parameters), default=0.0))
    return tuple(ready_s)


def _carrying(pieces: Sequence[Piece]) -> frozenset[int]:
    """Those whose backward continues a sum that may still be on its way to the host: of a parameter
    that one of the next few sub-models uses too."""
    carrying = set()
    for s, piece in enumerate(pieces):
        near = pieces[s + 1 : s + GRADIENT_SLOTS]
        if any(piece.parameters.keys() & other.parameters.keys() for other in near):
            carrying.add(s)
    return frozenset(carrying)


def _candidates(chain: Chain, machine: Machine, limits: Limits) -> Iterator[Choice]:
    """With all values between sub-models on the device."""
    terms = _terms(chain, limits)
    alone = find_partition(chain, machine, terms)
    if alone is None:
        return
    yield from _with_cut(alone.ends, chain, machine, limits, 1)
    for micro_batches in _accumulations(limits.micro_batches):
        seen: set[tuple[int, ...]] = set()
        for device_bytes in _offers(chain, machine, replace(terms, micro_batches=micro_batches)):
            narrower = replace(terms, device_bytes=device_bytes, micro_batches=micro_batches)
            cut = find_partition(chain, machine, narrower)
            if cut is not None and cut.ends not in seen:
                seen.add(cut.ends)
                yield from _with_cut(cut.ends, chain, machine, limits, micro_batches)


def _offloaded_candidates(chain: Chain, machine: Machine, limits: Limits) -> Iterator[Choice]:
    """With those on the host that are worth it."""
    for micro_batches in _accumulations(limits.micro_batches):
        terms = _terms(chain, limits, micro_batches)
        for ends in dict.fromkeys(offloaded_cuts(chain, machine, terms)):
            plain = offloaded(len(ends))
            yield from _with_cut(ends, chain, machine, limits, micro_batches, plain)


def _offers(chain: Chain, machine: Machine, terms: Terms) -> list[int]:
    """Device bytes to cut for: the same ones, and more, on a larger device."""
    least, most = smallest_device_bytes(chain, machine, terms), _whole_bytes(chain, machine, terms)
    factor = max(STEP, (most / least) ** (1 / MOST_STEPS))
    steps = (int(least * factor**step) for step in range(MOST_STEPS))
    fitting = [offer for offer in steps if offer < min(most, terms.device_bytes)]
    return [*fitting, terms.device_bytes] if least <= terms.device_bytes else []


def _whole_bytes(chain: Chain, machine: Machine, terms: Terms) -> int:
    """Enough for the model in one piece."""
    return cost_of(chain, machine, terms, (len(chain.operations),)).device_bytes


def _with_cut(
    ends: Sequence[int],
    chain: Chain,
    machine: Machine,
    limits: Limits,
    micro_batches: int,
    plain: Arrangement | None = None,
) -> Iterator[Choice]:
    each = limits.element_bytes, limits.gradient_element_bytes
    budget = Budget(limits.device_bytes, micro_batches, each[0], limits.host_bytes, each[1])
    for arrangement in arrangements(pieces_of(chain, ends), budget, plain):
        yield timed(chain, machine, ends, arrangement, micro_batches, *each)


def _accumulations(most: int) -> list[int]:
    powers = [2**n for n in range(most.bit_length()) if 2**n < most]
    return [*powers, most]
