"""The choice fits, is never slower than plain swapping, and gets faster with more memory."""

import random
import re
from dataclasses import replace
from functools import cache
from itertools import pairwise

import pytest
from small_chains import MACHINE, every_cut, held_bytes, layer_ends, plenty, random_chain

from atom.base.errors import DeviceError
from atom.graph.chain import Chain, Machine, Operation, Value
from atom.plan.choice import Choice
from atom.plan.choosing import NEARLY, Question, choose, enough_bytes
from atom.plan.memory import Cut, Limits
from atom.plan.residency import arrangements
from atom.swap.schedule import Arrangement, Load, training_pass
from tests.swap.schedule_check import check

SEEDS = range(40)


@cache
def question(seed: int) -> tuple[Chain, Limits, int, int]:
    """A chain, limits without memory, memory that is just enough and plenty of it."""
    pick = random.Random(seed)
    chain = random_chain(pick)
    limits = Limits(0, pick.choice((2, 4)), pick.randint(1, 8))
    least = enough_bytes(Question(chain, MACHINE, limits))
    return chain, limits, least, max(least, plenty(chain, limits))


@cache
def answers(seed: int) -> tuple[Choice, ...]:
    """Return the choices for five amounts of device memory, from the least to plenty."""
    chain, limits, least, most = question(seed)
    budgets = [least + (most - least) * step // 4 for step in range(5)]
    return tuple(choose(Question(chain, MACHINE, replace(limits, device_bytes=b))) for b in budgets)


@pytest.mark.parametrize("seed", SEEDS)
def test_it_fits_however_its_bytes_are_counted(seed: int) -> None:
    chain, limits, least, most = question(seed)
    for step, choice in enumerate(answers(seed)):
        arrangement, count = choice.arrangement, len(choice.cut.pieces)
        held = held_bytes(chain, choice)
        assert held == choice.memory.total_bytes
        assert held <= least + (most - least) * step // 4
        assert choice.micro_batches <= limits.micro_batches
        assert arrangement.kept <= arrangement.resident <= set(range(count))
        assert count - 1 not in arrangement.kept
        assert not chain.forbidden.intersection(choice.cut.ends[:-1])


@cache
def plain_ways(seed: int) -> tuple[Choice, ...]:
    """Every cut there is, swapped plainly, one micro-batch at a time."""
    chain, limits, _, _ = question(seed)
    single = replace(limits, micro_batches=1)
    cuts = [Cut.of(chain, MACHINE, single, ends) for ends in every_cut(chain)]
    return tuple(Choice(cut, Arrangement()) for cut in cuts)


@pytest.mark.parametrize("seed", SEEDS)
def test_what_a_refusal_names_is_enough_and_hardly_more_than_it_takes(seed: int) -> None:
    chain, limits, _, _ = question(seed)
    with pytest.raises(DeviceError) as caught:
        choose(Question(chain, MACHINE, replace(limits, device_bytes=1)))
    named = int(re.search(r"\((\d+) bytes\) would do", caught.value.message)[1])
    found = choose(Question(chain, MACHINE, replace(limits, device_bytes=named)))
    assert found.memory.total_bytes <= named
    assert named <= 1.15 * min(way.memory.total_bytes for way in plain_ways(seed))


def test_a_refusal_tells_what_the_hungriest_of_operations_with_one_name_needs() -> None:
    made = tuple(Operation("twice", {f"w{n}": n}, 1.0, 1.0, 0, 0) for n in (4096, 1024))
    asked = Question(Chain(made, ()), MACHINE, Limits(1, 4, 1))
    # Two slots, two sums and a gradient, of 4 bytes each.
    with pytest.raises(DeviceError, match=r"^twice needs 81\.9 kB .* even alone"):
        choose(asked)


@pytest.mark.parametrize("more", [1.0, 1.002, 1.01, 1.05])
@pytest.mark.parametrize(("operations", "micro_batches"), [(12, 1), (24, 16)])
def test_what_is_named_is_enough_where_little_lies_between_large_sub_models(
    operations: int, micro_batches: int, more: float
) -> None:
    made = tuple(
        Operation(f"o{n}", {f"p{n}": 2_000_000}, 1e-3, 2e-3, 1000, 1000) for n in range(operations)
    )
    chain = Chain(made, tuple(Value(300_000, n, n + 1) for n in range(-1, operations - 1)))
    asked = Question(chain, Machine(1e9, 1e9), Limits(0, 4, micro_batches))
    device_bytes = int(more * enough_bytes(asked))
    assert choose(asked.allowing(device_bytes=device_bytes)).memory.total_bytes <= device_bytes


@pytest.mark.parametrize("seed", SEEDS)
def test_at_most_a_twentieth_slower_than_the_best_of_all_cuts_swapped_plainly(seed: int) -> None:
    _, _, least, most = question(seed)
    for step, choice in enumerate(answers(seed)):
        device_bytes = least + (most - least) * step // 4
        plain = [way for way in plain_ways(seed) if way.memory.total_bytes <= device_bytes]
        best = min(way.timeline.seconds for way in plain)
        assert choice.seconds_per_micro_batch <= 1.05 * best


@pytest.mark.parametrize("seed", SEEDS)
def test_more_memory_never_makes_it_slower(seed: int) -> None:
    for less, more in pairwise(answers(seed)):
        limit = (1 + NEARLY) * less.seconds_per_micro_batch
        assert more.seconds_per_micro_batch <= limit * (1 + 1e-9)


@pytest.mark.parametrize("seed", SEEDS)
def test_with_plenty_of_memory_nothing_is_loaded_twice(seed: int) -> None:
    choice = answers(seed)[-1]
    loads = [e.sub_model for e in training_pass(choice.shape) if isinstance(e, Load)]
    assert sorted(loads) == list(range(len(choice.cut.pieces)))


@pytest.mark.parametrize("seed", SEEDS)
def test_cuts_fall_between_layers_where_these_fit(seed: int) -> None:
    chain, limits, least, most = question(seed)
    ends = layer_ends(chain, random.Random(seed))
    roomy = choose(Question(chain, MACHINE, replace(limits, device_bytes=most), ends))
    assert set(roomy.cut.ends) <= set(ends)
    tight = choose(Question(chain, MACHINE, replace(limits, device_bytes=least), ends))
    assert tight.memory.total_bytes <= least


@pytest.mark.parametrize("seed", SEEDS)
def test_every_arrangement_fits_and_has_a_sound_schedule(seed: int) -> None:
    _, limits, least, most = question(seed)
    for choice in answers(seed):
        device_bytes = (least + most) // 2
        allowed = Limits(device_bytes, limits.element_bytes, choice.micro_batches)
        cut = replace(choice.cut, limits=allowed)
        found = arrangements(cut)
        assert len(set(found)) == len(found)
        for arrangement in found:
            assert cut.memory(arrangement).total_bytes <= device_bytes
            shape = cut.shape(arrangement)
            check(training_pass(shape), shape)
