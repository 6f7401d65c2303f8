"""One function, two solvers; and the refusal, in words, of what cannot be cut."""

from dataclasses import replace
from typing import Literal

from atom.base.errors import DeviceError
from atom.base.units import format_bytes
from atom.graph.partition.algorithm_one import search as search_exhaustively
from atom.graph.partition.budget import smallest_budget_bytes
from atom.graph.partition.chain import Chain, Machine, Partition, Terms
from atom.graph.partition.dynamic import STANDARD_EFFORT, search
from atom.graph.partition.figures import Figures, figures_of
from atom.graph.partition.price import cost_of

Solver = Literal["dynamic", "exhaustive"]

_SIXTEEN_BITS = 2


def partition(
    chain: Chain,
    machine: Machine,
    terms: Terms,
    solver: Solver = "dynamic",
    effort: int | None = STANDARD_EFFORT,
) -> Partition:
    """The cut that takes the least seconds, then keeps the least bytes, of those that fit.

    `exhaustive` is for small chains: its time doubles with every position. `effort` limits the
    other's search (None: not), for when boundary values compete for memory on a large graph; the
    answer's `gap_s` says what that may have cost.

    Raises: DeviceError if none fits, naming the operation that asks for most, what it needs, what
    is there, and the smallest `device_bytes` that would do; ValueError for an empty chain.
    """
    found = find_partition(chain, machine, terms, solver, effort)
    if found is None:
        raise refusal(chain, machine, terms)
    return found


def find_partition(
    chain: Chain,
    machine: Machine,
    terms: Terms,
    solver: Solver = "dynamic",
    effort: int | None = STANDARD_EFFORT,
) -> Partition | None:
    """As `partition`, but None if none fits: for those who try many terms."""
    figures = figures_of(chain, machine, terms, merge=solver == "dynamic")
    if solver == "exhaustive":
        positions = search_exhaustively(figures)
        return cost_of(chain, machine, terms, figures.ends(positions)) if positions else None
    found = search(figures, effort)
    if found is None:
        return None
    cost = cost_of(chain, machine, terms, figures.ends(found.positions))
    return replace(cost, gap_s=found.gap_ticks * figures.tick_s)


def smallest_device_bytes(chain: Chain, machine: Machine, terms: Terms) -> int:
    """The least `terms.device_bytes` for which a partition exists; the given ones do not matter."""
    figures = figures_of(chain, machine, terms)
    beside = terms.device_bytes - figures.budget_bytes
    return beside + smallest_budget_bytes(figures)


def refusal(
    chain: Chain, machine: Machine, terms: Terms, least_bytes: int | None = None
) -> DeviceError:
    """What `partition` raises. `least_bytes`: what would do, for who knows of another way."""
    figures = figures_of(chain, machine, terms, merge=False)
    alone = [_alone_bytes(figures, position) for position in range(len(figures.atoms))]
    hungriest = max(range(len(alone)), key=alone.__getitem__)
    beside = terms.device_bytes - figures.budget_bytes
    name = chain.operations[figures.atoms[hungriest].begin].name
    smallest = least_bytes or smallest_device_bytes(chain, machine, terms)
    fits = alone[hungriest] <= figures.budget_bytes
    what = ", and values between sub-models more than is left" if fits else " even alone"
    several = "" if terms.micro_batches == 1 else "es"
    return DeviceError(
        f"{name} needs {format_bytes(alone[hungriest] + beside)} of device memory{what}; "
        f"there are {format_bytes(terms.device_bytes)}, and the least that would do, with "
        f"{terms.micro_batches} micro-batch{several} per pass, is "
        f"{_at_least(smallest)} ({smallest} bytes)",
        _what_helps(terms),
    )


def _what_helps(terms: Terms) -> str:
    ways = ["fewer sequences in a micro-batch", "shorter sequences"]
    if terms.element_bytes > _SIXTEEN_BITS:
        ways.append("a precision of 16 bits")
    if terms.micro_batches > 1:
        ways.append("fewer micro-batches per pass")
    more = "more device memory: [device] memory in the peer file"
    return f"{more}; else it takes a run with {', '.join(ways[:-1])}, or {ways[-1]}"


def _at_least(size_bytes: int) -> str:
    """Rounded up, so that who gives as much gives enough."""
    for unit_bytes in (1, 2**10, 2**20, 2**30, 2**40):
        tenths = -(-10 * size_bytes // unit_bytes)
        if tenths < 10 * 1000:
            break
    return format_bytes(tenths * unit_bytes / 10)


def _alone_bytes(figures: Figures, position: int) -> int:
    atom = figures.atoms[position]
    slots = figures.held_bytes * sum(atom.parameters.values())
    return slots + atom.working_bytes + atom.transient_bytes
