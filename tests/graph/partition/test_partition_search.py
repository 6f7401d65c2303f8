"""The pieces of the fast solver: what narrowing may drop, what bounds say, what effort allows."""

import itertools
from collections.abc import Iterator
from dataclasses import replace

import pytest
from partition_problems import Problem, random_problem, random_repetition

from atom.graph.partition import smallest_device_bytes
from atom.graph.partition.boxes import Ranks
from atom.graph.partition.branching import Branching
from atom.graph.partition.chain import Chain, Machine, Operation, Terms, Value
from atom.graph.partition.figures import Figures, figures_of
from atom.graph.partition.multiplier import Multiplier, most_weight
from atom.graph.partition.narrowing import Narrowing
from atom.graph.partition.spans import spans_of
from atom.graph.partition.stalls import Stalls
from atom.graph.partition.sweep import Plan, Sweep, price_of
from atom.graph.partition.units import least_units, least_units_plan


def figures_for(problem: Problem) -> Figures:
    return figures_of(problem.chain, problem.machine, problem.terms)


def plain_sweep(figures: Figures) -> Sweep:
    spans = spans_of(figures)
    assert spans is not None
    return Sweep(spans, Stalls(spans, figures.cut_bits, figures.slots), 1, None)


def every_plan(figures: Figures, plain: Sweep) -> Iterator[Plan]:
    """Every partition into spans that fit one by one."""
    spans = plain.spans
    for size in range(spans.count):
        for cut in itertools.combinations(range(1, spans.count), size):
            positions = (*cut, spans.count)
            begins = (0, *cut)
            if all(e <= spans.stop[b] for b, e in zip(begins, positions, strict=True)):
                yield plain.plan(price_of(spans, plain.stalls, positions), positions)


@pytest.mark.parametrize("first", range(0, 120, 40))
def test_narrowing_drops_no_plan_that_fits(first: int) -> None:
    for seed in range(first, first + 40):
        figures = figures_for(random_problem(seed, most_operations=8))
        plain = plain_sweep(figures)
        ranks = Ranks(plain.spans)
        narrow = Narrowing(figures, plain.spans, ranks).narrowed(ranks.root)
        for plan in every_plan(figures, plain):
            if plan.need_bytes(figures) <= figures.budget_bytes:
                assert narrow is not None, seed
                box = narrow[0]
                elements = ranks.rank_elements(plan.elements)
                activation = ranks.rank_activation(plan.activation_bytes)
                assert box.low_elements <= elements <= box.high_elements, seed
                assert box.low_activation <= activation <= box.high_activation, seed
                assert narrow[1][0] <= plan.units, seed


@pytest.mark.parametrize("first", range(0, 90, 30))
def test_a_multipliers_bound_is_a_bound(first: int) -> None:
    """For every room between what the thriftiest and what the cheapest partition keeps."""
    for seed in range(first, first + 30):
        figures = figures_for(random_repetition(seed, most_blocks=3))
        plain = plain_sweep(figures)
        plans = list(every_plan(figures, plain))
        for room in {plan.units for plan in plans}:
            found = multiplier(figures, plain, room)
            least = min(plan.price for plan in plans if plan.units <= room)
            assert found.bound <= least, (seed, room)
            assert found.frugal.units <= room, (seed, room)
            if found.is_plain_enough:
                assert found.frugal.price == least, (seed, room)


def multiplier(figures: Figures, plain: Sweep, room: int) -> Multiplier:
    spans = plain.spans
    least = least_units(spans, None)
    positions = least_units_plan(spans, None, least)
    thriftiest = plain.plan(price_of(spans, plain.stalls, positions), positions)
    found = Multiplier(room, figures.cut_bits, thriftiest)
    while not found.is_done:
        assert found.sweeps < 50
        sweep = Sweep(spans, plain.stalls, found.next_weight(7), None)
        plan = sweep.best()
        assert plan is not None
        found.learn(sweep, plan)
    return found


def tight_line(blocks: int) -> Problem:
    """Loads as long as computing, and hardly more memory than the least that is enough."""
    operations, values = list[Operation](), list[Value]()
    for block in range(blocks):
        operations += [
            Operation(f"wide{block}", {f"w{block}": 96}, 90e-6, 180e-6, 40, 9),
            Operation(f"narrow{block}", {f"n{block}": 32}, 35e-6, 70e-6, 60, 5),
        ]
        values += [
            Value(24, 2 * block, 2 * block + 1),
            Value(16, 2 * block + 1, 2 * block + 2),
        ]
    chain = Chain(tuple(operations), tuple(values[:-1]))
    machine, terms = Machine(1e6, 1.5e6), Terms(0, micro_batches=2, element_bytes=2)
    smallest = smallest_device_bytes(chain, machine, terms)
    return Problem(chain, machine, replace(terms, device_bytes=smallest + smallest // 20))


@pytest.mark.parametrize("blocks", [40, 160])
def test_effort_is_kept_and_the_gap_is_true(blocks: int) -> None:
    figures = figures_for(tight_line(blocks))
    plain = plain_sweep(figures)
    plan = plain.best()
    assert plan is not None
    assert plan.need_bytes(figures) > figures.budget_bytes
    searches = []
    for effort in (0, 30_000, 30_000, None):
        search = Branching(figures, plain, plan.price, effort)
        search.run()
        searches.append(search)
    hasty, some, again, full = searches
    assert (some.best, some.open_bound) == (again.best, again.open_bound), "nothing is timed"
    assert hasty.sweeps <= some.sweeps <= full.sweeps
    assert hasty.sweeps < 20, "the first plan takes a few sweeps, whatever the length"
    assert full.best_price <= some.best_price <= hasty.best_price
    for search in searches:
        assert min(search.open_bound, search.best_price) <= full.best_price
    assert full.open_bound >= full.best_price, "nothing is left open"


def test_no_weight_is_too_large_to_count_with() -> None:
    """At the largest, nothing but what is kept counts."""
    figures = figures_for(tight_line(30))
    plain = plain_sweep(figures)
    plan = Sweep(plain.spans, plain.stalls, most_weight(figures.cut_bits), None).best()
    assert plan is not None
    assert plan.units == least_units(plain.spans, None)[0]
