"""Chooses how a model goes through a device: cut, accumulation, slots, what stays.

Nobody should have to set any of these, so they are searched. For every number of micro-batches that
a pass may accumulate there are a few good cuts (`cuts.py`), and for every cut a few ways to spend
the memory that is left (`residency.py`). The schedule of each candidate that fits is timed event by
event, as the engine would carry it out; the one with most micro-batches per second wins, and among
equals the shortest pass. Cuts fall where layers end; other places are tried only where none of
those fits, fewer before more, until one fits; where that leaves no room for all micro-batches, the
next as well.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, pairwise

from atom.base.errors import DeviceError
from atom.base.units import format_bytes
from atom.graph.chain import Chain, Machine
from atom.placement.choice import Choice, Cut
from atom.placement.cuts import Charges, Ends, fastest_cut, parts_of
from atom.placement.memory import Limits, Piece, Reckoning, piece_of
from atom.placement.residency import arrangements, offloaded
from atom.swap.arrangement import Arrangement

KEPT = (0.001, 1.0, 1000.0)
"""Charges for a byte kept between sub-models, in the seconds in which the link carries one. The
first only decides between equals; the others are tried where its cut keeps too much."""
WIDTHS = (1, 2, 4, math.inf)
"""Times the narrowest legal cut: what may lie between sub-models where a layer has to be cut."""
NEARLY = 0.01
"""A pass that is this much slower per micro-batch, but shorter, is preferred."""
_WHAT_HELPS = (
    "more device memory: [device] memory in the peer file; else it takes a run with fewer "
    "sequences in a micro-batch, shorter sequences, or, if it has more, a precision of 16 bits"
)


@dataclass(frozen=True)
class Question:
    """Everything a choice depends on."""

    chain: Chain
    machine: Machine
    limits: Limits
    layer_ends: tuple[int, ...] = ()
    """Positions where layers end: cuts fall there, and within those layers alone that do not fit by
    themselves. Other positions make the search longer and the plan hardly better. Empty: cuts may
    fall anywhere."""

    def allowing(self, **limits: int) -> "Question":
        return replace(self, limits=replace(self.limits, **limits))


def choose(asked: Question) -> Choice:
    """The fastest way that fits.

    What the model itself checkpoints is computed again only where that pays: the chain that
    remembers is tried as well.

    Raises: DeviceError naming the operation that asks for most, and device memory that would do.
    """
    places = _places(asked)
    for tried in places:
        found = _fastest(asked, tried)
        if found is None:
            continue
        is_tight = found.micro_batches < asked.limits.micro_batches
        if is_tight and not set(tried) <= set(asked.layer_ends) and (more := next(places, None)):
            roomier = _fastest(asked, more, beyond=found.micro_batches)
            return min(
                (each for each in (found, roomier) if each is not None),
                key=lambda choice: choice.seconds_per_micro_batch,
            )
        return found
    raise _refusal(asked, enough_bytes(asked))


def _fastest(asked: Question, places: Ends, beyond: int = 0) -> Choice | None:
    """With cuts at `places`, and more micro-batches than `beyond` in a pass."""
    ways = list(_ways(asked, places, beyond))
    if (remembering := asked.chain.remembering) is not None:
        others = _ways(replace(asked, chain=remembering), places, beyond)
        ways += [(replace(cut, remembers=True), each) for cut, each in others]
    return _best(ways) if ways else None


_Way = tuple[Cut, Arrangement]


def _best(ways: Sequence[_Way]) -> Choice:
    """Only those are timed that may be among the fastest."""
    least_s = [cut.least_s(each) / cut.reckoning.limits.micro_batches for cut, each in ways]
    choices, enough_s = list[Choice](), math.inf
    for n in sorted(range(len(ways)), key=least_s.__getitem__):
        if least_s[n] > enough_s:
            break
        cut, arrangement = ways[n]
        choices.append(cut.timed(arrangement))
        enough_s = min(enough_s, (1 + NEARLY) * choices[-1].seconds_per_micro_batch)
    good = [c for c in choices if c.seconds_per_micro_batch <= enough_s]
    return min(good, key=lambda c: (c.timeline.seconds, c.host_bytes, c.memory.total_bytes))


def _places(asked: Question) -> Iterator[Ends]:
    """Where cuts may fall: more and more, for as long as there is no cut that fits."""
    count, forbidden = len(asked.chain.operations), asked.chain.forbidden
    legal = [*(p for p in range(1, count) if p not in forbidden), count]
    if asked.layer_ends:
        yield from dict.fromkeys(_within_layers(asked, legal))
    yield tuple(legal)


def _within_layers(asked: Question, legal: Sequence[int]) -> Iterator[Ends]:
    """Where layers end, and within those that do not fit alone where little crosses."""
    chain, limits, ends = asked.chain, asked.limits, asked.layer_ends
    crossing = _crossing_bytes(chain)
    narrowest = min((crossing[p] for p in legal if crossing[p]), default=0)
    inner = [
        position
        for begin, end in pairwise((0, *ends))
        if _alone_bytes(piece_of(chain.operations[begin:end]), limits) > limits.device_bytes
        for position in legal
        if begin < position < end
    ]
    for width in WIDTHS:
        narrow = (position for position in inner if crossing[position] <= width * narrowest)
        yield tuple(sorted({*ends, *narrow}))


def _crossing_bytes(chain: Chain) -> list[int]:
    """Per position, what a cut there parts from a later user."""
    change = [0] * (len(chain.operations) + 2)
    for value in chain.values:
        if value.made_by >= 0 and not value.shared:
            change[value.made_by + 1] += value.size_bytes
            change[value.last_used_by + 1] -= value.size_bytes
    return list(accumulate(change))


def _alone_bytes(piece: Piece, limits: Limits) -> int:
    return Reckoning([piece], limits).bytes_at_work(Arrangement())


def _ways(asked: Question, places: Ends, beyond: int) -> Iterator[_Way]:
    """All that fit, with more micro-batches than `beyond` in a pass."""
    for cut in _cuts(asked, places, beyond):
        yield from ((cut, each) for each in arrangements(cut.reckoning))


def _cuts(asked: Question, places: Ends, beyond: int = 0) -> Iterator[Cut]:
    """Good ones, each with the micro-batches of a pass that it is good for. Some keep too much."""
    limits, most_bytes = asked.limits, asked.limits.device_bytes
    parts = parts_of(asked.chain, places, most_bytes, lambda piece: _alone_bytes(piece, limits))
    if parts is None:
        return
    for micro_batches in _accumulations(limits.micro_batches, beyond):
        of, seen = asked.allowing(micro_batches=micro_batches), set[Ends]()
        for bound in parts.bounds(most_bytes):
            for kept in KEPT:
                ends = fastest_cut(parts, _charges(of, kept), bound)
                if ends in seen:
                    continue
                seen.add(ends)
                cut = Cut.of(of.chain, of.machine, of.limits, ends)
                yield cut
                if cut.reckoning.takes(Arrangement()):
                    break


def _charges(asked: Question, kept: float) -> Charges:
    limits, machine = asked.limits, asked.machine
    return Charges(
        micro_batches=limits.micro_batches,
        load_s=limits.element_bytes / machine.load_bytes_per_s,
        gradient_s=limits.gradient_element_bytes / machine.gradient_bytes_per_s,
        kept_s=kept / machine.load_bytes_per_s,
    )


def _accumulations(most: int, beyond: int) -> list[int]:
    powers = [2**n for n in range(most.bit_length()) if beyond < 2**n < most]
    return [*powers, most]


def enough_bytes(asked: Question) -> int:
    """Device memory with which there is a way, and not much more than the least."""
    operations, limits = asked.chain.operations, asked.limits
    device_bytes = max(_alone_bytes(piece_of([operation]), limits) for operation in operations)
    single = asked.allowing(micro_batches=1)
    while True:
        needs = _needs(single.allowing(device_bytes=device_bytes))
        if needs:
            fewer = min(needs)
            return fewer if _needs(single.allowing(device_bytes=fewer)) else device_bytes
        device_bytes = device_bytes * 5 // 4


def _needs(asked: Question) -> list[int]:
    """Device memory of the ways that fit."""
    return [
        cut.reckoning.memory(plain).total_bytes
        for places in _places(asked)
        for cut in _cuts(asked, places)
        for plain in (Arrangement(), offloaded(cut.reckoning))
        if cut.reckoning.takes(plain)
    ]


def _refusal(asked: Question, enough_bytes: int) -> DeviceError:
    operations, limits = asked.chain.operations, asked.limits
    alone = [_alone_bytes(piece_of([operation]), limits) for operation in operations]
    hungriest = max(range(len(alone)), key=alone.__getitem__)
    fits = alone[hungriest] <= limits.device_bytes
    what = ", and values between sub-models more than is left" if fits else " even alone"
    return DeviceError(
        f"{operations[hungriest].name} needs {format_bytes(alone[hungriest])} of device "
        f"memory{what}; there are {format_bytes(limits.device_bytes)}, and "
        f"{_at_least(enough_bytes)} ({enough_bytes} bytes) would do, with 1 micro-batch per pass",
        _WHAT_HELPS,
    )


def _at_least(size_bytes: int) -> str:
    """Rounded up, so that who gives as much gives enough."""
    for unit_bytes in (1, 2**10, 2**20, 2**30, 2**40):
        tenths = -(-10 * size_bytes // unit_bytes)
        if tenths < 10 * 1000:
            break
    return format_bytes(tenths * unit_bytes / 10)
