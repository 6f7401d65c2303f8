"""The dynamic programme against Algorithm 1, and against numbers made by hand."""

import random
from dataclasses import replace

import pytest
from algorithm_one import algorithm_one, charged_s
from small_chains import random_chain

from atom.graph.chain import Chain, Machine, Operation, Value
from atom.placement import cuts
from atom.placement.cuts import Ends, Parts, fastest_cut, parts_of
from atom.placement.memory import Limits, Piece, alone_bytes, piece_of, pieces_of

PLENTY = Limits(1 << 40, element_bytes=4, micro_batches=4)
LINK = Machine(100.0, 200.0)


def all_parts(chain: Chain, limits: Limits = PLENTY) -> Parts:
    count = len(chain.operations)
    places = (*(p for p in range(1, count) if p not in chain.forbidden), count)
    parts = parts_of(chain, places, limits)
    assert parts is not None
    return parts


def fastest(chain: Chain, limits: Limits = PLENTY, machine: Machine = LINK) -> Ends:
    return fastest_cut(all_parts(chain, limits), machine, limits, limits.device_bytes)


def repeated(pick: random.Random) -> Chain:
    """As models are: a few operations, again and again; many cuts cost the same."""
    block = random_chain(pick, 3)
    length, times = len(block.operations), pick.randint(2, 4)
    operations = tuple(
        replace(one, parameters={f"{name} {n}": size for name, size in one.parameters.items()})
        for n in range(times)
        for one in block.operations
    )
    values = [Value(64, n * length - 1, n * length) for n in range(1, times)]
    values += [
        replace(v, made_by=v.made_by + n * length, last_used_by=v.last_used_by + n * length)
        for n in range(times)
        for v in block.values
        if v.made_by >= 0
    ]
    return Chain(operations, tuple(values))


def random_terms(pick: random.Random) -> tuple[Machine, Limits]:
    rates = (1e8, 1e7, 1e6, 2e5)
    limits = replace(PLENTY, element_bytes=pick.choice((2, 4)), micro_batches=pick.randint(1, 8))
    return Machine(pick.choice(rates), pick.choice(rates)), limits


@pytest.mark.parametrize("first", range(0, 160, 40))
def test_it_finds_what_algorithm_one_finds(first: int) -> None:
    for seed in range(first, first + 40):
        pick = random.Random(seed)
        chain = random_chain(pick, 9) if seed % 2 else repeated(pick)
        machine, limits = terms = random_terms(pick)
        parts = all_parts(chain, limits)
        for bound in parts.bounds(limits.device_bytes):

            def fits(piece: Piece) -> bool:
                return alone_bytes(piece, limits) <= bound  # noqa: B023

            found = fastest_cut(parts, machine, limits, bound)
            assert all(map(fits, pieces_of(chain, found))), seed
            assert not chain.forbidden.intersection(found), seed
            best = charged_s(chain, *terms, algorithm_one(chain, *terms, fits))
            assert charged_s(chain, *terms, found) == pytest.approx(best, rel=1e-9), seed


@pytest.mark.parametrize("seed", range(20))
def test_bounds_reach_from_the_least_that_works_to_the_whole(seed: int) -> None:
    pick = random.Random(seed)
    chain = random_chain(pick)
    machine, limits = random_terms(pick)
    parts = all_parts(chain, limits)
    bounds = parts.bounds(limits.device_bytes)
    assert bounds == sorted(set(bounds))
    assert bounds[-1] == alone_bytes(piece_of(chain.operations), limits), "the model as one"
    assert parts_of(chain, parts.ends, replace(limits, device_bytes=bounds[0] - 1)) is None
    for most in (bounds[0], sum(bounds) // len(bounds)):
        fewer = all_parts(chain, replace(limits, device_bytes=most))
        assert fewer.bounds(most) == [bound for bound in bounds if bound <= most]
        for bound in fewer.bounds(most):
            found = fastest_cut(fewer, machine, limits, bound)
            assert found == fastest_cut(parts, machine, limits, bound)


def line(count: int, elements: int = 100, seconds: float = 1.0) -> Chain:
    """Equal operations, each handing 10 bytes to the next."""
    operations = [
        Operation(f"layer{i}", {f"w{i}": elements}, seconds, 2 * seconds, 50, 5)
        for i in range(count)
    ]
    values = [Value(10, i, i + 1) for i in range(count - 1)]
    return Chain(tuple(operations), tuple(values))


def test_seconds_of_a_cut_by_hand() -> None:
    compute = (2 + 6) + (2 + 6) + 6  # forward and recompute twice, the turn once
    load, gradients_out = 4.0, 2.0
    waits = (load - 2) + (load - 2)  # forward; gradients and the load backward are covered
    charged = load + compute + waits + gradients_out + 20 / 100
    found = charged_s(line(3), LINK, replace(PLENTY, micro_batches=2), (1, 2, 3))
    assert found == pytest.approx(charged)


def test_with_room_to_spare_little_is_computed_twice() -> None:
    """A short first sub-model shortens the wait for the first load; the rest is the turn."""
    found = fastest(line(40))
    assert found[0] <= 3
    assert found[-1] - (found[-2] if len(found) > 1 else 0) >= 30


def test_equal_seconds_keep_the_fewest_bytes() -> None:
    chain = line(6, elements=0)
    narrow = replace(chain, values=tuple(Value(1 if i == 2 else 10, i, i + 1) for i in range(5)))
    assert fastest(narrow, replace(PLENTY, device_bytes=3 * 50 + 5)) == (3, 6)


def test_a_tied_parameter_is_held_once() -> None:
    chain = Chain(tuple(Operation(f"op{i}", {"tied": 100}, 0.0, 0.0, 0, 0) for i in range(5)), ())
    limits = replace(PLENTY, device_bytes=100 * (2 * 4 + 2 * 4 + 4))
    assert all_parts(chain, limits).elements[0].tolist() == 5 * [100]
    assert fastest(chain, limits) == (5,)


def test_no_sub_model_is_longer_than_the_longest(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cuts, "LONGEST", 3)
    found = fastest(line(40), machine=Machine(1e9, 1e9))
    assert max(b - a for a, b in zip((0, *found), found, strict=False)) == 3
