"""Where values between sub-models are too much for a device, they wait on the host."""

from dataclasses import replace
from functools import cache

import pytest
from small_chains import MACHINE

from atom.base.errors import DeviceError
from atom.graph.partition import Chain, Operation, Terms, Value, smallest_device_bytes
from atom.plan.choice import Choice, Limits, choose, timed
from atom.plan.memory import Reckoning
from atom.plan.offloading import (
    can_offload,
    least_offloaded_bytes,
    offloaded,
    offloaded_cuts,
    waiting,
)
from atom.plan.pieces import crossings_of, pieces_of
from atom.plan.residency import Budget, arrangements
from atom.swap.arrangement import Arrangement
from atom.swap.schedule import Shape, ValuesIn, ValuesOut, training_pass
from tests.swap.schedule_check import check

LAYERS = 24
LARGE = 1 << 20


def chain(value_bytes: int = LARGE, skip: bool = False) -> Chain:
    """Alike layers of two operations; between the two lies four times as much as between layers."""
    operations = [
        Operation(f"layer{n // 2}.{n % 2}", {f"w{n}": 200_000}, 0.1, 0.2, 4_000, 2_000)
        for n in range(2 * LAYERS)
    ]
    values = [
        Value(value_bytes * (4 if n % 2 == 0 else 1), n, n + 1, (n + 1,))
        for n in range(2 * LAYERS - 1)
    ]
    if skip:
        values.append(Value(value_bytes, 3, 2 * LAYERS - 1, (4, 2 * LAYERS - 1)))
    return Chain(tuple(operations), (Value(64, -1, 0, (0,)), *values))


TERMS = Terms(0, 1, 4)


@cache
def answer(device_bytes: int, micro_batches: int = 4, skip: bool = False) -> Choice:
    return choose(chain(skip=skip), MACHINE, Limits(device_bytes, 4, micro_batches))


def test_it_makes_a_plan_possible() -> None:
    model = chain()
    staying = smallest_device_bytes(model, MACHINE, TERMS)
    least = least_offloaded_bytes(model, MACHINE, TERMS)
    assert least < 0.6 * staying
    choice = answer(least, micro_batches=1)
    assert choice.arrangement.offloaded
    assert choice.memory.total_bytes <= least
    assert choice.host_bytes > 0
    small = chain(value_bytes=512)
    assert not can_offload(small)
    with pytest.raises(DeviceError, match="least"):
        choose(small, MACHINE, Limits(1000, 4, 4))


@pytest.mark.parametrize("skip", [False, True])
@pytest.mark.parametrize("share", [0.7, 1.0, 1.5, 3.0])
def test_whatever_is_chosen_fits_and_is_sound(share: float, skip: bool) -> None:
    staying = smallest_device_bytes(chain(skip=skip), MACHINE, TERMS)
    choice = answer(int(share * staying), skip=skip)
    assert choice.memory.total_bytes <= share * staying
    crossings = crossings_of(choice.pieces)
    shape = Shape(len(choice.pieces), choice.micro_batches, choice.arrangement, crossings)
    events = training_pass(shape)
    check(events, shape)
    moves = any(isinstance(event, ValuesIn | ValuesOut) for event in events)
    assert moves == (choice.host_bytes > 0)
    spans = [s for s in choice.timeline.spans if isinstance(s.event, ValuesIn | ValuesOut)]
    assert bool(spans) == moves


def test_it_leaves_room_for_more_micro_batches() -> None:
    staying = smallest_device_bytes(chain(), MACHINE, TERMS)
    device_bytes = int(1.3 * staying)
    choice = answer(device_bytes, micro_batches=8)
    assert choice.arrangement.offloaded
    alone = timed(chain(), MACHINE, choice.ends, Arrangement(), choice.micro_batches, 4)
    assert alone.memory.total_bytes > device_bytes


@pytest.mark.parametrize("skip", [False, True])
def test_no_more_wait_on_the_host_than_must(skip: bool) -> None:
    """With a little more memory, a few less: down to none."""
    pieces = pieces_of(chain(skip=skip), range(2, 2 * LAYERS + 1, 2))
    reckoning, every = Reckoning(pieces, 4, 4), offloaded(LAYERS)
    least = reckoning.memory(every).total_bytes
    most = reckoning.memory(Arrangement()).total_bytes
    counts = list[int]()
    for step in range(9):
        budget = Budget(least + (most - least) * step // 8, 4, 4)
        found = list(arrangements(pieces, budget, every))
        assert all(reckoning.fits(each, budget.device_bytes) for each in found)
        plain = [each for each in found if not each.resident and each.slots == 2]
        few = plain[-1]
        shape = reckoning.shape(few)
        counts.append(len(waiting(shape)))
        check(training_pass(shape), shape)
        if counts[-1]:
            one_less = replace(few, offloaded=frozenset(waiting(shape)[:-1]))
            assert not reckoning.fits(one_less, budget.device_bytes), "one more would have stayed"
    assert counts == sorted(counts, reverse=True)
    assert counts[0] >= LAYERS - 4
    assert counts[-1] == 0
    assert len(set(counts)) > 5


def test_where_it_makes_a_pass_shorter_some_values_stay() -> None:
    choice = answer(int(1.3 * smallest_device_bytes(chain(), MACHINE, TERMS)), micro_batches=8)
    assert 0 < len(choice.waiting) < LAYERS - 4
    everything = replace(choice.arrangement, offloaded=frozenset(range(len(choice.pieces))))
    slower = timed(chain(), MACHINE, choice.ends, everything, choice.micro_batches, 4)
    assert slower.timeline.seconds > choice.timeline.seconds
    assert slower.host_bytes > choice.host_bytes


def test_with_plenty_of_memory_all_stays() -> None:
    assert answer(1 << 34).arrangement.offloaded == frozenset()


def test_the_host_limits_what_may_wait_there() -> None:
    staying = smallest_device_bytes(chain(), MACHINE, TERMS)
    most = answer(staying).host_bytes
    limits = Limits(staying, 4, 4, host_bytes=most // 3)
    choice = choose(chain(), MACHINE, limits)
    assert choice.host_bytes <= most // 3
    with pytest.raises(DeviceError):
        choose(chain(), MACHINE, replace(limits, device_bytes=staying - 1, host_bytes=0))


def test_wide_cuts_are_avoided_where_memory_is_short() -> None:
    least = least_offloaded_bytes(chain(), MACHINE, TERMS)
    cuts = list(offloaded_cuts(chain(), MACHINE, replace(TERMS, device_bytes=least)))
    assert cuts
    assert all(end % 2 == 0 for cut in cuts for end in cut), "between the halves lies too much"
