"""What is chosen fits, is never worse than plain swapping, and gains from memory."""

import random
from dataclasses import replace
from functools import cache
from itertools import pairwise

import pytest
from small_chains import MACHINE, held_bytes, layer_ends, plenty, random_chain

from atom.base.errors import DeviceError
from atom.graph.partition import Chain, Terms, find_partition, smallest_device_bytes
from atom.plan.choice import NEARLY, Choice, Limits, choose, timed
from atom.plan.memory import Reckoning
from atom.plan.pieces import pieces_of
from atom.plan.residency import Budget, arrangements
from atom.swap.arrangement import Arrangement
from atom.swap.schedule import Load, Shape, training_pass
from tests.swap.schedule_check import check

SEEDS = range(40)


@cache
def question(seed: int) -> tuple[Chain, Limits, int, int]:
    """A chain, limits without memory, the least memory and plenty of it."""
    pick = random.Random(seed)
    chain = random_chain(pick)
    limits = Limits(0, pick.choice((2, 4)), pick.randint(1, 8))
    least = smallest_device_bytes(chain, MACHINE, Terms(0, 1, limits.element_bytes))
    return chain, limits, least, max(least, plenty(chain, limits))


@cache
def answers(seed: int) -> tuple[Choice, ...]:
    """With growing memory, from the least to plenty."""
    chain, limits, least, most = question(seed)
    budgets = [least + (most - least) * step // 4 for step in range(5)]
    return tuple(choose(chain, MACHINE, replace(limits, device_bytes=b)) for b in budgets)


@pytest.mark.parametrize("seed", SEEDS)
def test_it_fits_however_its_bytes_are_counted(seed: int) -> None:
    chain, limits, least, most = question(seed)
    for step, choice in enumerate(answers(seed)):
        arrangement = choice.arrangement
        held = held_bytes(
            chain,
            choice.ends,
            arrangement.resident,
            arrangement.kept,
            arrangement.slots,
            choice.micro_batches,
            limits.element_bytes,
        )
        assert held == choice.memory.total_bytes
        assert held <= least + (most - least) * step // 4
        assert choice.micro_batches <= limits.micro_batches
        assert arrangement.kept <= arrangement.resident <= set(range(len(choice.pieces)))
        assert len(choice.pieces) - 1 not in arrangement.kept
        assert not chain.forbidden.intersection(choice.ends[:-1])


@pytest.mark.parametrize("seed", SEEDS)
def test_one_byte_less_than_the_least_is_refused(seed: int) -> None:
    chain, limits, least, _ = question(seed)
    with pytest.raises(DeviceError, match=rf"\({least} bytes\)"):
        choose(chain, MACHINE, replace(limits, device_bytes=least - 1))


@pytest.mark.parametrize("seed", SEEDS)
def test_never_slower_than_swapping_plainly(seed: int) -> None:
    chain, limits, least, most = question(seed)
    for step, choice in enumerate(answers(seed)):
        device_bytes = least + (most - least) * step // 4
        for micro_batches in {1, choice.micro_batches, limits.micro_batches}:
            terms = Terms(device_bytes, micro_batches, limits.element_bytes)
            cut = find_partition(chain, MACHINE, terms)
            if cut is None:
                continue
            for ends in {cut.ends, choice.ends}:
                plain = timed(
                    chain, MACHINE, ends, Arrangement(), micro_batches, limits.element_bytes
                )
                if plain.memory.total_bytes <= device_bytes:
                    slowest = (1 + NEARLY) * plain.seconds_per_micro_batch
                    assert choice.seconds_per_micro_batch <= slowest * (1 + 1e-9)


@pytest.mark.parametrize("seed", SEEDS)
def test_more_memory_never_makes_it_slower(seed: int) -> None:
    for less, more in pairwise(answers(seed)):
        limit = (1 + NEARLY) * less.seconds_per_micro_batch
        assert more.seconds_per_micro_batch <= limit * (1 + 1e-9)


@pytest.mark.parametrize("seed", SEEDS)
def test_with_plenty_of_memory_nothing_is_loaded_twice(seed: int) -> None:
    choice = answers(seed)[-1]
    shape = Shape(len(choice.pieces), choice.micro_batches, choice.arrangement)
    loads = [e.sub_model for e in training_pass(shape) if isinstance(e, Load)]
    assert sorted(loads) == list(range(len(choice.pieces)))


@pytest.mark.parametrize("seed", SEEDS)
def test_the_same_question_has_the_same_answer(seed: int) -> None:
    chain, limits, least, _ = question(seed)
    fresh = replace(chain, operations=tuple(map(replace, chain.operations)))
    assert choose(fresh, MACHINE, replace(limits, device_bytes=least)) == answers(seed)[0]


@pytest.mark.parametrize("seed", SEEDS)
def test_cuts_fall_between_layers_where_these_fit(seed: int) -> None:
    chain, limits, least, most = question(seed)
    ends = layer_ends(chain, random.Random(seed))
    roomy = choose(chain, MACHINE, replace(limits, device_bytes=most), ends)
    assert set(roomy.ends) <= set(ends)
    tight = choose(chain, MACHINE, replace(limits, device_bytes=least), ends)
    assert tight.memory.total_bytes <= least


@pytest.mark.parametrize("seed", SEEDS)
def test_every_arrangement_fits_and_has_a_sound_schedule(seed: int) -> None:
    _, limits, least, most = question(seed)
    for choice in answers(seed):
        device_bytes = (least + most) // 2
        budget = Budget(device_bytes, choice.micro_batches, limits.element_bytes)
        found = list(arrangements(choice.pieces, budget))
        assert len(set(found)) == len(found)
        reckoning = Reckoning(choice.pieces, choice.micro_batches, limits.element_bytes)
        for arrangement in found:
            assert reckoning.memory(arrangement).total_bytes <= device_bytes
            shape = Shape(len(choice.pieces), choice.micro_batches, arrangement)
            check(training_pass(shape), shape)


def test_pieces_add_up() -> None:
    for seed in SEEDS:
        chain = question(seed)[0]
        for choice in answers(seed):
            pieces = pieces_of(chain, choice.ends)
            whole = pieces_of(chain, (len(chain.operations),))[0]
            assert sum(p.forward_s for p in pieces) == pytest.approx(whole.forward_s)
            assert sum(p.working_bytes for p in pieces) == whole.working_bytes
            assert set().union(*(p.parameters for p in pieces)) == set(whole.parameters)
            assert pieces[-1].out_bytes == whole.out_bytes == 0
            assert all(p.in_bytes > 0 for p in pieces)
