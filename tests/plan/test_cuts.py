"""The dynamic programme against Algorithm 1, and against numbers made by hand."""

import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from itertools import pairwise

import pytest
from small_chains import random_chain

from atom.graph.chain import Chain, Machine, Operation, Value
from atom.plan import cuts
from atom.plan.cuts import Ends, Parts, fastest_cut, parts_of
from atom.plan.memory import Cut, Limits, Piece, alone_bytes, piece_of, pieces_of

PLENTY = Limits(1 << 40, element_bytes=4, micro_batches=4)
LINK = Machine(100.0, 200.0)


# --- the reference ---


def algorithm_one(
    chain: Chain, machine: Machine, limits: Limits, fits: Callable[[Piece], bool]
) -> Ends:
    """Return the cut for which a pass is charged least, after the paper's Algorithm 1.

    A recursive search over every legal cut into sub-models that fit, one by one; exponential in
    operations. The paper refuses a cut in which computing does not cover a load; here what is not
    covered is charged as the time it takes, so that a slow link still has a best answer.
    """
    found = _completions(chain, 0, fits)
    return min(found, key=lambda ends: charged_s(chain, machine, limits, ends))


def _completions(chain: Chain, begin: int, fits: Callable[[Piece], bool]) -> Iterator[Ends]:
    count = len(chain.operations)
    if begin == count:
        yield ()
    for end in range(begin + 1, count + 1):
        if not fits(piece_of(chain.operations[begin:end])):
            return
        if end not in chain.forbidden:
            yield from ((end, *rest) for rest in _completions(chain, end, fits))


def charged_s(chain: Chain, machine: Machine, limits: Limits, ends: Sequence[int]) -> float:
    """Return the cost of a cut, straight from the formula of `atom.plan.cuts`."""
    pieces = Cut.of(chain, machine, limits, ends).pieces
    forward = [limits.micro_batches * piece.forward_s for piece in pieces]
    backward = [limits.micro_batches * piece.backward_s for piece in pieces]
    again = [f + b for f, b in zip(forward, backward, strict=True)]
    load = [p.elements * limits.element_bytes / machine.load_bytes_per_s for p in pieces]
    out = [p.elements * limits.gradient_element_bytes for p in pieces]
    out = [size / machine.gradient_bytes_per_s for size in out]
    seconds = load[0] + out[0] + again[-1] + sum(forward[:-1]) + sum(again[:-1])
    for s, following in pairwise(range(len(pieces))):
        seconds += max(0.0, load[following] - forward[s])
        seconds += max(0.0, out[following] - again[s])
        if following < len(pieces) - 1:
            seconds += max(0.0, load[s] - again[following])
    kept = sum(crossing.value_bytes for piece in pieces for crossing in piece.crossings)
    return seconds + kept / machine.load_bytes_per_s


# --- the dynamic programme ---


def all_parts(chain: Chain, limits: Limits) -> Parts:
    count = len(chain.operations)
    places = (*(p for p in range(1, count) if p not in chain.forbidden), count)
    parts = parts_of(chain, places, limits)
    assert parts is not None
    return parts


def repeated(pick: random.Random) -> Chain:
    """Return a chain of a few operations that repeat, as in models; many cuts cost the same."""
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


@pytest.mark.parametrize("first", range(0, 36, 12))
def test_it_finds_what_algorithm_one_finds(first: int) -> None:
    for seed in range(first, first + 12):
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


def test_bounds_do_not_depend_on_the_device() -> None:
    for seed in range(8):
        chain = random_chain(random.Random(seed))
        bounds = all_parts(chain, PLENTY).bounds(PLENTY.device_bytes)
        for most in (bounds[0], sum(bounds) // len(bounds)):
            fewer = all_parts(chain, replace(PLENTY, device_bytes=most))
            assert fewer.bounds(most) == [bound for bound in bounds if bound <= most]


def line(count: int) -> Chain:
    """Equal operations, each handing 10 bytes to the next."""
    operations = [Operation(f"layer{i}", {f"w{i}": 100}, 1.0, 2.0, 50, 5) for i in range(count)]
    values = [Value(10, i, i + 1) for i in range(count - 1)]
    return Chain(tuple(operations), tuple(values))


def test_seconds_of_a_cut_by_hand() -> None:
    compute = (2 + 6) + (2 + 6) + 6  # forward and recompute twice, the turn once
    load, gradients_out = 4.0, 2.0
    waits = (load - 2) + (load - 2)  # forward; gradients and the load backward are covered
    charged = load + compute + waits + gradients_out + 20 / 100
    found = charged_s(line(3), LINK, replace(PLENTY, micro_batches=2), (1, 2, 3))
    assert found == pytest.approx(charged)


def test_no_sub_model_is_longer_than_the_longest(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cuts, "LONGEST", 3)
    parts = all_parts(line(40), PLENTY)
    found = fastest_cut(parts, Machine(1e9, 1e9), PLENTY, PLENTY.device_bytes)
    assert max(b - a for a, b in zip((0, *found), found, strict=False)) == 3
