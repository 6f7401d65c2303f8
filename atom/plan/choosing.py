"""Choose how devices run a model: cut, micro-batches of a pass, and sub-models that stay.

Users need not set any of these, so a search finds them. For several numbers of micro-batches per
pass it tries a few good cuts (`cuts.py`), and for every cut a few ways to use the remaining memory
(`residency.py`). Several devices work independently, or in groups of any size that divides their
number. The schedules of the candidates that fit are timed event by event, as the engine would
execute them. Most micro-batches per second win; among nearly equal candidates, most elements
trained on the device, and then the shortest pass.

Cuts fall where layers end, and inside layers that do not fit the device by themselves. Other
positions make the search longer and the plan hardly better, so they are tried only if no such cut
fits. If no cut at all fits, matrices are split (`atom.graph.matrix_parts`).
"""

import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from itertools import accumulate, pairwise

from atom.base.errors import DeviceError
from atom.base.units import format_bytes
from atom.graph.chain import Chain, Machine
from atom.graph.costs.seconds import Profile
from atom.graph.layers import layer_ends, layers_of
from atom.graph.matrix_parts import Parts, in_parts, most_parts
from atom.graph.traced import Graph
from atom.plan.choice import Choice
from atom.plan.cuts import Ends, fastest_cut, parts_of
from atom.plan.memory import Cut, Limits, alone_bytes, piece_of
from atom.plan.residency import arrangements, offloaded
from atom.swap.schedule import Arrangement

NARROW = 1, 2
"""Widths of cuts inside a layer that are tried before all others.

The width of a cut is the size of the values across it, given here as a multiple of the width of the
narrowest cut inside a layer.
"""
SMALLER = 0.8
"""Fraction of the largest operation's memory from which operations are split together with it.

Splitting only the largest one would leave the next largest ones in the way.
"""
NEARLY = 0.01
"""Relative difference in seconds per micro-batch below which candidates count as equally fast.

Other criteria then decide, such as the length of a pass.
"""
ONLY_GROUP = 0.05
"""Relative advantage in speed that one group of all devices needs over several groups.

If all devices are one group, the failure of any device stops the peer's work.
"""
BOUNDARY_SHARE = 0.8
"""Fraction of the host memory not taken by the replica that offloaded values may use."""
_WHAT_HELPS = (
    "more device memory: [device] memory in the peer file; else it takes a run with fewer "
    "sequences in a micro-batch, shorter sequences, or, if it has more, a precision of 16 bits"
)


@dataclass(frozen=True)
class Question:
    """Input of the search: everything that a choice depends on."""

    chain: Chain
    machine: Machine
    limits: Limits
    layer_ends: tuple[int, ...] = ()
    """Positions at which layers end. Empty: cuts may fall at all legal positions."""
    graph: Graph | None = None
    chain_of: Callable[[Graph], Chain] | None = None
    """Function that returns the chain of a graph with split matrices. None: split no matrices."""
    matrix_parts: Parts = field(default_factory=dict)
    """Number of parts of each matrix that is split in `chain`."""
    step_micro_batches: int | None = None
    """Micro-batches of one optimizer step, on all devices together. None: form no groups.

    A pass of a group of n devices may have n times `limits.micro_batches`, but not more than the
    group's share of a step.
    """

    @classmethod
    def of(
        cls,
        graph: Graph,
        profile: Profile,
        device_bytes: int,
        micro_batches: int,
        host_left_bytes: int = -1,
        **limits: int,
    ) -> "Question":
        """Return the input for a graph, with the rates and seconds of its profile.

        Args:
            graph: The traced model.
            profile: Seconds of its layers, and rates of the link.
            device_bytes: Memory that may be used on each device.
            micro_batches: Most micro-batches of one pass.
            host_left_bytes: Host memory not taken by the replica. If negative, the replica does
                not fit, and offloaded values are not limited: the caller only reports that.
            limits: Other fields of `Limits`.
        """
        room = int(host_left_bytes * BOUNDARY_SHARE / limits.get("devices", 1))
        most = room if host_left_bytes >= 0 else None
        size = graph.parameter_dtype.itemsize
        bounds = Limits(device_bytes, size, micro_batches, most, **limits)
        ends = layer_ends(layers_of(graph))
        return cls(profile.chain, profile.link, bounds, ends, graph, profile.chain_of)

    def allowing(self, **limits: int) -> "Question":
        """Return this input with some fields of its `Limits` changed."""
        return replace(self, limits=replace(self.limits, **limits))


def choose(asked: Question) -> Choice:
    """Return the fastest choice that fits the device and the host.

    If the model itself requests recomputation (`torch.utils.checkpoint`), the search also tries to
    leave it out.

    Args:
        asked: Model, machine and limits.

    Raises:
        DeviceError: No choice fits. The message names the operation that needs most device memory,
            and an amount of device memory that would be enough.
    """
    return fastest(choose_each(asked).values())


def choose_each(asked: Question) -> dict[int, Choice]:
    """Return the fastest choice that fits for each size of a group: devices in the group → choice.

    Sizes for which no choice fits are absent.

    Args:
        asked: Model, machine and limits.

    Raises:
        DeviceError: No choice fits; see `choose`.
    """
    for each in _in_ever_more_parts(asked):
        for sets in _places(each):
            ways = defaultdict[int, list[Choice]](list)
            for way in (way for places in sets for way in _ways(each, places)):
                ways[way.group_devices].append(way)
            if ways:
                return {size: fastest(alike) for size, alike in ways.items()}
    raise _refusal(each)


