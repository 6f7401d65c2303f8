"""Random problems for the partitioner, and a judge that looks at every legal cut."""

import itertools
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from atom.graph.partition import (
    Chain,
    Machine,
    Operation,
    Partition,
    Terms,
    Value,
    cost_of,
    smallest_device_bytes,
)

MICROSECOND = 1e-6


@dataclass(frozen=True)
class Problem:
    chain: Chain
    machine: Machine
    terms: Terms


def random_problem(seed: int, most_operations: int = 9) -> Problem:
    """Ties, skips, views, forbidden cuts, one to eight micro-batches, two to four slots; memory
    from just enough to plenty. All times are whole microseconds, so equal means equal."""
    pick = random.Random(seed)
    return _problem(pick, random_chain(pick, pick.randint(1, most_operations)))


def random_repetition(seed: int, most_blocks: int = 5) -> Problem:
    """As `random_problem`, but a model as models are: a few operations, again and again."""
    pick = random.Random(seed)
    head, block, tail = (random_chain(pick, pick.randint(1, 2)) for _ in range(3))
    chains = [head, *[block] * pick.randint(2, most_blocks), tail]
    return _problem(pick, joined(chains, pick.randint(0, 3) * 8))


def joined(chains: Sequence[Chain], between_bytes: int) -> Chain:
    """One after the other, each but the last handing a value to the next."""
    operations, values, forbidden = list[Operation](), list[Value](), set[int]()
    for number, chain in enumerate(chains):
        start = len(operations)
        if number:
            values.append(Value(between_bytes, start - 1, start))
        forbidden |= {start + p for p in chain.forbidden}
        values += [
            Value(v.size_bytes, start + v.made_by, start + v.last_used_by)
            for v in chain.values
            if v.made_by >= 0
        ]
        operations += [
            replace(o, parameters={f"{name} {number}": n for name, n in o.parameters.items()})
            for o in chain.operations
        ]
    return Chain(tuple(operations), tuple(values), frozenset(forbidden))


def _problem(pick: random.Random, chain: Chain) -> Problem:
    rates = (1e6, 2e6, 4e6, 16e6)
    machine = Machine(pick.choice(rates), pick.choice(rates))
    terms = Terms(
        device_bytes=0,
        micro_batches=pick.randint(1, 8),
        element_bytes=pick.choice((2, 4)),
        slots=pick.randint(2, 4),
        gradient_slots=pick.randint(1, 3),
        reserved_bytes=pick.randint(0, 100),
    )
    spare = pick.choice((0, 0, 1, 7, 20, 50, 200, 1000, 5000))
    smallest = smallest_device_bytes(chain, machine, terms)
    return Problem(chain, machine, replace(terms, device_bytes=smallest + spare))


def random_chain(pick: random.Random, count: int) -> Chain:
    tied = {f"tied{k}": pick.randint(1, 40) * 4 for k in range(2)}
    operations = tuple(_operation(pick, index, tied) for index in range(count))
    forbidden = frozenset(p for p in range(1, count) if pick.random() < 0.15)
    return Chain(operations, tuple(_values(pick, count)), forbidden)


def _operation(pick: random.Random, index: int, tied: dict[str, int]) -> Operation:
    if pick.random() < 0.2:
        return Operation(f"view{index}", {}, 0.0, 0.0, 0, pick.choice((0, 0, 5)))
    parameters = {name: size for name, size in tied.items() if pick.random() < 0.15}
    if pick.random() < 0.6:
        parameters[f"own{index}"] = pick.randint(1, 60) * 4
    return Operation(
        f"operation{index}",
        parameters,
        forward_s=pick.randint(0, 150) * MICROSECOND,
        backward_s=pick.randint(0, 300) * MICROSECOND,
        working_bytes=pick.randint(0, 200),
        transient_bytes=pick.randint(0, 200),
    )


def _values(pick: random.Random, count: int) -> Iterator[Value]:
    for maker in range(-1, count - 1):
        yield Value(pick.randint(0, 6) * 8, maker, maker + 1)
        if pick.random() < 0.3:
            yield Value(pick.randint(1, 6) * 8, maker, pick.randint(maker + 1, count - 1))


def every_partition(problem: Problem) -> Iterator[Partition]:
    """Every legal cut, fitting or not."""
    count = len(problem.chain.operations)
    places = [p for p in range(1, count) if p not in problem.chain.forbidden]
    for size in range(len(places) + 1):
        for cut in itertools.combinations(places, size):
            yield cost_of(problem.chain, problem.machine, problem.terms, (*cut, count))
