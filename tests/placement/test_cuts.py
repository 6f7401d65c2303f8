"""The dynamic programme against Algorithm 1, and against numbers made by hand."""

import random
from dataclasses import replace

import pytest
from algorithm_one import algorithm_one, charged_s
from small_chains import random_chain

from atom.graph.chain import Chain, Operation, Value
from atom.placement import cuts
from atom.placement.cuts import Charges, Parts, fastest_cut, parts_of
from atom.placement.memory import Piece, piece_of, pieces_of

PLENTY = 1 << 40


def need_bytes(piece: Piece) -> int:
    return 14 * piece.elements + piece.activation_bytes


def all_parts(chain: Chain, most_bytes: int = PLENTY) -> Parts:
    count = len(chain.operations)
    places = (*(p for p in range(1, count) if p not in chain.forbidden), count)
    parts = parts_of(chain, places, most_bytes, need_bytes)
    assert parts is not None
    return parts


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


def random_charges(pick: random.Random) -> Charges:
    rates = (1e-8, 1e-7, 1e-6, 4e-6)
    kept = pick.choice((0.0, 1e-9, 1e-6, 1e-3))
    return Charges(pick.randint(1, 8), pick.choice(rates), pick.choice(rates), kept)


@pytest.mark.parametrize("first", range(0, 160, 40))
def test_it_finds_what_algorithm_one_finds(first: int) -> None:
    for seed in range(first, first + 40):
        pick = random.Random(seed)
        chain = random_chain(pick, 9) if seed % 2 else repeated(pick)
        charges, parts = random_charges(pick), all_parts(chain)
        for bound in parts.bounds(PLENTY):
            found = fastest_cut(parts, charges, bound)
            assert all(need_bytes(piece) <= bound for piece in pieces_of(chain, found)), seed
            assert not chain.forbidden.intersection(found), seed
            best = algorithm_one(chain, charges, lambda piece: need_bytes(piece) <= bound)  # noqa: B023
            assert best is not None, seed
            expected = pytest.approx(charged_s(chain, charges, best), rel=1e-9)
            assert charged_s(chain, charges, found) == expected, seed


@pytest.mark.parametrize("seed", range(20))
def test_bounds_reach_from_the_least_that_works_to_the_whole(seed: int) -> None:
    chain = random_chain(random.Random(seed))
    parts = all_parts(chain)
    bounds = parts.bounds(PLENTY)
    assert bounds == sorted(set(bounds))
    assert bounds[-1] == need_bytes(piece_of(chain.operations)), "the model as one"
    assert parts_of(chain, parts.ends, bounds[0] - 1, need_bytes) is None
    for most in (bounds[0], sum(bounds) // len(bounds)):
        fewer = all_parts(chain, most)
        assert fewer.bounds(most) == [bound for bound in bounds if bound <= most]
        charges = random_charges(random.Random(seed))
        for bound in fewer.bounds(most):
            assert fastest_cut(fewer, charges, bound) == fastest_cut(parts, charges, bound)


def line(count: int, elements: int = 100, seconds: float = 1.0) -> Chain:
    """Equal operations, each handing 10 bytes to the next."""
    operations = [
        Operation(f"layer{i}", {f"w{i}": elements}, seconds, 2 * seconds, 50, 5)
        for i in range(count)
    ]
    values = [Value(10, i, i + 1) for i in range(count - 1)]
    return Chain(tuple(operations), tuple(values))


def test_seconds_of_a_cut_by_hand() -> None:
    charges = Charges(micro_batches=2, load_s=0.04, gradient_s=0.02, kept_s=0.001)
    compute = (2 + 6) + (2 + 6) + 6  # forward and recompute twice, the turn once
    load, gradients_out = 4.0, 2.0
    waits = (load - 2) + (load - 2)  # forward; gradients and the load backward are covered
    charged = load + compute + waits + gradients_out + 20 * 0.001
    assert charged_s(line(3), charges, (1, 2, 3)) == pytest.approx(charged)


def test_with_room_to_spare_little_is_computed_twice() -> None:
    """A short first sub-model shortens the wait for the first load; the rest is the turn."""
    found = fastest_cut(all_parts(line(40)), Charges(4, 0.02, 0.02, 1e-6), PLENTY)
    assert found[0] <= 3
    assert found[-1] - (found[-2] if len(found) > 1 else 0) >= 30


def test_equal_seconds_keep_the_fewest_bytes() -> None:
    chain = line(6, elements=0)
    narrow = replace(chain, values=tuple(Value(1 if i == 2 else 10, i, i + 1) for i in range(5)))
    assert fastest_cut(all_parts(narrow), Charges(1, 1.0, 1.0, 1e-6), 3 * 50 + 5) == (3, 6)


def test_a_tied_parameter_is_held_once() -> None:
    operations = tuple(Operation(f"op{i}", {"tied": 100}, 0.0, 0.0, 0, 0) for i in range(5))
    assert all_parts(Chain(operations, ()), 1400).elements[0].tolist() == 5 * [100]
    assert fastest_cut(all_parts(Chain(operations, ())), Charges(1, 1.0, 1.0, 0.0), 1400) == (5,)


def test_no_sub_model_is_longer_than_the_longest(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cuts, "LONGEST", 3)
    found = fastest_cut(all_parts(line(40)), Charges(4, 1e-6, 1e-6, 0.0), PLENTY)
    assert max(b - a for a, b in zip((0, *found), found, strict=False)) == 3