def _in_ever_more_parts(asked: Question) -> Iterator[Question]:
    """Yield the question, then variants with matrices in more and more parts while that helps."""
    most = {} if asked.graph is None else most_parts(asked.graph)
    while True:
        yield asked
        if (parts := _more_parts(asked, most)) is None:
            return
        assert asked.graph
        assert asked.chain_of
        cut = in_parts(asked.graph, parts)
        asked = replace(
            # Device memory is too scarce to train anything on the device.
            asked.allowing(trained_element_bytes=0),
            chain=asked.chain_of(cut),
            layer_ends=layer_ends(layers_of(cut)),
            matrix_parts=parts,
        )


def _more_parts(asked: Question, most: Mapping[str, int]) -> dict[str, int] | None:
    """Return a larger number of parts for matrices of the operations that need too much memory.

    These operations do not fit the device by themselves, or need nearly as much as the largest
    operation (`SMALLER`). None: splitting a matrix cannot help the largest operation.

    Args:
        asked: Model, machine and limits, with the present number of parts.
        most: Largest number of parts by matrix.
    """
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
    """Return the best of some choices.

    Choices that are nearly as fast as the fastest (`NEARLY`) count as equal. Among them the order
    of preference is: more elements trained on the device; if there are any, more micro-batches per
    pass; smaller groups; shorter passes; less host memory; less device memory. Only choices whose
    lower bound is good enough are timed, because timing takes long.
    """
    timed, enough_s = list[Choice](), math.inf
    for way in sorted(ways, key=lambda way: way.least_per_micro_batch_s):
        if way.least_per_micro_batch_s > enough_s:
            break
        timed.append(way)
        enough_s = min(enough_s, (1 + NEARLY) * _cost_s(way))
    good = [way for way in timed if _cost_s(way) <= enough_s]

    def worth(way: Choice) -> tuple[float, ...]:
        # Each pass adds gradients of parameters trained on the device there, so prefer few passes.
        fewer = -way.micro_batches if way.trained_elements else 0
        memory = way.host_bytes, way.memory.total_bytes
        # If one device of a group fails, the whole group stops, so prefer small groups.
        return -way.trained_elements, fewer, way.group_devices, way.timeline.seconds, *memory

    return min(good, key=worth)


def _cost_s(way: Choice) -> float:
    """Return the seconds per micro-batch by which choices are compared.

    A single group of all devices counts as slower than it is (see `ONLY_GROUP`).
    """
    is_only = way.groups == 1 < way.devices
    return way.seconds_per_micro_batch * (1 + ONLY_GROUP if is_only else 1)


def _places(asked: Question) -> Iterator[tuple[Ends, ...]]:
    """Yield sets of positions where cuts may fall, more and more of them.

    The caller stops as soon as a cut fits. All sets of one tuple are tried together: the search for
    cuts minimises seconds and not memory, so fewer positions may give a cut that needs less memory.
    """
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
    """Return per position the bytes of values that are made before it and used after it."""
    change = [0] * (len(chain.operations) + 2)
    for value in chain.values:
        if value.made_by >= 0 and not value.shared:
            change[value.made_by + 1] += value.size_bytes
            change[value.last_used_by + 1] -= value.size_bytes
    return list(accumulate(change))


def _ways(asked: Question, places: Ends) -> Iterator[Choice]:
    """Yield all candidates with cuts at some of the positions that fit the device and the host."""
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
    """Yield each size of a group, with the most micro-batches of a pass of such a group."""
    devices, most, step = asked.limits.devices, asked.limits.micro_batches, asked.step_micro_batches
    yield 1, most
    if step is not None:
        for size in (size for size in range(2, devices + 1) if devices % size == 0):
            yield size, min(most * size, -(-step * size // devices))


def _cuts(asked: Question, places: Ends, least: int = 1) -> Iterator[Cut]:
    """Yield good cuts for several numbers of micro-batches per pass.

    Each sub-model fits by itself. A cut as a whole may still need too much memory, because values
    between sub-models are not bounded.

    Args:
        asked: Model, machine and limits.
        places: Positions where cuts may fall.
        least: Fewest micro-batches of a pass, unless the limits allow only fewer.
    """
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
    """Return an amount of device memory, in bytes, that is enough with one micro-batch per pass.

    It is not much more than the least possible amount. Matrices are split only if no choice fits
    the present device memory otherwise.
    """
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
    """Return the device memory of each cut that fits, with plain and with offloaded values."""
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
    scale, unit = (1000, "kB") if enough < 10**6 else (10**6, "MB")
    what = ", and values between sub-models more than is left" if fits else " even alone"
    return DeviceError(
        f"{hungriest} needs {format_bytes(need_bytes)} of device "
        f"memory{what}; there are {format_bytes(limits.device_bytes)}, and "
        f"{-(-enough // scale)} {unit} ({enough} bytes) would do, with 1 micro-batch per pass",
        _WHAT_HELPS,
    )
