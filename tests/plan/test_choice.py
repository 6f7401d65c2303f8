"""The choice fits, is never slower than plain swapping, and gets faster with more memory."""

import random
import re
from dataclasses import replace
from functools import cache
from itertools import pairwise

import pytest
from small_chains import MACHINE, every_cut, layer_ends, plenty, random_chain

from atom.base.errors import DeviceError
from atom.graph.chain import Chain, Machine, Operation, Value
from atom.plan.choice import Choice, HostStep
from atom.plan.choosing import NEARLY, Question, choose, enough_bytes
from atom.plan.memory import Cut, Limits
from atom.plan.residency import arrangements
from atom.swap.schedule import Arrangement, Load, training_pass

SEEDS = range(12)


@cache
def question(seed: int) -> tuple[Chain, Limits, int, int]:
    """A chain, limits without memory, memory that is just enough and plenty of it."""
    pick = random.Random(seed)
    chain = random_chain(pick, most=11)
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
def test_it_fits_and_is_a_legal_choice(seed: int) -> None:
    chain, limits, least, most = question(seed)
    for step, choice in enumerate(answers(seed)):
        arrangement, count = choice.arrangement, len(choice.cut.pieces)
        assert choice.memory.total_bytes <= least + (most - least) * step // 4
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


# --- memory to spare trains sub-models on the device ---

STATE_BYTES = 20


@pytest.mark.parametrize("seed", range(8))
def test_leftover_memory_trains_as_many_as_fit_and_slows_no_pass(seed: int) -> None:
    pick = random.Random(seed)
    chain, limits = random_chain(pick), Limits(0, pick.choice((2, 4)), pick.randint(1, 8))
    elements = sum({n: e for o in chain.operations for n, e in o.parameters.items()}.values())
    least = enough_bytes(Question(chain, MACHINE, limits))
    most = max(least, plenty(chain, limits)) + STATE_BYTES * elements
    trained = []
    for step in range(5):
        having = replace(limits, device_bytes=least + (most - least) * step // 4)
        plain = choose(Question(chain, MACHINE, having))
        choice = choose(
            Question(chain, MACHINE, replace(having, trained_element_bytes=STATE_BYTES))
        )
        arrangement, pieces = choice.arrangement, choice.cut.pieces
        assert plain.memory.trained_bytes == 0
        assert choice.memory.total_bytes <= having.device_bytes
        assert choice.memory.trained_bytes == STATE_BYTES * choice.trained_elements
        assert arrangement.trained <= arrangement.resident
        assert (
            choice.seconds_per_micro_batch <= (1 + NEARLY) * plain.seconds_per_micro_batch + 1e-12
        )
        used = [
            n for s, p in enumerate(pieces) if s not in arrangement.trained for n in p.parameters
        ]
        assert choice.trained_elements <= elements - sum(
            {n: e for o in chain.operations for n, e in o.parameters.items() if n in used}.values()
        )
        trained.append(choice.trained_elements)
    assert trained[-1] == elements
    assert choice.timeline.busy_s("load") == choice.timeline.busy_s("gradients") == 0
    assert choice.passes_s(1, HostStep(1.0, 30.0)) == choice.timeline.seconds


def test_those_that_share_a_parameter_are_trained_together_and_first_ones_first() -> None:
    for seed in range(8):
        chain = random_chain(random.Random(seed))
        limits = Limits(plenty(chain, Limits(0, 2, 1)), 2, 1, trained_element_bytes=1)
        ends = tuple(range(1, len(chain.operations) + 1))
        cut = Cut.of(chain, MACHINE, limits, ends)
        for arrangement in arrangements(cut):
            for name in {name for piece in cut.pieces for name in piece.parameters}:
                users = {s for s, piece in enumerate(cut.pieces) if name in piece.parameters}
                assert users <= arrangement.trained or not users & arrangement.trained
