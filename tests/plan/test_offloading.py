"""Values between sub-models that do not fit the device are offloaded to the host."""

from dataclasses import replace
from functools import cache

import pytest
from small_chains import MACHINE

from atom.base.errors import DeviceError
from atom.graph.chain import Chain, Operation, Value
from atom.plan.choice import Choice
from atom.plan.choosing import Question, choose, enough_bytes
from atom.plan.memory import Cut, Limits, alone_bytes, pieces_of
from atom.plan.residency import arrangements, offloaded, waiting
from atom.swap.schedule import Arrangement, ValuesIn, ValuesOut, training_pass
from tests.swap.schedule_check import check

LAYERS = 24
LARGE = 1 << 20


def chain(skip: bool = False) -> Chain:
    """Alike layers of two operations; between the two lies four times as much as between layers."""
    operations = [
        Operation(f"layer{n // 2}.{n % 2}", {f"w{n}": 200_000}, 0.1, 0.2, 4_000, 2_000)
        for n in range(2 * LAYERS)
    ]
    values = [
        Value(LARGE * (4 if n % 2 == 0 else 1), n, n + 1, (n + 1,)) for n in range(2 * LAYERS - 1)
    ]
    if skip:
        values.append(Value(LARGE, 3, 2 * LAYERS - 1, (4, 2 * LAYERS - 1)))
    return Chain(tuple(operations), (Value(64, -1, 0, (0,)), *values))


LIMITS = Limits(0, 4, 4)
LAYER_ENDS = tuple(range(2, 2 * LAYERS + 1, 2))


@cache
def staying_bytes(skip: bool = False) -> int:
    """Enough for whole layers, with all values on the device."""
    cut = Cut.of(chain(skip=skip), MACHINE, Limits(0, 4, 1), LAYER_ENDS)
    return cut.memory(Arrangement()).total_bytes


@cache
def answer(device_bytes: int, micro_batches: int = 4, skip: bool = False) -> Choice:
    limits = Limits(device_bytes, 4, micro_batches)
    return choose(Question(chain(skip=skip), MACHINE, limits, LAYER_ENDS))


def test_it_makes_a_plan_possible() -> None:
    least = enough_bytes(Question(chain(), MACHINE, LIMITS, LAYER_ENDS))
    assert least < 0.6 * staying_bytes()
    choice = answer(least, micro_batches=1)
    assert choice.arrangement.offloaded
    assert choice.memory.total_bytes <= least
    assert choice.host_bytes > 0


@pytest.mark.parametrize("skip", [False, True])
@pytest.mark.parametrize("share", [0.7, 1.0, 1.5, 3.0])
def test_whatever_is_chosen_fits_and_is_sound(share: float, skip: bool) -> None:
    staying = staying_bytes(skip)
    choice = answer(int(share * staying), skip=skip)
    assert choice.memory.total_bytes <= share * staying
    events = training_pass(choice.shape)
    check(events, choice.shape)
    moves = any(isinstance(event, ValuesIn | ValuesOut) for event in events)
    assert moves == (choice.host_bytes > 0)
    spans = [s for s in choice.timeline.spans if isinstance(s.event, ValuesIn | ValuesOut)]
    assert bool(spans) == moves


def test_it_leaves_room_for_more_micro_batches() -> None:
    staying = staying_bytes()
    device_bytes = int(1.3 * staying)
    choice = answer(device_bytes, micro_batches=8)
    assert choice.arrangement.offloaded
    assert not choice.cut.fits(Arrangement())


@pytest.mark.parametrize("skip", [False, True])
def test_no_more_wait_on_the_host_than_must(skip: bool) -> None:
    """More device memory means fewer sub-models with offloaded values, and finally none."""
    cut = Cut.of(chain(skip=skip), MACHINE, LIMITS, LAYER_ENDS)
    every = offloaded(cut)
    least = cut.memory(every).total_bytes
    most = cut.memory(Arrangement()).total_bytes
    counts = list[int]()
    for step in range(9):
        limits = replace(LIMITS, device_bytes=least + (most - least) * step // 8)
        cut = replace(cut, limits=limits)
        found = arrangements(cut)
        assert all(cut.fits(each) for each in found)
        few = min(
            (each for each in found if not each.resident), key=lambda each: len(each.offloaded)
        )
        shape = cut.shape(few)
        counts.append(len(waiting(shape)))
        check(training_pass(shape), shape)
        if counts[-1]:
            one_less = replace(few, offloaded=frozenset(waiting(shape)[:-1]))
            assert not cut.fits(one_less), "one more would have stayed"
    assert counts == sorted(counts, reverse=True)
    assert counts[0] >= LAYERS - 4
    assert counts[-1] == 0
    assert len(set(counts)) > 5


def test_the_host_limits_what_may_wait_there() -> None:
    staying = staying_bytes()
    most = answer(staying).host_bytes
    limits = Limits(staying, 4, 4, host_bytes=most // 3)
    choice = choose(Question(chain(), MACHINE, limits, LAYER_ENDS))
    assert choice.host_bytes <= most // 3
    with pytest.raises(DeviceError):
        choose(Question(chain(), MACHINE, replace(limits, device_bytes=staying // 2, host_bytes=0)))


def test_a_layer_that_does_not_fit_is_cut_where_little_crosses() -> None:
    operations = [
        Operation(f"layer{n // 4}.{n % 4}", {f"w{n}": 200_000}, 0.1, 0.2, 4_000, 2_000)
        for n in range(32)
    ]
    values = tuple(Value(LARGE * (4 if n % 4 == 1 else 1), n, n + 1, (n + 1,)) for n in range(31))
    model, ends = Chain(tuple(operations), values), tuple(range(4, 33, 4))
    limits = replace(LIMITS, micro_batches=1)
    halves = max(alone_bytes(each, limits) for each in pieces_of(model, range(2, 33, 2)))
    choice = choose(
        Question(model, MACHINE, replace(limits, device_bytes=2 * halves - 200_000), ends)
    )
    assert set(choice.cut.ends) - set(ends), "no layer fits"
    assert not any(end % 4 == 2 for end in choice.cut.ends), "much crosses there"
