"""Chooses how a model goes through a device: cut, accumulation, what stays.

Nobody should have to set any of these, so they are searched. For every number of micro-batches that
a pass may accumulate there are a few good cuts (`cuts.py`), and for every cut a few ways to spend
the memory that is left (`residency.py`). Several devices work each for itself, or in groups of any
size that divides their number. The schedule of each candidate that fits is timed event by
event, as the engine would carry it out; the one with most micro-batches per second wins, and among
equals the one that trains most on the device, then the shortest pass. Cuts fall where layers end,
and within those layers alone that do not fit by themselves. Other places make the search longer and
the plan hardly better: they are tried only where none of those fits. Where none at all does,
matrices are cut in parts (`atom.graph.matrix_parts`).
"""

import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from itertools import accumulate, pairwise

from atom.base.errors import DeviceError
from atom.base.units import format_bytes
from atom.graph.chain import Chain, Machine
from atom.graph.layers import layer_ends, layers_of
from atom.graph.matrix_parts import Parts, in_parts, most_parts
from atom.graph.profile.seconds import Profile
from atom.graph.traced import Graph
from atom.placement.choice import Choice
from atom.placement.cuts import Ends, fastest_cut, parts_of
from atom.placement.memory import Cut, Limits, alone_bytes, piece_of
from atom.placement.residency import arrangements, offloaded
from atom.swap.arrangement import Arrangement

NARROW = 1, 2
"""Times the narrowest cut within a layer: what may lie between sub-models where a layer is cut, if
that makes the model fit."""
SMALLER = 0.8
"""Operations that need more than this share of the hungriest one's memory are cut with it."""
NEARLY = 0.01
"""A pass that is this much slower per micro-batch, but shorter, is preferred."""
ONLY_GROUP = 0.05
"""One group of all devices must be so much faster than several groups."""
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
    """Positions where layers end. Empty: cuts may fall anywhere."""
    graph: Graph | None = None
    chain_of: Callable[[Graph], Chain] | None = None
    """As a profile's. None: no matrix of the graph is cut."""
    matrix_parts: Parts = field(default_factory=dict)
    """Into which matrices of the graph are cut, of which this is the chain."""
    step_micro_batches: int | None = None
    """What all devices have of a step together. A group may take as many times more into a pass as
    the limits allow as it has devices. None: no groups."""

    @classmethod
    def of(cls, graph: Graph, profile: Profile, limits: Limits) -> "Question":
        ends = layer_ends(layers_of(graph))
        return cls(profile.chain, profile.link, limits, ends, graph, profile.chain_of)

    def allowing(self, **limits: int) -> "Question":
        return replace(self, limits=replace(self.limits, **limits))


def choose(asked: Question) -> Choice:
    """The fastest way that fits.

    What the model itself checkpoints is computed again only where that pays: the chain that
    remembers is tried as well.

    Raises: DeviceError naming the operation that asks for most, and device memory that would do.
    """
    return fastest(choose_each(asked).values())


def choose_each(asked: Question) -> dict[int, Choice]:
    """The fastest way that fits with groups of so many devices, of each size where there is one.
    Raises: as `choose`."""
    for each in _in_ever_more_parts(asked):
        for sets in _places(each):
            ways = defaultdict[int, list[Choice]](list)
            for way in (way for places in sets for way in _ways(each, places)):
                ways[way.group_devices].append(way)
            if ways:
                return {size: fastest(alike) for size, alike in ways.items()}
    raise _refusal(each)


def _in_ever_more_parts(asked: Question) -> Iterator[Question]:
    """As it is; then with matrices in ever more parts, for as long as that helps."""
    most = {} if asked.graph is None else most_parts(asked.graph)
    while True:
        yield asked
        if (parts := _more_parts(asked, most)) is None:
            return
        assert asked.graph
        assert asked.chain_of
        cut = in_parts(asked.graph, parts)
        asked = replace(
            # Nothing is trained there: memory is short.
            asked.allowing(trained_element_bytes=0),
            chain=asked.chain_of(cut),
            layer_ends=layer_ends(layers_of(cut)),
            matrix_parts=parts,
        )


