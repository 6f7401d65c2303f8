"""Cuts for a device that is too small for the values between sub-models: these wait on the host.

The partitioner counts what lies between sub-models for all micro-batches. Here it is asked about a
chain without such values. What they still take on the device (those that are needed soon, and the
ring through which the others come back) depends on the cut, so it is reckoned afterwards, and as
much is reserved in the next question. Cuts at which much lies between sub-models are ruled out in
steps, because all places of the ring are as large as the largest.
"""

from bisect import bisect_left
from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import accumulate

from atom.graph.partition import (
    Chain,
    Machine,
    Terms,
    find_partition,
    smallest_device_bytes,
)
from atom.plan.memory import Reckoning
from atom.plan.pieces import pieces_of
from atom.swap.arrangement import Arrangement
from atom.swap.schedule import Shape

_WIDTHS = (1, 2, 4)
"""Of the narrowest legal cut: what may lie between sub-models."""
_QUESTIONS = 4
_STEP = 1.6

Ends = tuple[int, ...]


def offloaded(sub_models: int) -> Arrangement:
    """All that is worth it waits on the host."""
    return Arrangement(offloaded=frozenset(range(sub_models)))


def waiting(shape: Shape) -> list[int]:
    """Sub-models whose values, or some of them, wait on the host during a training pass."""
    gone = (item for stop in shape.training_stops for item in stop.leaving)
    return sorted({shape.crossings[item.crossing].made_by for item in gone})


def fewest_offloaded(shape: Shape, takes: Callable[[Arrangement], bool]) -> Arrangement:
    """The shape's arrangement, which `takes` takes, with the values of as few sub-models on the
    host as it will take. Those right before the turn stay first: they have the least time for
    their way there and back."""
    makers = waiting(shape)

    def with_first(count: int) -> Arrangement:
        return replace(shape.arrangement, offloaded=frozenset(makers[:count]))

    if takes(with_first(0)):  # a few may take more, with the ring that they come back through
        return with_first(0)
    few = bisect_left(range(len(makers)), True, key=lambda count: takes(with_first(count)))
    return with_first(few) if few < len(makers) else shape.arrangement


def can_offload(chain: Chain) -> bool:
    """Is there a value that is worth moving?"""
    least = Arrangement().least_offloaded_bytes
    values = (v for v in chain.values if v.made_by >= 0 and not v.shared)
    return any(value.size_bytes >= least for value in values)


def offloaded_cuts(chain: Chain, machine: Machine, terms: Terms) -> Iterator[Ends]:
    """Cuts that fit `terms` when all that is worth it waits on the host. Some may be equal."""
    for bare in _variants(chain):
        least = smallest_device_bytes(bare, machine, terms)
        for device_bytes in (least, int(_STEP * least), int(_STEP**2 * least)):
            if device_bytes < terms.device_bytes:
                cut = find_partition(bare, machine, replace(terms, device_bytes=device_bytes))
                if cut is not None and _need(chain, terms, cut.ends) <= terms.device_bytes:
                    yield cut.ends
        yield from _fastest(chain, bare, machine, terms)


def least_offloaded_bytes(chain: Chain, machine: Machine, terms: Terms) -> int:
    """Device memory with which `offloaded_cuts` certainly finds one."""
    needs = []
    for bare in _variants(chain):
        least = replace(terms, device_bytes=smallest_device_bytes(bare, machine, terms))
        cut = find_partition(bare, machine, least)
        assert cut is not None, "the least is enough"
        needs.append(max(_need(chain, terms, cut.ends), least.device_bytes + 1))
    return min(needs)


def _fastest(chain: Chain, bare: Chain, machine: Machine, terms: Terms) -> Iterator[Ends]:
    """The best cut into what is left beside the values that it leaves on the device."""
    for _ in range(_QUESTIONS):
        cut = find_partition(bare, machine, terms)
        if cut is None:
            return
        too_much = _need(chain, terms, cut.ends) - terms.device_bytes
        if too_much <= 0:
            yield cut.ends
            return
        terms = replace(terms, reserved_bytes=terms.reserved_bytes + too_much)


def _need(chain: Chain, terms: Terms, ends: Ends) -> int:
    pieces = pieces_of(chain, ends)
    reckoning = Reckoning(pieces, terms.micro_batches, terms.element_bytes)
    return reckoning.memory(offloaded(len(pieces))).total_bytes


def _variants(chain: Chain) -> Iterator[Chain]:
    """Without values between sub-models; then also without wide cuts."""
    values = tuple(v for v in chain.values if v.made_by < 0 or v.shared)
    bare = replace(chain, values=values, remembering=None)
    yield bare
    crossing = _crossing_bytes(chain)
    legal = [p for p in range(1, len(chain.operations)) if p not in chain.forbidden]
    narrowest = min((crossing[p] for p in legal if crossing[p]), default=0)
    seen = {chain.forbidden}
    for width in _WIDTHS:
        wide = frozenset(p for p in legal if crossing[p] > width * narrowest)
        if (forbidden := chain.forbidden | wide) not in seen:
            seen.add(forbidden)
            yield replace(bare, forbidden=forbidden)


def _crossing_bytes(chain: Chain) -> list[int]:
    """Per position, what a cut there parts from a later user."""
    change = [0] * (len(chain.operations) + 2)
    for value in chain.values:
        if value.made_by >= 0 and not value.shared:
            change[value.made_by + 1] += value.size_bytes
            change[value.last_used_by + 1] -= value.size_bytes
    return list(accumulate(change))
