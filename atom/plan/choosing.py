"""Chooses how a model goes through a device: cut, accumulation, slots, what stays.

Nobody should have to set any of these, so they are searched. For every number of micro-batches that
a pass may accumulate there are a few good cuts (`cuts.py`), and for every cut a few ways to spend
the memory that is left (`residency.py`). The schedule of each candidate that fits is timed event by
event, as the engine would carry it out; the one with most micro-batches per second wins, and among
equals the shortest pass.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, pairwise
from operator import itemgetter

from atom.base.errors import DeviceError
from atom.base.units import format_bytes
from atom.graph.chain import Chain, Machine
from atom.plan.choice import Choice, Cut
from atom.plan.cuts import Charges, Ends, fastest_cut, parts_of
from atom.plan.memory import Limits, Reckoning
from atom.plan.pieces import Piece, piece_of
from atom.plan.residency import arrangements, offloaded
from atom.swap.arrangement import Arrangement

KEPT = (0.001, 1.0, 1000.0)
"""Charges for a byte kept between sub-models, in the seconds in which the link carries one. The
first only decides between equals; the others are tried where its cut keeps too much."""
WIDTHS = (1, 2, 4)
"""Of the narrowest legal cut: what may lie between sub-models where a layer has to be cut."""
NEARLY = 0.01
"""A pass that is this much slower per micro-batch, but shorter, is preferred."""
_SIXTEEN_BITS = 2


def choose(
    chain: Chain, machine: Machine, limits: Limits, layer_ends: Sequence[int] = ()
) -> Choice:
    """The fastest way that fits.

    With `layer_ends`, positions where layers end, cuts fall there, and within those layers alone
    that do not fit by themselves: other positions make the search longer and the plan hardly
    better.

    What the model itself checkpoints is computed again only where that pays: the chain that
    remembers is tried as well.

    Raises: DeviceError naming the operation that asks for most, and device memory that would do.
    """
    for places in _places(chain, limits, layer_ends):
        candidates = list(_candidates(chain, machine, limits, places))
        if chain.remembering is not None:
            remembering = _candidates(chain.remembering, machine, limits, places)
            candidates += [replace(each, remembers=True) for each in remembering]
        if candidates:
            return _best(candidates)
    raise _refusal(chain, limits, enough_bytes(chain, machine, limits, layer_ends))


@dataclass(frozen=True)
class _Candidate:
    cut: Cut
    arrangement: Arrangement
    remembers: bool = False

    def least_s(self) -> float:
        """Per micro-batch."""
        return self.cut.least_s(self.arrangement) / self.cut.reckoning.micro_batches

    def timed(self) -> Choice:
        return replace(self.cut.timed(self.arrangement), remembers=self.remembers)


def _best(candidates: Sequence[_Candidate]) -> Choice:
    """Only those are timed that may be among the fastest."""
    promising = sorted(((each.least_s(), each) for each in candidates), key=itemgetter(0))
    choices, enough_s = list[Choice](), math.inf
    for least_s, candidate in promising:
        if least_s > enough_s:
            break
        choices.append(candidate.timed())
        enough_s = min(enough_s, (1 + NEARLY) * choices[-1].seconds_per_micro_batch)
    good = [c for c in choices if c.seconds_per_micro_batch <= enough_s]
    return min(good, key=lambda c: (c.timeline.seconds, c.host_bytes, c.memory.total_bytes))


def _places(chain: Chain, limits: Limits, layer_ends: Sequence[int]) -> Iterator[Ends]:
    """Where cuts may fall: more and more, for as long as there is no cut that fits."""
    count = len(chain.operations)
    legal = [*(p for p in range(1, count) if p not in chain.forbidden), count]
    if layer_ends:
        yield from dict.fromkeys(_within_layers(chain, limits, layer_ends, legal))
    yield tuple(legal)


def _within_layers(
    chain: Chain, limits: Limits, layer_ends: Sequence[int], legal: Sequence[int]
) -> Iterator[Ends]:
    """Where layers end, and within those that do not fit alone where little crosses."""
    crossing = _crossing_bytes(chain)
    narrowest = min((crossing[p] for p in legal if crossing[p]), default=0)
    inner = [
        position
        for begin, end in pairwise((0, *layer_ends))
        if _alone_bytes(piece_of(chain.operations[begin:end]), limits) > limits.device_bytes
        for position in legal
        if begin < position < end
    ]
    for width in WIDTHS:
        narrow = (position for position in inner if crossing[position] <= width * narrowest)
        yield tuple(sorted({*layer_ends, *narrow}))
    yield tuple(sorted({*layer_ends, *inner}))


def _crossing_bytes(chain: Chain) -> list[int]:
    """Per position, what a cut there parts from a later user."""
    change = [0] * (len(chain.operations) + 2)
    for value in chain.values:
        if value.made_by >= 0 and not value.shared:
            change[value.made_by + 1] += value.size_bytes
            change[value.last_used_by + 1] -= value.size_bytes
    return list(accumulate(change))


def _alone_bytes(piece: Piece, limits: Limits) -> int:
    return Reckoning.of([piece], limits).bytes_at_work(Arrangement())


def _candidates(
    chain: Chain, machine: Machine, limits: Limits, places: Ends
) -> Iterator[_Candidate]:
    for cut, allowed in _cuts(chain, machine, limits, places):
        for arrangement in arrangements(cut.reckoning, allowed):
            yield _Candidate(cut, arrangement)


def _cuts(
    chain: Chain, machine: Machine, limits: Limits, places: Ends
) -> Iterator[tuple[Cut, Limits]]:
    """Good ones, each with the micro-batches of a pass that it is good for. Some keep too much."""
    most_bytes = limits.device_bytes
    parts = parts_of(chain, places, most_bytes, lambda piece: _alone_bytes(piece, limits))
    if parts is None:
        return
    for micro_batches in _accumulations(limits.micro_batches):
        allowed, seen = replace(limits, micro_batches=micro_batches), set[Ends]()
        for bound in parts.bounds(most_bytes):
            for kept in KEPT:
                ends = fastest_cut(parts, _charges(machine, allowed, kept), bound)
                if ends in seen:
                    continue
                seen.add(ends)
                cut = Cut.of(chain, machine, allowed, ends)
                yield cut, allowed
                if cut.reckoning.takes(Arrangement(), allowed):
                    break


def _charges(machine: Machine, limits: Limits, kept: float) -> Charges:
    return Charges(
        micro_batches=limits.micro_batches,
        load_s=limits.element_bytes / machine.load_bytes_per_s,
        gradient_s=limits.gradient_element_bytes / machine.gradient_bytes_per_s,
        kept_s=kept / machine.load_bytes_per_s,
    )


def _accumulations(most: int) -> list[int]:
    powers = [2**n for n in range(most.bit_length()) if 2**n < most]
    return [*powers, most]


def enough_bytes(
    chain: Chain, machine: Machine, limits: Limits, layer_ends: Sequence[int] = ()
) -> int:
    """Device memory with which there is a way, and not much more than the least."""
    single = replace(limits, micro_batches=1)
    device_bytes = max(_alone_bytes(piece_of([o]), limits) for o in chain.operations)
    while True:
        needs = _needs(chain, machine, replace(single, device_bytes=device_bytes), layer_ends)
        if needs:
            fewer = replace(single, device_bytes=min(needs))
            return min(needs) if _needs(chain, machine, fewer, layer_ends) else device_bytes
        device_bytes = device_bytes * 5 // 4


def _needs(chain: Chain, machine: Machine, limits: Limits, layer_ends: Sequence[int]) -> list[int]:
    """Device memory of the ways that fit."""
    return [
        cut.reckoning.memory(plain).total_bytes
        for places in _places(chain, limits, layer_ends)
        for cut, _ in _cuts(chain, machine, limits, places)
        for plain in (Arrangement(), offloaded(cut.reckoning))
        if cut.reckoning.takes(plain, limits)
    ]


def _refusal(chain: Chain, limits: Limits, enough_bytes: int) -> DeviceError:
    alone = [_alone_bytes(piece_of([operation]), limits) for operation in chain.operations]
    hungriest = max(range(len(alone)), key=alone.__getitem__)
    fits = alone[hungriest] <= limits.device_bytes
    what = ", and values between sub-models more than is left" if fits else " even alone"
    return DeviceError(
        f"{chain.operations[hungriest].name} needs {format_bytes(alone[hungriest])} of device "
        f"memory{what}; there are {format_bytes(limits.device_bytes)}, and "
        f"{_at_least(enough_bytes)} ({enough_bytes} bytes) would do, with 1 micro-batch per pass",
        _what_helps(limits),
    )


def _what_helps(limits: Limits) -> str:
    ways = ["fewer sequences in a micro-batch", "shorter sequences"]
    if limits.element_bytes > _SIXTEEN_BITS:
        ways.append("a precision of 16 bits")
    more = "more device memory: [device] memory in the peer file"
    return f"{more}; else it takes a run with {', '.join(ways[:-1])}, or {ways[-1]}"


def _at_least(size_bytes: int) -> str:
    """Rounded up, so that who gives as much gives enough."""
    for unit_bytes in (1, 2**10, 2**20, 2**30, 2**40):
        tenths = -(-10 * size_bytes // unit_bytes)
        if tenths < 10 * 1000:
            break
    return format_bytes(tenths * unit_bytes / 10)