def _more_parts(asked: Question, most: Mapping[str, int]) -> dict[str, int] | None:
    """Of the matrices of operations that do not fit alone, and of those that need most. None: what
    needs most cannot be cut, or not so that it helps."""
    limits, parts = asked.limits, dict(asked.matrix_parts)
    alone = [(alone_bytes(piece_of([each]), limits), each) for each in asked.chain.operations]
    most_bytes = max(need_bytes for need_bytes, _ in alone)
    wanted_bytes = min(limits.device_bytes, int(SMALLER * most_bytes))
    for need_bytes, operation in alone:
        if need_bytes <= wanted_bytes:
            continue
        held = ((elements, name) for name, elements in operation.parameters.items())
        elements, part = max(held, default=(0, ""))
        name = part if part in most else part.rpartition("[")[0]
        count = asked.matrix_parts.get(name, 1)
        matrix = replace(operation, parameters={part: elements}, working_bytes=0, transient_bytes=0)
        matrix_bytes = alone_bytes(piece_of([matrix]), limits)
        if count < most.get(name, 1) and 2 * matrix_bytes > need_bytes:
            least = -(-count * matrix_bytes // max(wanted_bytes, 1))
            parts[name] = min(max(count + 1, count * 5 // 4, least), most[name])
        elif need_bytes == most_bytes:
            return None
    return parts


def fastest(ways: Iterable[Choice]) -> Choice:
    """Only those are timed that may be among the fastest."""
    timed, enough_s = list[Choice](), math.inf
    for way in sorted(ways, key=lambda way: way.least_per_micro_batch_s):
        if way.least_per_micro_batch_s > enough_s:
            break
        timed.append(way)
        enough_s = min(enough_s, (1 + NEARLY) * _cost_s(way))
    good = [way for way in timed if _cost_s(way) <= enough_s]

    def worth(way: Choice) -> tuple[float, ...]:
        # What is trained there is summed there once a pass, beside the computing: few passes then.
        fewer = -way.micro_batches if way.trained_elements else 0
        memory = way.host_bytes, way.memory.total_bytes
        # A group stands and falls together.
        return -way.trained_elements, fewer, way.group_devices, way.timeline.seconds, *memory

    return min(good, key=worth)


def _cost_s(way: Choice) -> float:
    """Of a micro-batch. The only group of several devices falls with any of them: it has to be
    worth that."""
    is_only = way.groups == 1 < way.devices
    return way.seconds_per_micro_batch * (1 + ONLY_GROUP if is_only else 1)


def _places(asked: Question) -> Iterator[tuple[Ends, ...]]:
    """Where cuts may fall: more and more, for as long as there is no cut that fits. Sets of places
    that are tried together: the programme minds seconds, so fewer places may take less memory."""
    chain, ends = asked.chain, asked.layer_ends
    count = len(chain.operations)
    legal = (*(p for p in range(1, count) if p not in chain.forbidden), count)
    if ends:
        inner = [
            position
            for begin, end in pairwise((0, *ends))
            if alone_bytes(piece_of(chain.operations[begin:end]), asked.limits)
            > asked.limits.device_bytes
            for position in legal
            if begin < position < end
        ]
        crossing = _crossing_bytes(chain)
        least = min((crossing[p] for p in inner if crossing[p]), default=0)
        few = ([p for p in inner if crossing[p] <= width * least] for width in NARROW)
        narrow = tuple(dict.fromkeys(tuple(sorted({*ends, *more})) for more in few))
        yield from dict.fromkeys([(ends,), narrow, (tuple(sorted({*ends, *inner})),)])
    yield (legal,)


def _crossing_bytes(chain: Chain) -> list[int]:
    """Per position, what a cut there parts from a later user."""
    change = [0] * (len(chain.operations) + 2)
    for value in chain.values:
        if value.made_by >= 0 and not value.shared:
            change[value.made_by + 1] += value.size_bytes
            change[value.last_used_by + 1] -= value.size_bytes
    return list(accumulate(change))


def _ways(asked: Question, places: Ends) -> Iterator[Choice]:
    """All that fit."""
    chain, remembering = asked.chain, asked.chain.remembering
    for each in (chain,) if remembering is None else (chain, remembering):
        for devices, most in _group_sizes(asked):
            allowed = replace(asked, chain=each).allowing(micro_batches=most)
            for cut in _cuts(allowed, places, least=devices):
                parts = asked.matrix_parts
                cut = replace(cut, remembers=each is remembering, matrix_parts=parts)
                if devices == 1 or len(set(cut.on(Arrangement(devices=devices)))) == devices:
                    for arrangement in arrangements(cut, devices):
                        yield Choice(cut, arrangement)


def _group_sizes(asked: Question) -> Iterator[tuple[int, int]]:
    """With the most micro-batches that a pass of such a group may accumulate."""
    devices, most, step = asked.limits.devices, asked.limits.micro_batches, asked.step_micro_batches
    yield 1, most
    if step is not None:
        for size in (size for size in range(2, devices + 1) if devices % size == 0):
            yield size, min(most * size, -(-step * size // devices))


def _cuts(asked: Question, places: Ends, least: int = 1) -> Iterator[Cut]:
    """Good ones, each with the micro-batches of a pass that it is good for: `least` or more, or
    all. Some keep too much."""
    limits, machine = asked.limits, asked.machine
    parts = parts_of(asked.chain, places, limits)
    if parts is None:
        return
    most = limits.micro_batches
    fewer = (2**n for n in range(most.bit_length()) if least <= 2**n < most)
    for micro_batches in (*fewer, most):
        allowed = replace(limits, micro_batches=micro_batches)
        bounds = parts.bounds(limits.device_bytes)
        found = (fastest_cut(parts, machine, allowed, bound) for bound in bounds)
        for ends in dict.fromkeys(found):
            yield Cut.of(asked.chain, machine, allowed, ends)


def enough_bytes(asked: Question) -> int:
    """Device memory with which there is a way, and not much more than the least. Matrices are cut
    only if there is none with what there is."""
    for single in _in_ever_more_parts(asked.allowing(micro_batches=1)):
        if single.graph is None or _needs(single):
            break
    operations = single.chain.operations
    device_bytes = max(alone_bytes(piece_of([each]), single.limits) for each in operations)
    while not (needs := _needs(single.allowing(device_bytes=device_bytes))):
        device_bytes = device_bytes * 5 // 4
    fewer = min(needs)
    return fewer if _needs(single.allowing(device_bytes=fewer)) else device_bytes


def _needs(asked: Question) -> list[int]:
    """Device memory of the ways that fit."""
    return [
        cut.memory(plain).total_bytes
        for sets in _places(asked)
        for places in sets
        for cut in _cuts(asked, places)
        for plain in (Arrangement(), offloaded(cut))
        if cut.fits(plain)
    ]


def _refusal(asked: Question) -> DeviceError:
    limits, enough = asked.limits, enough_bytes(asked)
    alone = [(alone_bytes(piece_of([each]), limits), each.name) for each in asked.chain.operations]
    need_bytes, hungriest = max(alone, key=lambda pair: pair[0])
    fits = need_bytes <= limits.device_bytes
    what = ", and values between sub-models more than is left" if fits else " even alone"
    return DeviceError(
        f"{hungriest} needs {format_bytes(need_bytes)} of device "
        f"memory{what}; there are {format_bytes(limits.device_bytes)}, and "
        f"{-(-enough // 2**20)} MiB ({enough} bytes) would do, with 1 micro-batch per pass",
        _WHAT_HELPS,
    )
