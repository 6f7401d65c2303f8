"""Random models small enough to try everything on them, and a second opinion on their memory."""

import random
from collections.abc import Iterator
from itertools import combinations

from atom.graph.chain import Chain, Machine, Operation, Value
from atom.plan.choice import Choice
from atom.plan.memory import Limits

MACHINE = Machine(load_bytes_per_s=1e6, gradient_bytes_per_s=1.5e6)


def random_chain(pick: random.Random, most: int = 14) -> Chain:
    """Two operations or more; ties, views, skips and forbidden cuts."""
    count = pick.randint(2, most)
    tied = {f"tied{number}": 16 * pick.randint(1, 4) for number in range(2)}
    operations = tuple(_operation(pick, index, tied) for index in range(count))
    values = []
    for maker in range(-1, count - 1):
        values.append(Value(pick.randint(1, 40) * 8, maker, maker + 1))
        if pick.random() < 0.3:
            values.append(Value(pick.randint(1, 40) * 8, maker, pick.randint(maker + 1, count - 1)))
    forbidden = frozenset(p for p in range(1, count) if pick.random() < 0.2)
    return Chain(operations, tuple(values), forbidden)


def _operation(pick: random.Random, index: int, tied: dict[str, int]) -> Operation:
    if pick.random() < 0.2:
        return Operation(f"view{index}", {}, 0.0, 0.0, 0, pick.choice((0, 64)))
    parameters = {name: size for name, size in tied.items() if pick.random() < 0.15}
    if pick.random() < 0.7:
        parameters[f"own{index}"] = 16 * pick.randint(1, 30)
    forward_s = pick.choice((1e-5, 1e-4, 1e-3)) * pick.randint(1, 9)
    return Operation(
        f"operation{index}",
        parameters,
        forward_s=forward_s,
        backward_s=2 * forward_s,
        working_bytes=8 * pick.randint(0, 100),
        transient_bytes=8 * pick.randint(0, 100),
    )


def every_cut(chain: Chain) -> Iterator[tuple[int, ...]]:
    """All legal ones: ends of their sub-models."""
    count = len(chain.operations)
    places = [p for p in range(1, count) if p not in chain.forbidden]
    for size in range(len(places) + 1):
        yield from ((*cut, count) for cut in combinations(places, size))


def layer_ends(chain: Chain, pick: random.Random) -> tuple[int, ...]:
    """Some legal positions, and the end."""
    count = len(chain.operations)
    legal = [p for p in range(1, count) if p not in chain.forbidden and pick.random() < 0.5]
    return (*legal, count)


def plenty(chain: Chain, limits: Limits) -> int:
    """Bytes with which everything can stay, cut or not."""
    elements = sum(sum(o.parameters.values()) for o in chain.operations)
    activations = sum(o.working_bytes + o.transient_bytes for o in chain.operations)
    values = sum(value.size_bytes for value in chain.values)
    per_element = 4 * limits.element_bytes + 8
    return per_element * elements + (limits.micro_batches + 1) * (activations + values)


def held_bytes(chain: Chain, choice: Choice) -> int:
    """Bytes at the peak, counted operation by operation: an upper bound of no less than needed."""
    arrangement, limits, ends = choice.arrangement, choice.cut.limits, choice.cut.ends
    element_bytes, resident, kept = limits.element_bytes, arrangement.resident, arrangement.kept
    spans = list(zip([0, *ends[:-1]], ends, strict=True))
    pieces = [chain.operations[a:b] for a, b in spans]
    names = [{k: v for o in p for k, v in o.parameters.items()} for p in pieces]
    elements = [sum(each.values()) for each in names]
    swapped = [elements[s] for s in range(len(pieces)) if s not in resident]
    held = arrangement.slots * max([0, *swapped]) * element_bytes
    held += sum(elements[s] for s in resident) * element_bytes
    held += 2 * max(elements) * 4
    if element_bytes == 4:  # sums that go on from one to the next
        sizes = {k: v for each in names for k, v in each.items()}
        held += sum(4 * v for k, v in sizes.items() if sum(k in each for each in names) > 1)
    for value in chain.values:
        home = [s for s, (a, b) in enumerate(spans) if a <= value.made_by < b]
        if not home or value.last_used_by >= ends[home[0]]:  # of the batch, or across a cut
            held += limits.micro_batches * value.size_bytes
    held += limits.micro_batches * sum(o.working_bytes for s in kept for o in pieces[s])
    at_work = []
    for s, piece in enumerate(pieces):
        whole = sum(o.working_bytes for o in piece) if s in kept else 0
        most = max(
            sum(below.working_bytes for below in piece[: i + 1]) + o.transient_bytes
            for i, o in enumerate(piece)
        )
        at_work.append(most - whole + elements[s] * element_bytes)
    return held + max(at_work)
