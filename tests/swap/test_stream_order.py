"""Nothing of the device's code touches memory out of order.

With every way in which sub-models stay, steps and pauses under passes, passes that are cancelled or
void, offloaded values, and parameters that are trained on the device.
"""

from contextlib import suppress

import pytest
import torch
from ordered_story import EVERY, NARROW, TELLING, Case, offloading
from random_order import RandomOrder
from stream_order import Order
from test_arrangements import STAYING, arrangement

from atom.swap.schedule import Arrangement
from atom.swap.streams import CudaDevice

SOME = frozenset({1, 3})
CASES = [
    *TELLING,
    *(
        Case("scaling", arrangement(2 + n % 2, *staying), (torch.float32, NARROW)[n // 2 % 2])
        for n, staying in enumerate(STAYING)
    ),
    *(
        Case("scaling", Arrangement(2, EVERY, kept, trained=trained))
        for kept, trained in [(EVERY, EVERY), (SOME, SOME), (frozenset(), SOME)]
    ),
    offloading("skipping"),
    offloading("viewing", 2, 4),
    Case("scaling", Arrangement(), devices=2),
    Case("scaling", Arrangement(2, SOME, SOME, EVERY, 0), NARROW, devices=2),
    Case("skipping", Arrangement(2, SOME, SOME, devices=2), NARROW, devices=2),
    Case("viewing", Arrangement(devices=2), devices=4),
]


@pytest.mark.parametrize("case", CASES, ids=str)
def test_nothing_overtakes_what_it_depends_on(case: Case) -> None:
    races = list[object]()
    told = case.on_gpu(Order(races.append))
    assert not races, "\n\n".join(map(str, races))
    assert told == case.told


@pytest.mark.parametrize("case", TELLING, ids=str)
def test_nothing_overtakes_it_on_a_cpu_either(case: Case) -> None:
    races = list[object]()
    told = case.on_cpu(Order(races.append))
    assert not races, "\n\n".join(map(str, races))
    assert told == case.told


@pytest.mark.parametrize("case", CASES, ids=str)
def test_the_bits_are_the_same_in_any_order_that_is_legal(case: Case) -> None:
    assert case.on_gpu(RandomOrder(CASES.index(case))) == case.told


@pytest.mark.parametrize("wait", ["wait_loaded", "wait_gradients_out", "wait_values_out"])
def test_a_race_names_both_accesses_where_a_wait_is_left_out(
    wait: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second case loads, sends gradients, and offloads values."""
    races, case = list[object](), TELLING[1]
    assert case.told
    monkeypatch.setattr(CudaDevice, wait, lambda self, slot: None)
    with suppress(Exception):  # what a race breaks
        case.on_gpu(Order(races.append))
    said = " ".join(map(str, races))
    assert "stream compute" in said
    assert "issued by thread" in said
    assert "swap/" in said
