"""Two solvers, one optimum: against each other, every cut, and numbers made by hand."""

from dataclasses import replace

import pytest
from partition_problems import Problem, every_partition, random_problem, random_repetition

from atom.base.errors import DeviceError
from atom.graph.partition import (
    Chain,
    Machine,
    Operation,
    Partition,
    Terms,
    Value,
    cost_of,
    find_partition,
    partition,
    smallest_device_bytes,
    stalls,
)

CHAINS_PER_CASE = 60


def solve(problem: Problem, **options: object) -> Partition | None:
    return find_partition(problem.chain, problem.machine, problem.terms, **options)  # type: ignore[arg-type]


def rank(found: Partition) -> tuple[float, int]:
    return round(found.seconds, 9), found.cut_bytes


@pytest.mark.parametrize("first", range(0, 600, CHAINS_PER_CASE))
def test_same_cost_as_exhaustive_search(first: int) -> None:
    for seed in range(first, first + CHAINS_PER_CASE):
        problem = random_problem(seed)
        fast, reference = solve(problem), solve(problem, solver="exhaustive")
        assert fast is not None, seed
        assert reference is not None, seed
        assert rank(fast) == rank(reference), seed
        assert fast.device_bytes <= problem.terms.device_bytes, seed
        again = cost_of(problem.chain, problem.machine, problem.terms, fast.ends)
        assert again == replace(fast, gap_s=0.0), seed
        assert fast.gap_s == 0.0, seed


@pytest.mark.parametrize("first", range(6000, 6300, CHAINS_PER_CASE))
def test_same_cost_as_exhaustive_search_where_blocks_repeat(first: int) -> None:
    """Many plans cost the same there, and stalls are alike at many positions."""
    for seed in range(first, first + CHAINS_PER_CASE):
        problem = random_repetition(seed)
        fast, reference = solve(problem), solve(problem, solver="exhaustive")
        assert fast is not None, seed
        assert reference is not None, seed
        assert (rank(fast), fast.gap_s) == (rank(reference), 0.0), seed


@pytest.mark.parametrize("seed", range(1000, 1060))
def test_exhaustive_search_finds_the_best_of_all_cuts(seed: int) -> None:
    problem = random_problem(seed, most_operations=7)
    fitting = [p for p in every_partition(problem) if p.device_bytes <= problem.terms.device_bytes]
    found = solve(problem, solver="exhaustive")
    assert found is not None
    assert rank(found) == min(map(rank, fitting))


@pytest.mark.parametrize("first", range(2000, 2200, 50))
def test_smallest_budget_works_and_one_byte_less_does_not(first: int) -> None:
    for seed in range(first, first + 50):
        problem = random_problem(seed)
        smallest = smallest_device_bytes(problem.chain, problem.machine, problem.terms)
        assert smallest == min(p.device_bytes for p in every_partition(problem)), seed
        for spare, works in ((0, True), (-1, False)):
            terms = replace(problem.terms, device_bytes=smallest + spare)
            tight = replace(problem, terms=terms)
            assert (solve(tight) is not None) == works, seed
            assert (solve(tight, solver="exhaustive") is not None) == works, seed


