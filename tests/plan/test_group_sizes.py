"""Choice between independent devices and groups of devices, and the memory in a group."""

from dataclasses import replace

import pytest

from atom.graph.chain import Chain, Machine, Operation, Value
from atom.plan.choice import Choice
from atom.plan.choosing import Question, choose, choose_each
from atom.plan.memory import Limits

LAYERS, ELEMENTS, VALUE_BYTES = 40, 1_000_000, 20_000
MODEL_BYTES = LAYERS * ELEMENTS * 4
SOME_BYTES = 28_000_000
"""Memory of a device that holds some of the layers."""


def asked(load_s: float, device_bytes: int, devices: int = 4, tied: bool = False) -> Question:
    """Layers that are loaded in so many seconds, and computed in 10 and 20 ms."""
    made = [
        Operation(f"o{n}", {f"p{n}": ELEMENTS}, 0.01, 0.02, 50_000, 50_000) for n in range(LAYERS)
    ]
    if tied:
        made[-1] = replace(made[-1], parameters=made[0].parameters)
    chain = Chain(tuple(made), tuple(Value(VALUE_BYTES, n, n + 1) for n in range(-1, LAYERS - 1)))
    rate = ELEMENTS * 4 / load_s
    limits = Limits(device_bytes, 4, micro_batches=4, devices=devices)
    every_layer = tuple(range(1, LAYERS + 1))
    return Question(chain, Machine(rate, rate), limits, every_layer, step_micro_batches=16)


def loads(choice: Choice) -> list[int]:
    return [each.sub_model for each in choice.timeline.lane("load")]


def test_where_the_link_is_no_wall_each_device_works_by_itself() -> None:
    ways = choose_each(asked(0.001, SOME_BYTES))
    assert sorted(ways) == [1, 2, 4]
    assert [way.groups for way in ways.values()] == [4, 2, 1]
    chosen = choose(asked(0.001, SOME_BYTES))
    assert (chosen.group_devices, chosen.groups) == (1, 4)


@pytest.mark.parametrize("tied", [False, True])
def test_where_the_link_is_a_wall_a_group_loads_each_sub_model_once(tied: bool) -> None:
    ways = choose_each(asked(0.4, SOME_BYTES, tied=tied))
    chosen = choose(asked(0.4, SOME_BYTES, tied=tied))
    assert chosen == ways[4]
    assert chosen.micro_batches == 16, "as many as one device takes, for each"
    assert chosen.seconds_per_micro_batch < 0.4 * ways[1].seconds_per_micro_batch
    for way in ways.values():
        assert way.memory.total_bytes <= SOME_BYTES
        assert way.least_per_micro_batch_s <= way.seconds_per_micro_batch
        assert way.micro_batches * way.groups <= 16


def test_an_only_group_that_falls_with_any_device_has_to_be_worth_it() -> None:
    for load_s, size in ((0.048, 1), (0.06, 2)):
        ways = choose_each(asked(load_s, SOME_BYTES, devices=2))
        assert ways[2].seconds_per_micro_batch < ways[1].seconds_per_micro_batch
        assert choose(asked(load_s, SOME_BYTES, devices=2)).group_devices == size


def test_a_group_that_holds_the_model_loads_it_once() -> None:
    room = int(0.6 * MODEL_BYTES)
    chosen = choose(asked(0.4, room))
    assert chosen.group_devices == 4
    assert len(chosen.arrangement.resident) == len(chosen.cut.pieces)
    assert sorted(loads(chosen)) == list(range(len(chosen.cut.pieces)))
    assert chosen.memory.total_bytes <= room
    assert set(chosen.still_loaded) == chosen.arrangement.resident
    once_s = 0.4 * LAYERS / 4
    assert chosen.passes_s(3) - chosen.passes_s(2) <= chosen.passes_s(1) - 0.7 * once_s


@pytest.mark.parametrize("devices", [3, 5])
def test_groups_are_of_a_size_that_divides_the_devices(devices: int) -> None:
    assert sorted(choose_each(asked(0.4, SOME_BYTES, devices))) == [1, devices]


def test_devices_that_share_cores_are_in_no_group() -> None:
    alone = replace(asked(0.4, SOME_BYTES), step_micro_batches=None)
    assert list(choose_each(alone)) == [1]


def test_a_group_needs_a_sub_model_for_each_of_its_devices() -> None:
    whole = replace(asked(0.001, 8 * MODEL_BYTES), layer_ends=(LAYERS,))
    assert list(choose_each(whole)) == [1]
