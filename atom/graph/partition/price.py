"""What a given partition costs, straight from the definitions: no tables, no short cuts.

Independent of the solvers on purpose: it judges their answers, and any other cut's.
"""

from collections.abc import Sequence
from itertools import pairwise

from atom.graph.partition.chain import Chain, Machine, Operation, Partition, Terms
from atom.graph.partition.figures import GRADIENT_ELEMENT_BYTES, held_bytes, shared_bytes


def cost_of(chain: Chain, machine: Machine, terms: Terms, ends: Sequence[int]) -> Partition:
    """Seconds, cut bytes and device bytes of sub-models [ends[s-1], ends[s]). The device bytes
    may exceed the terms'.

    Raises: ValueError for ends that do not ascend to the chain's end or stand at a forbidden place.
    """
    _check(chain, ends)
    pieces = list(pairwise([0, *ends]))
    cut_bytes = sum(_out_bytes(chain, begin, end) for begin, end in pieces)
    batch_bytes = sum(value.size_bytes for value in chain.values if value.made_by < 0)
    elements = [_elements(chain.operations[begin:end]) for begin, end in pieces]
    activations = [_activation_bytes(chain.operations[begin:end]) for begin, end in pieces]
    return Partition(
        ends=tuple(ends),
        seconds=_seconds(chain, machine, terms, pieces, elements),
        cut_bytes=cut_bytes,
        device_bytes=held_bytes(terms) * max(elements)
        + max(activations)
        + terms.micro_batches * (cut_bytes + batch_bytes)
        + terms.reserved_bytes
        + shared_bytes(chain),
    )


def _check(chain: Chain, ends: Sequence[int]) -> None:
    count = len(chain.operations)
    ascending = all(a < b for a, b in pairwise([0, *ends]))
    if not ends or not ascending or ends[-1] != count:
        raise ValueError(f"{list(ends)} does not cut {count} operations")
    if illegal := sorted(chain.forbidden.intersection(ends[:-1])):
        raise ValueError(f"no sub-model may begin at operation {illegal[0]}")


def _seconds(
    chain: Chain,
    machine: Machine,
    terms: Terms,
    pieces: Sequence[tuple[int, int]],
    elements: Sequence[int],
) -> float:
    micro, last = terms.micro_batches, len(pieces) - 1
    forward = [micro * sum(o.forward_s for o in chain.operations[a:b]) for a, b in pieces]
    backward = [micro * sum(o.backward_s for o in chain.operations[a:b]) for a, b in pieces]
    again = [f + b for f, b in zip(forward, backward, strict=True)]
    load = [e * terms.element_bytes / machine.load_bytes_per_s for e in elements]
    out = [e * GRADIENT_ELEMENT_BYTES / machine.gradient_bytes_per_s for e in elements]
    seconds = load[0] + again[last] + out[0]
    for s in range(last):
        seconds += forward[s] + again[s]
        seconds += max(0.0, load[s + 1] - forward[s])
        seconds += max(0.0, out[s + 1] - again[s])
        if s <= last - terms.slots:
            seconds += max(0.0, load[s] - again[s + 1])
    return seconds


def _elements(operations: Sequence[Operation]) -> int:
    held: dict[str, int] = {}
    for operation in operations:
        held.update(operation.parameters)
    return sum(held.values())


def _activation_bytes(operations: Sequence[Operation]) -> int:
    working = sum(operation.working_bytes for operation in operations)
    return working + max(operation.transient_bytes for operation in operations)


def _out_bytes(chain: Chain, begin: int, end: int) -> int:
    return sum(
        v.size_bytes
        for v in chain.values
        if begin <= v.made_by < end <= v.last_used_by and not v.shared
    )
