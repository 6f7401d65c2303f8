"""Random models small enough to try everything on them."""

import random
from collections.abc import Iterator
from itertools import combinations

from atom.graph.chain import Chain, Machine, Operation, Value
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