@pytest.mark.parametrize("seed", range(7000, 7012))
def test_stalls_that_are_alike_are_shared(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    problem = random_repetition(seed, most_blocks=60)
    shared = solve(problem, effort=100_000)
    monkeypatch.setattr(stalls, "_CACHED_PAIRS", 0)
    assert solve(problem, effort=100_000) == shared


@pytest.mark.parametrize("seed", range(3000, 3012))
def test_long_spans_are_priced_like_short_ones(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    problem = random_problem(seed, most_operations=120)
    direct = solve(problem, effort=100_000)
    monkeypatch.setattr(stalls, "_DIRECT_PAIRS", 0)
    monkeypatch.setattr(stalls, "_CACHED_PAIRS", 0)
    assert solve(problem, effort=100_000) == direct


@pytest.mark.parametrize("seed", range(4000, 4030))
def test_little_effort_still_fits_and_admits_what_it_may_cost(seed: int) -> None:
    problem = random_problem(seed, most_operations=25)
    hasty, best = solve(problem, effort=0), solve(problem, effort=None)
    assert hasty is not None
    assert best is not None
    assert hasty.device_bytes <= problem.terms.device_bytes
    assert best.gap_s == 0.0
    assert best.seconds - 1e-9 <= hasty.seconds <= best.seconds + hasty.gap_s + 1e-9


@pytest.mark.parametrize("seed", range(5000, 5020))
def test_more_memory_is_never_slower(seed: int) -> None:
    problem = random_problem(seed, most_operations=20)
    seconds = []
    for spare in (0, 100, 1000, 10**6):
        terms = replace(problem.terms, device_bytes=problem.terms.device_bytes + spare)
        found = solve(replace(problem, terms=terms))
        assert found is not None
        seconds.append(found.seconds)
    assert seconds == sorted(seconds, reverse=True)


def line(count: int, elements: int = 100, seconds: float = 1.0) -> Chain:
    """Equal operations, each handing 10 bytes to the next."""
    operations = [
        Operation(f"layer{i}", {f"w{i}": elements}, seconds, 2 * seconds, 50, 5)
        for i in range(count)
    ]
    values = [Value(10, i, i + 1) for i in range(count - 1)]
    return Chain(tuple(operations), tuple(values))


def test_seconds_and_bytes_of_a_cut_by_hand() -> None:
    chain, machine = line(3), Machine(load_bytes_per_s=100.0, gradient_bytes_per_s=200.0)
    terms = Terms(10**6, micro_batches=2, element_bytes=4, reserved_bytes=7)
    found = cost_of(chain, machine, terms, (1, 2, 3))
    compute = (2 + 6) + (2 + 6) + 6  # forward and recompute twice, the turn once
    load, gradients_out = 4.0, 2.0
    waits = (load - 2) + (load - 2)  # forward; gradients and the load backward are covered
    assert found.seconds == load + compute + waits + gradients_out
    assert found.cut_bytes == 20
    assert found.device_bytes == (2 * 4 + 2 * 4 + 4) * 100 + 55 + 2 * 20 + 7


def test_the_last_sub_models_stay_for_the_backward() -> None:
    chain = line(4, seconds=0.0)
    machine = Machine(load_bytes_per_s=400.0, gradient_bytes_per_s=4e12)
    for slots, loads in ((2, 4 + 2), (3, 4 + 1), (4, 4)):
        terms = Terms(10**6, 1, 4, slots=slots)
        found = cost_of(chain, machine, terms, (1, 2, 3, 4))
        assert found.seconds == pytest.approx(loads, abs=1e-6)


def test_batch_entries_stay_on_the_device() -> None:
    chain = replace(line(1), values=(Value(1000, -1, 0),))
    found = cost_of(chain, Machine(1.0, 1.0), Terms(10**6, 3, 4), (1,))
    assert (found.cut_bytes, found.device_bytes) == (0, 20 * 100 + 55 + 3000)


def test_with_room_to_spare_little_is_computed_twice() -> None:
    """A short first sub-model shortens the wait for the first load; the rest is the turn."""
    found = partition(line(40), Machine(200.0, 200.0), Terms(10**9, 4, 4))
    assert found.ends[0] <= 3
    assert found.ends[-1] - (found.ends[-2] if len(found.ends) > 1 else 0) >= 30


def test_equal_seconds_take_the_fewest_bytes() -> None:
    chain = line(6, elements=0)
    narrow = replace(chain, values=tuple(Value(1 if i == 2 else 10, i, i + 1) for i in range(5)))
    terms = Terms(device_bytes=3 * 50 + 5 + 20, micro_batches=1, element_bytes=4)
    found = partition(narrow, Machine(1.0, 1.0), terms)
    assert (found.ends, found.cut_bytes) == ((3, 6), 1)


def test_forbidden_places_are_not_cut() -> None:
    chain = replace(line(6), forbidden=frozenset({1, 2, 4, 5}))
    found = partition(chain, Machine(1e6, 1e6), Terms(20 * 300 + 200, 1, 4))
    assert found.ends == (3, 6)
    with pytest.raises(ValueError, match="begin at operation 2"):
        cost_of(chain, Machine(1.0, 1.0), Terms(1, 1, 4), (2, 6))


def test_a_tied_parameter_is_held_once() -> None:
    operations = tuple(Operation(f"op{i}", {"tied": 100}, 0.0, 0.0, 0, 0) for i in range(5))
    found = partition(Chain(operations, ()), Machine(1.0, 1.0), Terms(2000, 1, 4))
    assert (found.ends, found.device_bytes) == ((5,), 2000)


def test_refusal_names_the_operation_the_bytes_and_the_smallest_budget() -> None:
    chain = line(3)
    large = replace(chain.operations[1], name="blocks.7.mlp linear", parameters={"w": 2**26})
    chain = replace(chain, operations=(chain.operations[0], large, chain.operations[2]))
    terms = Terms(2**29, 1, 4)
    with pytest.raises(
        DeviceError, match=r"blocks\.7\.mlp linear needs 1\.3 GiB .* 512\.0 MiB"
    ) as caught:
        partition(chain, Machine(1e6, 1e6), terms)
    assert "16 bits" in caught.value.hint
    assert "micro-batches per pass" not in caught.value.hint, "there is one"
    with pytest.raises(DeviceError) as halves:
        partition(chain, Machine(1e6, 1e6), replace(terms, micro_batches=2, element_bytes=2))
    assert halves.value.hint.endswith("or fewer micro-batches per pass")
    assert "16 bits" not in halves.value.hint, "it has no more"
    smallest = smallest_device_bytes(chain, Machine(1e6, 1e6), terms)
    assert f"({smallest} bytes)" in str(caught.value)
    assert find_partition(chain, Machine(1e6, 1e6), terms) is None
    assert partition(chain, Machine(1e6, 1e6), replace(terms, device_bytes=smallest))


def test_an_empty_chain_is_refused() -> None:
    with pytest.raises(ValueError, match="without operations"):
        partition(Chain((), ()), Machine(1.0, 1.0), Terms(1, 1, 4))


@pytest.mark.parametrize("ends", [(), (2,), (2, 2, 3), (3, 2)])
def test_nonsense_cuts_are_refused(ends: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match="does not cut 3 operations"):
        cost_of(line(3), Machine(1.0, 1.0), Terms(1, 1, 4), ends)
